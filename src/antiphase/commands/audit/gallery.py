"""The gallery of an audit, from the adversarial images that were kept while attacking."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch

from antiphase.commands.audit.cells import KeptImages
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import printable
from antiphase.report.gallery import AttackGallery

_SIZE = 6
_KEPT = 24  # enough for six that all models get right


def keep_some(data: ImageSet, eps: float, among: Sequence[int] = ()) -> KeptImages:
    """Keep images at one ε of a few samples, whatever the models: spread over the data, or over some positions."""
    positions = torch.tensor(among or range(len(data)))
    spread = np.linspace(0, len(positions) - 1, min(len(positions), _KEPT)).round().astype(int)
    return KeptImages(eps, frozenset(data.ids[positions[torch.from_numpy(spread)]].tolist()))


def with_images(rows: pl.DataFrame, models: Sequence[str], attack: str, kept: KeptImages) -> pl.DataFrame:
    """Return the rows of the first attack at the gallery's ε of samples of which every model's image was kept."""
    rows = rows.filter(
        pl.col("model").is_in(list(models)), pl.col("sample").is_in(kept.samples), eps=kept.eps
    ).filter(attack=rows["attack"][0])
    of_worst = pl.col("felled_by").fill_null(attack)
    rows = rows.with_columns(by=of_worst if rows["attack"][0] != attack else pl.lit(attack))
    files = [str(kept.files.get(key, "")) for key in rows.select("model", "by", "sample").rows()]
    # a search for the nearest example may have ended further away than ε
    near = pl.col("success") | (pl.col("prediction") == pl.col("clean_prediction"))
    rows = rows.with_columns(image=pl.Series(files, dtype=pl.String)).filter(near, pl.col("image") != "")
    return rows.filter(pl.len().over("sample") == len(models))


def shown_samples(rows: pl.DataFrame) -> list[int]:
    """Return six samples that all models get right: broken ones first, and of these first one of each class."""
    right = (pl.col("clean_prediction") == pl.col("label")).all()
    samples = rows.group_by("sample", maintain_order=True).agg(
        pl.col("label").first(), right=right, robust=~pl.col("success").any()
    )
    samples = samples.filter("right").with_columns(nth=pl.int_range(pl.len()).over("label", "robust"))
    return samples.sort("robust", "nth", maintain_order=True)["sample"][:_SIZE].to_list()


def draw_gallery(
    rows: pl.DataFrame, models: Sequence[str], data: ImageSet, eps: float, samples: Sequence[int]
) -> AttackGallery | None:
    """Return the gallery of some samples, from their rows of :func:`with_images`; None without samples."""
    if not samples:
        return None
    shape = (len(models), len(samples))
    shown = pl.DataFrame({"model": models}).join(pl.DataFrame({"sample": samples}), how="cross")
    shown = shown.join(rows, on=["model", "sample"], how="left", maintain_order="left")
    position = {sample: at for at, sample in enumerate(data.ids.tolist())}
    some: Any = data.take([position[sample] for sample in samples])
    clean = some.images(range(len(some))).numpy()
    return AttackGallery(
        eps=eps,
        models=tuple(models),
        class_names=data.class_names,
        sample=np.array(samples),
        label=some.labels.numpy(),
        clean=clean,
        adversarial=np.stack(list(map(_read, shown["image"]))).reshape(*shape, *clean.shape[1:]),
        clean_prediction=shown["clean_prediction"].to_numpy().reshape(shape),
        prediction=shown["prediction"].to_numpy().reshape(shape),
        files=tuple(map(printable, getattr(some, "files", ()))),
    )


def _read(path: str) -> Any:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it, and the gallery lacks it") from error
