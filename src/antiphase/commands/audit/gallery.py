"""The gallery of an audit, from the adversarial images that were kept while attacking."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from antiphase.commands.audit.cells import KeptImages, worst_case
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import printable
from antiphase.report.gallery import AttackGallery

_SIZE = 6
_KEPT = 24  # enough for six of different classes that all models get right
_KEYS = ("model", "attack", "sample")


def keep_some(data: ImageSet, eps: float, candidates: Sequence[int] | None = None) -> KeptImages:
    """Keep images at one ε: of a few samples, spread evenly over the data or the candidates, whatever the models."""
    positions = np.arange(len(data)) if candidates is None else np.array(candidates, dtype=np.int64)
    spread = np.linspace(0, len(positions) - 1, min(len(positions), _KEPT)).round().astype(int)
    return KeptImages(eps, frozenset(data.ids[torch.from_numpy(positions[spread])].tolist()))


def with_images(rows: pl.DataFrame, models: Sequence[str], kept: KeptImages) -> pl.DataFrame:
    """Return the worst case of each sample at the gallery's ε for which the images of all models were kept.

    Args:
        rows: of the attacks, without controls.
        models: shown models.
        kept: the images.
    """
    rows = rows.filter(
        pl.col("model").is_in(list(models)), pl.col("sample").is_in(kept.samples), eps=kept.eps
    )
    rows = worst_case(rows, list(rows["attack"].unique(maintain_order=True)))
    has_image = pl.Series([key in kept.files for key in rows.select(_KEYS).rows()], dtype=pl.Boolean)
    # a search for the nearest example may have ended further away than ε
    within = pl.col("success") | (pl.col("prediction") == pl.col("clean_prediction"))
    rows = rows.filter(has_image & within)
    return rows.filter(pl.len().over("sample") == len(models))


def shown_samples(rows: pl.DataFrame) -> list[int]:
    """Return six samples that all models get right: broken ones first, and of these first one of each class."""
    samples = (
        rows.group_by("sample", maintain_order=True)
        .agg(
            pl.col("label").first(),
            right=(pl.col("clean_prediction") == pl.col("label")).all(),
            robust=~pl.col("success").any(),
        )
        .filter("right")
        .with_columns(nth=pl.int_range(pl.len()).over("label", "robust"))
    )
    return samples.sort("robust", "nth", maintain_order=True)["sample"][:_SIZE].to_list()


def draw_gallery(
    rows: pl.DataFrame, models: Sequence[str], data: ImageSet, kept: KeptImages, samples: Sequence[int]
) -> AttackGallery | None:
    """Return the gallery of some samples, from their rows of :func:`with_images`; None without samples."""
    if not samples:
        return None
    shown = pl.DataFrame({"sample": samples})
    parts = [shown.join(rows.filter(model=name), on="sample", maintain_order="left") for name in models]
    place = {sample: at for at, sample in enumerate(data.ids.tolist())}
    at = [place[sample] for sample in samples]
    adversarial = [[_image(kept.files[key]) for key in part.select(_KEYS).rows()] for part in parts]
    return AttackGallery(
        eps=kept.eps,
        models=tuple(models),
        class_names=data.class_names,
        sample=np.array(samples),
        label=data.labels[at].numpy(),
        clean=data.images(at).numpy(),
        adversarial=tuple(map(np.stack, adversarial)),
        clean_prediction=tuple(part["clean_prediction"].to_numpy() for part in parts),
        prediction=tuple(part["prediction"].to_numpy() for part in parts),
        files=tuple(printable(file) for file in data.take(at).files) if hasattr(data, "files") else (),
    )


def _image(path: Path) -> Any:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it, and the gallery lacks it") from error
