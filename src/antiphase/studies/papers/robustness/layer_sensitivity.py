"""Section 4: what makes a layer of DiffViT more sensitive than the same layer of ViT, and what cancels."""

from typing import Any

import polars as pl

from antiphase.statistics.intervals import mean_over_seeds
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, above, apart, each_data
from antiphase.studies.estimation import SAMPLE, SEED, Kind, estimates, over, trend
from antiphase.studies.figures import BY_SEED, ESTIMATES, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

LAYER = ["data", "depth", SEED, "layer"]
PLACE = ["data", "depth", "layer", "quantity"]
LAYER_NAME = pl.format("layer {}", pl.col("layer") + 1)
VALUE = pl.col("value")
RATIO = "gradients, Theorem 2"
PARTS = ("A1 alone, γ", "size of A2, ρ", "angle, cosθ")
FACTORS = ("λ", "ρ", "cosθ", "γ")
ESTIMATORS = ("sampled maximum", "sampled mean", "power iteration", "gradient ascent")
PERTURBATIONS = {"noise": "uniform noise", "pgd": "PGD"}
MARGIN = 0.05  # of a ratio or its logarithm: 5 %


def cells(profile: Profile) -> list[Cell]:
    """Alignment and Lipschitz constants of both models of every depth, perturbations of DiffViT."""
    own = bench(profile)
    return all_cells(
        [own.sense_of(model, part) for model in twins(profile, None) for part in ("alignment", "lipschitz")],
        [own.sense_of(model, "depth") for model in twins(profile, None, ["diffvit"])],
    )


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


def draw(rows: RowsByTable) -> Artefact:
    """Draw the quantities of Theorem 2, the parts of the ratio, the ratio as predicted and measured, cancellation."""
    means = pl.concat([lambdas(rows["alignment"]), _estimated(values(rows))])
    means = means.sort("depth", "layer", maintain_order=True)
    moves, log = tuple(PERTURBATIONS.values()), "ln(DiffViT / ViT)"
    bands = f"95 % over {over(means)}"

    def bars(name: str, quantities: tuple[str, ...], axis: str, caption: str, **style: Any) -> Plot:
        """Return a panel for each data set and depth: bars of each quantity, layer by layer."""
        shown = _chosen(means, quantities).with_columns(series="quantity")
        if axis != log:
            shown = shown.with_columns(pl.col("value", "low", "high") - 1.0)
        labels, style = ("layer", axis), {"kind": "bar", "level": 0.0, **style}
        drawn = panels(shown, "depth {depth}, {data}", pl.col("layer") + 1, labels, **style)
        return Plot(name, f"{caption} Whiskers: {bands}.", drawn)

    def listed(name: str, quantities: tuple[str, ...], title: str) -> Any:
        shown = _chosen(means, quantities)
        place = pl.format("depth {}, {}", "depth", LAYER_NAME)
        if shown["data"].n_unique() > 1:
            place = pl.format("{}, {}", "data", place)
        return tables(shown, title, name, place, "quantity", index="layer", percent=False, digits=3)

    lines = _chosen(means, FACTORS)
    lines = lines.with_columns(series=pl.format("DiffViT, depth {}", "depth"))
    drawn = [
        panel
        for data in lines["data"].unique(maintain_order=True)
        for name in FACTORS
        for panel in panels(
            lines.filter(data=data, quantity=name), "{quantity}, {data}", pl.col("layer") + 1, ("layer", name)
        )
    ]
    caption = (
        "λ, ρ = ‖J2‖ / ‖J1‖, cosθ between J1 and J2, and γ = ‖J1‖ / ‖J_base‖, J by the pixels. "
        f"Bands: {bands}; λ is the same for every image."
    )
    plots = [
        Plot("layer-factors", caption, tuple(drawn)),
        bars(
            "layer-parts",
            (RATIO, *PARTS),
            log,
            "The logarithm of ‖J_DA‖ / ‖J_base‖ by Theorem 2 and its three parts, which add up to it, layer by layer. "
            "Above 0, DiffViT's map is the more sensitive one.",
        ),
        bars(
            "layer-prediction",
            (RATIO, *ESTIMATORS),
            log,
            "The ratio of gradients (Theorem 2) and the ratios of local Lipschitz estimates of the same maps. Lemma 2 "
            "says that the first bounds the others from above.",
        ),
        bars(
            "layer-cancellation",
            moves,
            "cancellation − 1",
            "How much further A1 − λ·A2 moves under a perturbation of ε = 1/255 than two maps that move independently. "
            "Below 0 the subtraction cancels, above 0 it adds up.",
            percent=True,
        ),
    ]
    shown = [
        *listed("layer-factors", FACTORS, "λ, ρ, cosθ and γ by layer"),
        *listed("layer-parts", (RATIO, *PARTS, *ESTIMATORS), f"{log} and its parts, by layer"),
        *listed("layer-cancellation", moves, "Cancellation by block, ε = 1/255"),
    ]
    return Artefact([plot for plot in plots if plot.panels], shown)


def _chosen(means: pl.DataFrame, quantities: tuple[str, ...]) -> pl.DataFrame:
    return pl.concat([means.filter(quantity=quantity) for quantity in quantities])


