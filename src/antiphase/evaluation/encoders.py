"""Validation of a dual encoder during training: metrics for the log."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from antiphase.data.pairs import PairSet, model_images
from antiphase.evaluation.metrics import estimate, task_metrics
from antiphase.evaluation.retrieval import chosen_captions, retrieval_rows
from antiphase.evaluation.tasks import Captions
from antiphase.evaluation.zero_shot import zero_shot_rows
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier

_NAMES = {"top-1": "zero-shot", "per class": "zero-shot per class"}


@torch.no_grad()
def encoder_numbers(
    model: nn.Module,
    pairs: PairSet,
    *,
    prompts: Sequence[Sequence[str]] | None = None,
    captions: Captions = "all",
    batch_size: int = 256,
) -> dict[str, float]:
    """Return retrieval and, if the set has classes, zero-shot metrics in [0, 1] by name."""
    encoder = as_dual_encoder(model)
    device = encoder.logit_scale.device
    texts, owners = chosen_captions(pairs, captions)
    images, words = [], []
    for start in range(0, len(pairs), batch_size):
        batch = range(start, min(start + batch_size, len(pairs)))
        pixels = model_images(pairs, batch, encoder.square).to(device)
        images.append(encoder.encode_image(pixels).float().cpu())
    for start in range(0, len(texts), batch_size):
        words.append(encoder.encode_text(texts[start : start + batch_size]).float().cpu())
    vectors = [F.normalize(torch.cat(parts), dim=-1) for parts in (images, words)]
    rows = retrieval_rows(*vectors, owners, pairs.ids)
    metrics = {f"{metric.setting} {metric.name}": metric for metric in task_metrics("retrieval", rows)}
    if pairs.labels is not None:
        weights = zero_shot_classifier(model, pairs.class_names, prompts=prompts).weights.cpu()
        rows = zero_shot_rows(vectors[0], weights, pairs.labels, pairs.ids)
        metrics |= {_NAMES[m.name]: m for m in task_metrics("zero-shot", rows) if m.name in _NAMES}
    return {name: round(estimate(metric).value, 4) for name, metric in metrics.items()}
