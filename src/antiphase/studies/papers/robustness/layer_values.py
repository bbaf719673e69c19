"""The quantities of Theorem 2 and the cancellation in each layer of DiffViT, per training seed and image."""

from typing import Any

import polars as pl

from antiphase.statistics.intervals import mean_over_seeds
from antiphase.studies.estimation import SAMPLE, SEED
from antiphase.studies.figures import BY_SEED, ESTIMATES
from antiphase.studies.spec import RowsByTable

LAYER = ["data", "depth", SEED, "layer"]
PLACE = ["data", "depth", "layer", "quantity"]
VALUE = pl.col("value")
RATIO = "gradients, Theorem 2"
PARTS = ("A1 alone, γ", "size of A2, ρ", "angle, cosθ")
ESTIMATORS = ("sampled maximum", "sampled mean", "power iteration", "gradient ascent")
PERTURBATIONS = {"noise": "uniform noise", "pgd": "PGD"}


def values(rows: RowsByTable) -> pl.DataFrame:
    """Return every quantity of every layer of DiffViT, one row for each training seed and image.

    Ratios of means over the images are linearised: the values of the images average to the ratio, and their spread
    gives its variance, so that they can be averaged like other values.

    Returns:
        Columns ``data, depth, training_seed, layer, sample, cell, quantity, value``.
    """
    return pl.concat([_gradients(rows["alignment"]), _lipschitz(rows["lipschitz"]), _moved(rows["depth"])])


def _root(top: pl.Expr, bottom: pl.Expr) -> pl.Expr:
    """Return √(mean(top) / mean(bottom)), linearised in each image."""
    relative = top / top.mean() - bottom / bottom.mean()
    return (top.mean() / bottom.mean()).sqrt() * (1.0 + relative / 2)


def _log(top: pl.Expr, bottom: pl.Expr) -> pl.Expr:
    """Return ½·ln(mean(top) / mean(bottom)), linearised in each image."""
    return ((top.mean() / bottom.mean()).log() + top / top.mean() - bottom / bottom.mean()) / 2


def _cosine(cross: pl.Expr, first: pl.Expr, second: pl.Expr) -> pl.Expr:
    """Return mean(cross) / √(mean(first)·mean(second)), linearised in each image."""
    scale = (first.mean() * second.mean()).sqrt()
    half = (first / first.mean() + second / second.mean()) / 2
    return (cross + cross.mean() * (1.0 - half)) / scale


def _twins(rows: pl.DataFrame, keys: list[str], columns: list[str]) -> pl.DataFrame:
    """Return DiffViT's rows, with columns of the ViT of the same data, depth, seed and image."""
    base = rows.filter(series="ViT").select(*keys, *(pl.col(name).alias(f"base_{name}") for name in columns))
    return rows.filter(series="DiffViT").join(base, on=keys, maintain_order="left")


def _gradients(aligned: pl.DataFrame) -> pl.DataFrame:
    first, second, cross, moved, size = map(pl.col, ("first", "second", "cross", "moved", "size"))
    keys = [*LAYER, SAMPLE]
    heads = (
        aligned.filter(site="pixels")
        .with_columns(size=first + pl.col("lam") ** 2 * second)  # ‖J1‖² + λ²‖J2‖²: as if at a right angle
        .group_by("series", "cell", *keys, maintain_order=True)
        .agg(pl.mean("first", "second", "cross", "moved", "size"))
    )
    found = _twins(heads, keys, ["moved"])
    base = pl.col("base_moved")
    quantities = {
        "ρ": _root(second, first),
        "cosθ": _cosine(cross, first, second),
        "γ": _root(first, base),
        RATIO: _log(moved, base),
        PARTS[0]: _log(first, base),
        PARTS[1]: _log(size, first),
        PARTS[2]: _log(moved, size),
    }
    return pl.concat([_named(found, pl.lit(name), value) for name, value in quantities.items()])


def lambdas(aligned: pl.DataFrame) -> pl.DataFrame:
    """Return λ by layer; it is the same for every image, so its interval is over the training seeds alone."""
    differential = aligned.filter(pl.col("series").is_in(["DiffViT", "DiffCLIP"]))
    seeds = differential.group_by(*LAYER, maintain_order=True).agg(pl.mean("lam"))
    found: list[tuple[Any, ...]] = []
    for key, block in seeds.group_by(PLACE[:3], maintain_order=True):
        lam = block["lam"].to_list()
        one = mean_over_seeds(lam) if len(lam) > 1 else None
        found.append((*key, "λ", block["lam"].mean(), one and one.low, one and one.high, None, len(lam), lam))
    schema: dict[str, Any] = {name: aligned.schema[name] for name in PLACE[:3]}
    schema |= {"quantity": pl.String} | ESTIMATES | {BY_SEED: pl.List(pl.Float64)}
    return pl.DataFrame(found, schema, orient="row")


def _lipschitz(rows: pl.DataFrame) -> pl.DataFrame:
    maps = rows.filter(pl.col("of") == "map", pl.col("estimator").is_in(ESTIMATORS))
    found = _twins(maps, [*LAYER, "estimator", SAMPLE], ["value"])
    return _named(found, pl.col("estimator"), _log(VALUE**2, pl.col("base_value") ** 2))


def _moved(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the cancellation of each block at the smallest ε."""
    own = rows.filter(pl.col("moved").is_not_null(), pl.col("eps") == pl.col("eps").min())
    apart = pl.col("positive") ** 2 + pl.col("negative") ** 2
    found = own.with_columns(layer=pl.col("stage") - 1)  # stage 0 is the embedding
    name = pl.col("perturbation").replace_strict(PERTURBATIONS, return_dtype=pl.String)
    return _named(found, name, _root(pl.col("moved") ** 2, apart))


def _named(found: pl.DataFrame, quantity: pl.Expr, value: pl.Expr) -> pl.DataFrame:
    named = found.with_columns(quantity=quantity)
    return named.select(*LAYER, SAMPLE, "cell", "quantity", value=value.over([*LAYER, "quantity"]))
