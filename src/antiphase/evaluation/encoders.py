"""Validation of a dual encoder during training: metrics for the log."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphase.data.pairs import PairSet, model_images
from antiphase.evaluation.metrics import estimate, task_metrics
from antiphase.evaluation.retrieval import chosen_captions, retrieval_rows
from antiphase.evaluation.tasks.task import Captions
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
    """Return retrieval and, if the set has classes, zero-shot metrics in [0, 1] by name.

    Args:
        model: a dual encoder in evaluation mode.
        pairs: images with captions.
        prompts: texts of each class; ``'a photo of'`` and its name by default.
        captions: use ``"all"`` captions of an image, as CLIP_benchmark, or only the ``"first"``.
        batch_size: images or captions per batch; changes results only by rounding.

    Raises:
        UserError: The model does not encode text, or an image cannot be read.
    """
    encoder = as_dual_encoder(model)
    place = encoder.logit_scale.device
    texts, owners = chosen_captions(pairs, captions)

    def unit(vectors: list[Tensor]) -> Tensor:
        return F.normalize(torch.cat([part.float().cpu() for part in vectors]), dim=-1)

    images = unit(
        [
            encoder.encode_image(model_images(pairs, some, encoder.square).to(place))
            for some in _parts(len(pairs), batch_size)
        ]
    )
    words = unit(
        [encoder.encode_text(texts[some.start : some.stop]) for some in _parts(len(texts), batch_size)]
    )
    metrics = task_metrics("retrieval", retrieval_rows(images, words, owners, pairs.ids))
    found = {f"{metric.setting} {metric.name}": metric for metric in metrics}
    if pairs.labels is not None:
        weights = zero_shot_classifier(model, pairs.class_names, prompts=prompts).weights.cpu()
        rows = zero_shot_rows(images, weights, pairs.labels, pairs.ids)
        found |= {_NAMES[m.name]: m for m in task_metrics("zero-shot", rows) if m.name in _NAMES}
    return {name: round(estimate(metric).estimate.value, 4) for name, metric in found.items()}


def _parts(count: int, size: int) -> list[range]:
    return [range(at, min(at + size, count)) for at in range(0, count, size)]
