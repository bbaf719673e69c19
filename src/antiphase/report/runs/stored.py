"""The files of a run directory, read and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from antiphase import reading
from antiphase.errors import UserError
from antiphase.evaluation.rates import (
    COMPARISON_SCHEMA,
    ROW_SCHEMA,
    by_seed,
    clean_accuracy,
    compare,
    family_comparisons,
    family_results,
    over_images,
    rates,
    with_decisions,
)
from antiphase.report.figure import Family, families
from antiphase.runs.gallery import AttackGallery, read_gallery

_FIX = "expected the folder of a finished run"
RUN_KEYS = (
    "command",
    "settings",
    "data",
    "data_fingerprint",
    "n",
    "seconds",
    "hardware",
    "versions",
    "warnings",
)


@dataclass(frozen=True)
class StoredRun:
    """The content of a run directory that a report needs.

    ``results``, ``accuracy`` and ``comparisons`` are the frames of ``antiphase.evaluation.rates``.
    ``mean_results`` and ``mean_comparisons`` average them over training seeds; they are empty if no family has several
    seeds. Both comparisons have a column ``decided``: 1, −1 or 0, see :func:`~antiphase.statistics.decisions.decide`.
    ``norms`` holds minimal perturbations, for attacks that look for the nearest adversarial example; ``felled`` counts
    the images that each attack of an ensemble broke.
    """

    models: list[dict[str, Any]]
    pairs: list[tuple[str, str]]
    run: dict[str, Any]
    families: list[Family]
    accuracy: pl.DataFrame
    results: pl.DataFrame
    comparisons: pl.DataFrame
    mean_results: pl.DataFrame
    mean_comparisons: pl.DataFrame
    norms: list[dict[str, Any]]
    felled: pl.DataFrame
    gallery: AttackGallery | None


def read_run(directory: Path) -> StoredRun:
    """Read ``summary.json``, ``run.json``, ``rows.parquet`` and, if present, ``gallery.safetensors``.

    Raises:
        UserError: A file is missing, cannot be read, or lacks a field.
    """
    summary = read_json(directory / "summary.json", ("models", "comparisons"))
    run = read_json(directory / "run.json", RUN_KEYS)
    rows = read_attack_rows(directory / "rows.parquet")
    named, attacked = {model["name"] for model in summary["models"]}, set(rows["model"])
    if named != attacked:
        odd = min(named ^ attacked)
        raise UserError(
            f"model {odd!r} is not in both summary.json and rows.parquet of {directory}: run it again"
        )
    groups = by_seed(summary["models"])
    pairs = dict.fromkeys((entry["model"], entry["against"]) for entry in summary["comparisons"])
    results = rates(rows)
    comparisons = pl.concat(
        [pl.DataFrame(schema=COMPARISON_SCHEMA), *(compare(rows, *pair) for pair in pairs)]
    )
    gallery = directory / "gallery.safetensors"
    return StoredRun(
        models=summary["models"],
        pairs=list(pairs),
        run=run,
        families=families(summary["models"]),
        accuracy=clean_accuracy(rows),
        results=results,
        comparisons=with_decisions(comparisons),
        mean_results=family_results(results, groups),
        mean_comparisons=with_decisions(_over_seeds_and_images(comparisons, groups, rows)),
        norms=summary.get("norms", []),
        felled=_felled(rows),
        gallery=read_gallery(gallery) if gallery.exists() else None,
    )


def _over_seeds_and_images(
    comparisons: pl.DataFrame, groups: Mapping[str, Sequence[str]], rows: pl.DataFrame
) -> pl.DataFrame:
    """Average over the pairs of two families, with intervals over seeds and over images."""
    means = family_comparisons(comparisons, groups)
    frames = []
    for (first, second), mean in means.group_by(["family", "against_family"], maintain_order=True):
        pairs = comparisons.filter(
            pl.col("model").is_in(groups[str(first)]) & pl.col("against").is_in(groups[str(second)])
        )
        unique = pairs.select("model", "against").unique(maintain_order=True).rows()
        frames.append(mean.join(over_images(rows, unique), on=["attack", "norm", "eps"], how="left"))
    return pl.concat(frames) if frames else means.with_columns(image_low=pl.lit(0.0), image_high=pl.lit(0.0))


def _felled(rows: pl.DataFrame) -> pl.DataFrame:
    """Count the images that each attack broke, for runs of several attacks."""
    broken = rows.filter(pl.col("felled_by").is_not_null() & (pl.col("felled_by") != pl.col("attack")))
    keys = ["model", "felled_by", "eps"]
    return broken.group_by(keys, maintain_order=True).agg(n=pl.len().cast(pl.Int64)).sort("model", "eps")


def read_json(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read a file of a run directory.

    Raises:
        UserError: if it cannot be read or lacks a key.
    """
    content = reading.read_json(path, fix=_FIX)
    missing = [key for key in keys if key not in content]
    if missing:
        raise UserError(f"{path} has no {missing[0]!r}: expected the file of a finished run; run it again")
    return content


def read_attack_rows(path: Path) -> pl.DataFrame:
    """Read the rows of an audit.

    Raises:
        UserError: The file cannot be read, lacks a column, or is empty.
    """
    rows = reading.read_rows(path, _FIX)
    missing = [name for name in ROW_SCHEMA if name not in rows.columns]
    if missing:
        raise UserError(
            f"{path} has no column {missing[0]!r}: expected the rows of a finished run; run it again"
        )
    if rows.is_empty():
        raise UserError(f"{path} has no rows: expected the rows of a finished run; run it again")
    return rows
