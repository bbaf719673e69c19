"""Margin-over-Lipschitz radii of a model and its twin, and what equation (6) predicts of their ratio."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from antiphase.commands.sense.options import SenseOptions
from antiphase.commands.sense.run import BATCH_SIZE, sense
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.models.card import card_of
from antiphase.processes import Process
from antiphase.runs.radii import measure_radii
from antiphase.sensitivity.layer_estimates import within
from antiphase.sensitivity.theorem_ratios import layer_parts, radius_parts, radius_ratios
from antiphase.sensitivity.theory import estimated_radius
from antiphase.statistics.intervals import jackknife
from antiphase.store import write_frame

STEPS = 20  # of power iteration


def estimate_radii(
    names: Sequence[str],
    models: Sequence[nn.Module],
    data: ImageSet,
    out: Path,
    *,
    limit: int,
    seed: int,
    process: Process,
    progress: bool,
) -> dict[str, Any]:
    """Estimate the radius of each image within which the prediction does not change, and write ``estimated.parquet``.

    Nothing here is certified: the Lipschitz constants are lower bounds, see
    :func:`~antiphase.sensitivity.estimated_radius`.

    Args:
        names: names of the models in the rows.
        models: one classifier, or a classifier and its twin, with their cards.
        data: images and labels.
        out: run directory.
        limit: at most this many images.
        seed: random seed of power iteration and probes.
        process: measures its share of the images.
        progress: whether to show progress bars on stderr.

    Returns:
        The summary: ``models`` with mean margin, constant and radii; for two models ``ratios``, and a ``note`` if
        equation (6) does not apply to them.
    """
    shared: dict[str, Any] = {
        "process": process,
        "batch_size": BATCH_SIZE,
        "progress": progress,
        "limit": limit,
    }
    found = [
        measure_radii(name, model, data, out, steps=STEPS, seed=seed, **shared)
        for name, model in zip(names, models, strict=True)
    ]
    if process.first:
        write_frame(out / "estimated.parquet", pl.concat(found))
    summary: dict[str, Any] = {
        "settings": {"images": len(found[0]), "steps": STEPS, "norms": "L2 → L2"},
        "models": [{"name": name, **_means(rows)} for name, rows in zip(names, found, strict=True)],
    }
    if len(models) < 2:
        return summary
    kinds = tuple(card_of(model).attention for model in models)
    layers, note = None, ""
    if kinds == ("differential", "softmax"):
        try:
            options = SenseOptions(
                model=("certify",), parts=("alignment",), probes=16, seed=seed, quiet=not progress
            )
            aligned = [
                sense(name, model, data, options, out, limit=limit, process=process)["alignment"]
                for name, model in zip(names, models, strict=True)
            ]
            if len({rows["layer"].n_unique() for rows in aligned}) > 1:
                raise UserError("the models have different numbers of attention layers")
            layers = layer_parts(*aligned)
        except UserError as error:
            note = f"equation (6) is not evaluated: {error}"
    else:
        note = "equation (6) is about a differential model against standard attention"
    return summary | {"ratios": _ratios(layers, *found)} | ({"note": note} if note else {})


def _ratios(layers: pl.DataFrame | None, own: pl.DataFrame, base: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the ratio of radii as rows; without inner products only what was measured."""
    usable = [rows.filter(pl.col("margin") > 0, pl.col("lipschitz") > 0) for rows in (own, base)]
    measured = layers is None
    if layers is None:
        layers = own.select("sample", layer=pl.lit(0), first=1.0, second=1.0, cross=0.0, base=1.0)
    parts = radius_parts(layers, *usable).drop_nulls()
    if parts.is_empty():
        return []
    found = radius_ratios(parts)
    found = found.filter(pl.col("metric").is_in(["margin", "constant", "measured"])) if measured else found
    ends = [pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in ("value", "low", "high")]
    return found.with_columns(ends).to_dicts()


def _means(rows: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return means over the images; margin and radius of an image that is classified wrongly count as 0."""
    margin, constant, slope = (
        torch.tensor(rows[name].to_numpy()) for name in ("margin", "lipschitz", "slope")
    )
    margin = margin * torch.tensor((rows["prediction"] == rows["label"]).to_numpy())
    values = {
        "margin": margin,
        "constant": constant,
        "printed": estimated_radius(margin, constant, of="margin"),
        "radius": estimated_radius(margin, constant, of="logits"),
        "nearest": estimated_radius(margin, slope, of="margin"),
    }
    found = {}
    for name, each in values.items():
        one = within(name)(jackknife(each.numpy()[:, None], lambda m: m[..., 0]))
        numbers = {"value": one.value, "low": one.low, "high": one.high}
        found[name] = {key: value if math.isfinite(value) else None for key, value in numbers.items()} | {
            "n": one.n
        }
    return found
