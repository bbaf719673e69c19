"""Validation of a dual encoder during training: metrics for the log."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from antiphase.data.images import PairSet, model_images
from antiphase.evaluation.metrics import estimate, task_metrics
from antiphase.evaluation.retrieval import Captions, chosen_captions, retrieval_rows
from antiphase.evaluation.zero_shot import zero_shot_rows
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier

_BATCH_SIZE = 256  # images or captions
_NAMES = {"top-1": "zero-shot", "per class": "zero-shot per class"}


@torch.no_grad()
def encoder_numbers(model: nn.Module, pairs: PairSet, captions: Captions = "all") -> dict[str, float]:
    """Return retrieval and, if the set has classes, zero-shot metrics in [0, 1] by name.

    Zero-shot is by the set's own prompts, or ``'a photo of'`` and the name of the class.
    """
    encoder = as_dual_encoder(model)
    device = encoder.logit_scale.device
    texts, owners = chosen_captions(pairs, captions)
    pixels = (model_images(pairs, batch, encoder.square).to(device) for batch in _batches(len(pairs)))
    words = (texts[batch.start : batch.stop] for batch in _batches(len(texts)))
    encoded = map(encoder.encode_image, pixels), map(encoder.encode_text, words)
    vectors = [F.normalize(torch.cat([part.float().cpu() for part in parts]), dim=-1) for parts in encoded]
    rows = retrieval_rows(*vectors, owners, pairs.ids)  # pyright: ignore[reportCallIssue]
    metrics = {f"{metric.setting} {metric.name}": metric for metric in task_metrics("retrieval", rows)}
    if pairs.labels is not None:
        weights = zero_shot_classifier(model, pairs.class_names, prompts=pairs.prompts).weights.cpu()
        rows = zero_shot_rows(vectors[0], weights, pairs.labels, pairs.ids)
        metrics |= {_NAMES[m.name]: m for m in task_metrics("zero-shot", rows) if m.name in _NAMES}
    return {name: round(estimate(metric).value, 4) for name, metric in metrics.items()}


def _batches(count: int) -> Iterator[range]:
    return (range(start, min(start + _BATCH_SIZE, count)) for start in range(0, count, _BATCH_SIZE))