def _estimated(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every quantity, with its interval within the quantity's range."""
    sizes, cosine = rows["quantity"].is_in(["ρ", "γ", *PERTURBATIONS.values()]), rows["quantity"] == "cosθ"
    kinds: list[tuple[pl.Series, Kind]] = [
        (sizes, "size"),
        (cosine, "difference"),
        (~sizes & ~cosine, "number"),
    ]
    return pl.concat([estimates(rows.filter(which), PLACE, VALUE, kind) for which, kind in kinds])


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Section 4 about a layer, and consequences."""
    return each_data(values(rows), _claims)


def _claims(rows: pl.DataFrame) -> list[Claim]:
    depths, moves = sorted(rows["depth"].unique()), PERTURBATIONS.values()

    def over_zero(quantity: str, what: str, value: pl.Expr = VALUE) -> list[Check]:
        return above(rows.filter(quantity=quantity), what, value, depth=depths)

    def larger(first: str, second: str, what: str) -> list[Check]:
        return apart(rows, "quantity", first, second, VALUE, what, depth=depths)

    falls = [
        Check(
            f"fitted fall of what is left over log2 depth, {depths[0]} to {depths[-1]}, {name}",
            trend(rows, "depth", {"quantity": name}, -VALUE, scale="log2"),
            "",
        )
        for name in moves
    ]
    statements = {
        "gradient-above-vit": (
            "Section 4.1, Theorem 3",
            "At every depth the maps of DiffViT's layers have larger gradients than those of ViT's.",
            over_zero(RATIO, "ln(‖J_DA‖ / ‖J_base‖)"),
        ),
        "angle-amplifies": (
            "Section 4.1, Theorem 1",
            "At every depth the angle between the two gradients raises the sensitivity of DiffViT's layers.",
            over_zero(PARTS[2], "the angle's part"),
        ),
        "angle-before-size": (
            NOT_IN_PAPER,
            "The angle adds more to the sensitivity of DiffViT's layers than the size of A2's gradient.",
            larger(PARTS[2], PARTS[1], "the angle's part − the part of A2's size"),
        ),
        "lemma-2": (
            "Section 4.1, Lemma 2",
            "Averaged over layers, the ratio of gradients is an upper bound of that of local Lipschitz constants.",
            larger(RATIO, "power iteration", "ln(‖J_DA‖ / ‖J_base‖) − ln(L_DA / L_base), power iteration"),
        ),
        "subtraction-cancels": (
            "Section 4.2",
            "At every depth the subtraction cancels part of what a perturbation of 1/255 does to the two maps.",
            [check for name in moves for check in over_zero(name, f"1 − cancellation, {name}", 1.0 - VALUE)],
        ),
        "cancels-more-when-deep": (
            "Section 4.2",
            "The deeper the DiffViT, the more the subtraction cancels in its layers.",
            falls,
        ),
    }
    return [
        Claim(name, source, words, checks, MARGIN) for name, (source, words, checks) in statements.items()
    ]


LAYER_SENSITIVITY = Study(
    "layer-sensitivity",
    "robustness",
    "Section 4",
    "What makes a layer sensitive, and what cancels",
    """What makes a layer of DiffViT more sensitive than the same layer of ViT, and whether the subtraction cancels.

The paper (Section 4) gives no numbers for this. It derives ‖J_DA‖ / ‖J_base‖ = γ·√(1 + λ²ρ² − 2λρ·cosθ) (Theorem 2),
with ρ = ‖J2‖ / ‖J1‖ and γ = ‖J1‖ / ‖J_base‖, finds a ratio above 1 just where cosθ < (1 + λ²ρ² − γ⁻²) / (2λρ) (Theorem
3), bounds the ratio of local Lipschitz constants by it (Lemma 2), and says that the subtraction attenuates
perturbations, more so in deeper models (Section 4.2). J are Jacobians by the pixels; Lipschitz estimates are within
8/255, cancellation is at 1/255.

In logarithms the ratio is an exact sum of three parts: ln γ (the gradient of A1 alone), ½·ln(1 + λ²ρ²) (the size of A2)
and the rest (the angle). Cancellation is ‖ΔA1 − λ·ΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²): below 1 the two changes cancel, above 1
they add up. All ratios are of root mean squares over images and heads.

An earlier measurement to compare with (Fashion-MNIST, 96 wide, 6 heads, 8 epochs, 3 seeds, 64 images, ε = 1/255):

| depth, layer | ln ratio | ln γ | by ρ | by cosθ | cancellation, noise | cancellation, PGD |
|---|---|---|---|---|---|---|
| 1, 1 | 0.046 [−0.054, 0.146] | −0.250 | 0.281 | 0.015 | 1.013 [0.998, 1.028] | 1.054 [1.002, 1.106] |
| 2, 1 | −0.031 [−0.322, 0.260] | −0.362 | 0.291 | 0.040 | 1.041 [1.005, 1.076] | 1.071 [1.032, 1.110] |
| 4, 4 | −0.183 [−0.413, 0.048] | −0.505 | 0.282 | 0.040 | 1.040 [1.027, 1.053] | 1.050 [1.002, 1.097] |
""",
    cells,
    draw,
    claims,
    settings,
)
