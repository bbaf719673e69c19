"""Section 4: what makes a layer of DiffViT more sensitive than the same layer of ViT, and what cancels."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl

from antiphase.statistics.intervals import mean_over_seeds
from antiphase.studies.claims import Check, above, apart
from antiphase.studies.estimation import SAMPLE, SEED, Kind, estimates, trend
from antiphase.studies.figures import BY_SEED, ESTIMATES, Artefact, Plot, Table, panels, tables
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import PAPER, all_cells, bench, twins, vit_study
from antiphase.studies.spec import Cell, Profile, RowsByTable

LAYER = ["data", "depth", SEED, "layer"]
PLACE = ["data", "depth", "layer", "quantity"]
LAYER_NAME = pl.format("layer {}", pl.col("layer") + 1)
VALUE = pl.col("value")
RATIO = "gradients, Theorem 2"
PARTS = ("A1 alone, γ", "size of A2, ρ", "angle, cosθ")
FACTORS = ("λ", "ρ", "cosθ", "γ")
ESTIMATORS = ("sampled maximum", "sampled mean", "power iteration", "gradient ascent")
PERTURBATIONS = {"noise": "uniform noise", "pgd": "PGD"}


def cells(profile: Profile) -> list[Cell]:
    """Alignment and Lipschitz constants of both models of every depth, perturbations of DiffViT."""
    sizes = bench(profile)
    return all_cells(
        [
            sizes.sense_of(model, part)
            for model in twins(profile, None)
            for part in ("alignment", "lipschitz")
        ],
        [sizes.sense_of(model, "depth") for model in twins(profile, None, ["diffvit"])],
    )


def values(rows: RowsByTable) -> pl.DataFrame:
    """Return every quantity of every layer of DiffViT, one row for each training seed and image.

    Ratios of means over the images are linearised: the values of the images average to the ratio, and their spread
    gives its variance, so that they can be averaged like other values.
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
    means: list[tuple[Any, ...]] = []
    for key, block in seeds.group_by(PLACE[:3], maintain_order=True):
        lam = block["lam"].to_list()
        one = mean_over_seeds(lam) if len(lam) > 1 else None
        means.append((*key, "λ", block["lam"].mean(), one and one.low, one and one.high, None, len(lam), lam))
    schema: dict[str, Any] = {name: aligned.schema[name] for name in PLACE[:3]}
    schema |= {"quantity": pl.String} | ESTIMATES | {BY_SEED: pl.List(pl.Float64)}
    return pl.DataFrame(means, schema, orient="row")


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


def draw(rows: RowsByTable) -> Artefact:
    """Draw the quantities of Theorem 2, the parts of the ratio, the ratio as predicted and measured, cancellation."""
    means = pl.concat([lambdas(rows["alignment"]), _estimated(values(rows))])
    means = means.sort("depth", "layer", maintain_order=True)
    moves, log, number = tuple(PERTURBATIONS.values()), "ln(DiffViT / ViT)", pl.col("layer") + 1

    def chosen(quantities: Sequence[str]) -> pl.DataFrame:
        return pl.concat([means.filter(quantity=quantity) for quantity in quantities])

    def bars(name: str, quantities: Sequence[str], axis: str, less: float = 0.0, **style: Any) -> Plot:
        """Return a panel for each data set and depth: bars of each quantity, layer by layer."""
        shown = chosen(quantities).with_columns(pl.col("value", "low", "high") - less, series="quantity")
        title, labels = "depth {depth}, {data}", ("layer", axis)
        return PAPER.plot(name, panels(shown, title, number, labels, kind="bar", level=0.0, **style))

    def listed(name: str, quantities: Sequence[str], title: str) -> list[Table]:
        shown, place = chosen(quantities), pl.format("depth {}, {}", "depth", LAYER_NAME)
        if shown["data"].n_unique() > 1:
            place = pl.format("{}, {}", "data", place)
        return tables(shown, title, name, place, "quantity", index="layer", percent=False, digits=3)

    lines = chosen(FACTORS).with_columns(series=pl.format("DiffViT, depth {}", "depth"))
    drawn = [
        panel
        for data in lines["data"].unique(maintain_order=True)
        for name in FACTORS
        for panel in panels(
            lines.filter(data=data, quantity=name), "{quantity}, {data}", number, ("layer", name)
        )
    ]
    plots = [
        PAPER.plot("layer-factors", drawn),
        bars("layer-parts", (RATIO, *PARTS), log),
        bars("layer-prediction", (RATIO, *ESTIMATORS), log),
        bars("layer-cancellation", moves, "cancellation − 1", less=1.0, percent=True),
    ]
    shown = [
        *listed("layer-factors", FACTORS, "λ, ρ, cosθ and γ by layer"),
        *listed("layer-parts", (RATIO, *PARTS, *ESTIMATORS), f"{log} and its parts, by layer"),
        *listed("layer-cancellation", moves, "Cancellation by block, ε = 1/255"),
    ]
    return Artefact([plot for plot in plots if plot.panels], shown)


def _estimated(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every quantity, with its interval within the quantity's range."""
    kinds: dict[str, Kind] = {"cosθ": "difference"}
    kinds |= dict.fromkeys(("ρ", "γ", *PERTURBATIONS.values()), "size")
    blocks: dict[Kind, list[pl.DataFrame]] = {"size": [], "difference": [], "number": []}
    for block in rows.partition_by("quantity", maintain_order=True):
        blocks[kinds.get(block["quantity"][0], "number")].append(block)
    return pl.concat(estimates(pl.concat(some), PLACE, VALUE, kind) for kind, some in blocks.items() if some)


def checks(rows: RowsByTable) -> Checks:
    """Check the claims of Section 4 about a layer, and consequences."""
    layers = values(rows)
    depths, moves = sorted(layers["depth"].unique()), PERTURBATIONS.values()

    def over_zero(quantity: str, words: str, value: pl.Expr = VALUE) -> list[Check]:
        return above(layers.filter(quantity=quantity), words, value, depth=depths)

    larger = partial(apart, layers, "quantity", value=VALUE, depth=depths)
    fall = f"fitted fall of what is left over log2 depth, {depths[0]} to {depths[-1]}"
    gradients = "ln(‖J_DA‖ / ‖J_base‖)"
    lipschitz = f"{gradients} − ln(L_DA / L_base), power iteration"
    return {
        "gradient-above-vit": over_zero(RATIO, gradients),
        "angle-amplifies": over_zero(PARTS[2], "the angle's part"),
        "angle-before-size": larger(PARTS[2], PARTS[1], what="the angle's part − the part of A2's size"),
        "lemma-2": larger(RATIO, "power iteration", what=lipschitz),
        "subtraction-cancels": [
            check for name in moves for check in over_zero(name, f"1 − cancellation, {name}", 1.0 - VALUE)
        ],
        "cancels-more-when-deep": [
            Check(f"{fall}, {name}", trend(layers, "depth", {"quantity": name}, -VALUE, scale="log2"), "")
            for name in moves
        ],
    }


LAYER_SENSITIVITY = vit_study("layer-sensitivity", cells, draw, checks, by_data=True)
