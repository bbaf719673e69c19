"""Figures 3(d), 4, 5 and Section 4: Lipschitz estimates, gradients and cancellation by layer of DiffViT and ViT."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import polars as pl

from antiphase.statistics.intervals import mean_over_seeds
from antiphase.studies import BY_SEED, ESTIMATES, Artefact, Plot, Table, TrainVit, panels, tables
from antiphase.studies.cells.images import opposed
from antiphase.studies.claims import Check, above, apart, combinations, higher
from antiphase.studies.estimation import SAMPLE, SEED, Kind, contrast, difference, estimates, mean, share_above, trend
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import (
    PAPER,
    RobustnessBench,
    bench,
    clip_models,
    measured,
    slow_study,
    twins,
    vit_and_clip_settings,
)
from antiphase.studies.papers.robustness.success_rates import DEPTH
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


def sensitivity_cells(sizes: RobustnessBench, models: Sequence[TrainVit]) -> list[Cell]:
    """Return gradients and Lipschitz constants of models, and what noise and PGD leave behind in DiffViTs."""
    both = [sizes.sense_of(model, part) for model in models for part in ("alignment", "lipschitz")]
    return [*both, *(sizes.sense_of(model, "depth") for model in models if model.model == "diffvit")]


def values(rows: RowsByTable) -> pl.DataFrame:
    """Return every quantity of every layer of DiffViT for each training seed and image; ratios are linearised."""
    return pl.concat([_gradients(rows["alignment"]), _lipschitz(rows["lipschitz"]), _moved(rows["depth"])])


def _root(top: pl.Expr, bottom: pl.Expr) -> pl.Expr:
    """Return √(mean(top) / mean(bottom)), linearised in each image."""
    return (top.mean() / bottom.mean()).sqrt() * (1.0 + (top / top.mean() - bottom / bottom.mean()) / 2)


def _log(top: pl.Expr, bottom: pl.Expr) -> pl.Expr:
    """Return ½·ln(mean(top) / mean(bottom)), linearised in each image."""
    return ((top.mean() / bottom.mean()).log() + top / top.mean() - bottom / bottom.mean()) / 2


def cosine() -> pl.Expr:
    """Return mean(cross) / √(mean(first)·mean(second)) of these columns, linearised in each image."""
    cross, first, second = map(pl.col, ("cross", "first", "second"))
    scale = (first.mean() * second.mean()).sqrt()
    return (cross + cross.mean() * (1.0 - (first / first.mean() + second / second.mean()) / 2)) / scale


def _twins(rows: pl.DataFrame, keys: list[str], columns: list[str]) -> pl.DataFrame:
    """Return DiffViT's rows, with columns of the ViT of the same data, depth, seed and image."""
    base = rows.filter(series="ViT").select(*keys, *(pl.col(name).alias(f"base_{name}") for name in columns))
    return rows.filter(series="DiffViT").join(base, on=keys, maintain_order="left")


def _gradients(aligned: pl.DataFrame) -> pl.DataFrame:
    first, second, moved, size = map(pl.col, ("first", "second", "moved", "size"))
    keys = [*LAYER, SAMPLE]
    heads = (
        aligned.filter(site="pixels")
        .with_columns(size=first + pl.col("lam") ** 2 * second)  # ‖J1‖² + λ²‖J2‖²: as if at a right angle
        .group_by("series", "cell", *keys, maintain_order=True)
        .agg(pl.mean("first", "second", "cross", "moved", "size"))
    )
    pairs = _twins(heads, keys, ["moved"])
    base = pl.col("base_moved")
    quantities = {"ρ": _root(second, first), "cosθ": cosine(), "γ": _root(first, base), RATIO: _log(moved, base)}
    quantities |= {PARTS[0]: _log(first, base), PARTS[1]: _log(size, first), PARTS[2]: _log(moved, size)}
    return pl.concat([_named(pairs, pl.lit(name), value) for name, value in quantities.items()])


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
    pairs = _twins(maps, [*LAYER, "estimator", SAMPLE], ["value"])
    return _named(pairs, pl.col("estimator"), _log(VALUE**2, pl.col("base_value") ** 2))


def _moved(rows: pl.DataFrame) -> pl.DataFrame:
    moves = rows.filter(pl.col("moved").is_not_null(), pl.col("eps") == pl.col("eps").min())
    apart = pl.col("positive") ** 2 + pl.col("negative") ** 2
    layers = moves.with_columns(layer=pl.col("stage") - 1)  # stage 0 is the embedding
    name = pl.col("perturbation").replace_strict(PERTURBATIONS, return_dtype=pl.String)
    return _named(layers, name, _root(pl.col("moved") ** 2, apart))


def _named(frame: pl.DataFrame, quantity: pl.Expr, value: pl.Expr) -> pl.DataFrame:
    named = frame.with_columns(quantity=quantity)
    return named.select(*LAYER, SAMPLE, "cell", "quantity", value=value.over([*LAYER, "quantity"]))


def draw_sensitivity(rows: RowsByTable) -> Artefact:
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

    lines, drawn = chosen(FACTORS).with_columns(series=pl.format("DiffViT, depth {}", "depth")), []
    for data, name in product(lines["data"].unique(maintain_order=True), FACTORS):
        drawn += panels(lines.filter(data=data, quantity=name), "{quantity}, {data}", number, ("layer", name))
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
    blocks = {block["quantity"][0]: block for block in rows.partition_by("quantity", maintain_order=True)}
    return pl.concat(estimates(block, PLACE, VALUE, kinds.get(name, "number")) for name, block in blocks.items())


def sensitivity_checks(rows: RowsByTable) -> dict[str, list[Check]]:
    """Check the parts of Theorem 2 in every layer, Lemma 2, and what noise and PGD leave behind."""
    layers = values(rows)
    depths, moves = sorted(layers["depth"].unique()), PERTURBATIONS.values()

    def over_zero(quantity: str, words: str, value: pl.Expr = VALUE) -> list[Check]:
        return above(layers.filter(quantity=quantity), words, value, depth=depths)

    larger = partial(apart, layers, "quantity", value=VALUE, depth=depths)
    fall = f"fitted fall of what is left over log2 depth, {depths[0]} to {depths[-1]}"
    gradients, fitted = "ln(‖J_DA‖ / ‖J_base‖)", partial(trend, layers, "depth", value=-VALUE, scale="log2")
    cancels = (over_zero(name, f"1 − cancellation, {name}", 1.0 - VALUE) for name in moves)
    return {
        "gradient-above-vit": over_zero(RATIO, gradients),
        "angle-amplifies": over_zero(PARTS[2], "the angle's part"),
        "angle-before-size": larger(PARTS[2], PARTS[1], what="the angle's part − the part of A2's size"),
        "lemma-2": larger(RATIO, "power iteration", what=f"{gradients} − ln(L_DA / L_base), power iteration"),
        "subtraction-cancels": list(chain(*cancels)),
        "cancels-more-when-deep": [Check(f"{fall}, {name}", fitted(where={"quantity": name}), "") for name in moves],
    }


LAYER_SENSITIVITY = slow_study(
    "layer-sensitivity",
    lambda profile: sensitivity_cells(bench(profile), twins(profile, None)),
    draw_sensitivity,
    sensitivity_checks,
)


PAPERS, STEEPEST = ESTIMATORS[0], ESTIMATORS[2]
"""The paper's estimator of Lipschitz constants, and one near the supremum, with which its claims are tested again."""

_NUMBERS: dict[str, Any] = {"percent": False, "digits": 4}


def _of_maps(rows: RowsByTable) -> pl.DataFrame:
    return rows["lipschitz"].filter(pl.col("of") == "map")  # without the logits'


def _by_estimator(rows: RowsByTable, *keys: str) -> pl.DataFrame:
    """Return means over images, and over layers unless they are among the keys, in the order of ``ESTIMATORS``."""
    maps = pl.concat([_of_maps(rows).filter(estimator=name) for name in ESTIMATORS])
    return estimates(maps, keys, VALUE, kind="size")


def _draw_lipschitz(rows: RowsByTable) -> Artefact:
    means = _by_estimator(rows, "data", "estimator", "series", "depth").sort("depth", maintain_order=True)
    title = "{estimator}, {data}" if means["data"].n_unique() > 1 else "{estimator}"
    words = "Local Lipschitz estimate, mean over layers, {estimator}, {data}"
    plot = PAPER.plot("figure-3d", panels(means, title, "depth", ("depth", "Lipschitz estimate")))
    return Artefact([plot], tables(means, words, "lipschitz-{data}-{estimator}", "series", DEPTH, **_NUMBERS))


def _lipschitz_checks(rows: RowsByTable) -> Checks:
    maps = _of_maps(rows)
    depths = sorted(maps["depth"].unique())

    def rises(estimator: str) -> list[Check]:
        rise = trend(maps, "depth", {"series": "DiffViT", "estimator": estimator}, VALUE, "log2")
        return [Check(f"rise of L(DiffViT) from depth {depths[0]} to {depths[-1]}, {estimator}", rise, "")]

    more = partial(higher, maps, "DiffViT", than="ViT", value=VALUE, what="L", unit="")
    return {
        "lipschitz-rises": rises(PAPERS),
        "lipschitz-rises-truly": rises(STEEPEST),
        "lipschitz-above-vit": more(depth=depths, estimator=PAPERS),
    }


FIGURE_3D = slow_study(
    "figure-3d",
    lambda profile: measured(twins(profile, None), partial(bench(profile).sense_of, part="lipschitz")),
    _draw_lipschitz,
    _lipschitz_checks,
)


MODEL = ["data", "series", "depth", SEED]


def _layer_cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    differential = [*twins(profile, None, ["diffvit"]), *clip_models(profile, ["diffclip"])]
    made = [sizes.sense_of(model, "lipschitz") for model in [*twins(profile, None), *clip_models(profile)]]
    return [*made, *(sizes.sense_of(model, "alignment") for model in differential)]


def _draw_layers(rows: RowsByTable) -> Artefact:
    means = _by_estimator(rows, "data", "depth", "estimator", "series", "layer").drop(BY_SEED)
    sets = means.partition_by("data", maintain_order=True)
    means = pl.concat(block.sort("depth", "layer", maintain_order=True) for block in sets)
    several = means.filter(pl.col("layer").n_unique().over("data", "depth", "estimator") > 1)
    where, number = "{data}, depth {depth}, {estimator}", pl.col("layer") + 1
    claimed = several.filter(pl.col("estimator").is_in([PAPERS, STEEPEST]))
    drawn = panels(claimed, where, number, ("layer", "Lipschitz estimate"))
    lam = lambdas(rows["alignment"]).sort("data", "depth", "layer", maintain_order=True).drop(BY_SEED)
    lam = lam.with_columns(series=DEPTH)
    plots = [PAPER.plot("figure-4", drawn, columns=2)] if drawn else []
    plots.append(PAPER.plot("figure-4-lambda", panels(lam, "λ, {data}", number, ("layer", "λ"))))
    title, name = f"Lipschitz estimate by layer, {where}", "layers-{data}-{depth}-{estimator}"
    listed = tables(means, title, name, "series", LAYER_NAME, **_NUMBERS)
    row, style = pl.format("{}, {}", "data", "series"), {**_NUMBERS, "digits": 3}
    return Artefact(plots, listed + tables(lam, "λ by layer", "lambda-by-layer", row, LAYER_NAME, **style))


def spread(maps: pl.DataFrame) -> pl.DataFrame:
    """Return the standard deviation of an estimate over the layers, for each model and image."""
    return maps.group_by(*MODEL, SAMPLE, maintain_order=True).agg(value=VALUE.std(ddof=0))


def with_lambda(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows of attention maps with the mean λ of their layer; null without differential attention."""
    keys = [*MODEL, "layer"]
    lam = rows["alignment"].group_by(keys, maintain_order=True).agg(pl.mean("lam"))
    return _of_maps(rows).join(lam, on=keys, how="left", nulls_equal=True, maintain_order="left")


def excess(maps: pl.DataFrame) -> pl.DataFrame:
    """Return λ of the layer with the largest estimate, less the mean λ over the layers, for each model and image."""
    groups = maps.drop_nulls("lam").group_by(*MODEL, SAMPLE, maintain_order=True)
    return groups.agg(value=pl.col("lam").sort_by("value", "layer").last() - pl.col("lam").mean())


def _layer_checks(rows: RowsByTable) -> Checks:
    maps = with_lambda(rows)
    claims = {suffix: _steeper(maps.filter(estimator=one)) for one, suffix in ((PAPERS, ""), (STEEPEST, "-truly"))}
    return {f"{name}{suffix}": checks for suffix, some in claims.items() for name, checks in some.items() if checks}


def _steeper(maps: pl.DataFrame) -> Checks:
    spreads, differential = spread(maps), maps.filter(pl.col("series").is_in(["DiffViT", "DiffCLIP"]))
    excesses = excess(differential)
    steeper, larger, wider, calmer, than_vit = [], [], [], [], []
    for (series, depth), block in differential.group_by("series", "depth", maintain_order=True):
        base, words = str(series).removeprefix("Diff"), f", depth {depth}" if series == "DiffViT" else ""
        where = pl.col("depth").eq_missing(pl.lit(depth, pl.Int64))
        pair = ({"series": series}, {"series": base}, VALUE)
        steeper.append(Check(f"L of {series} − {base}{words}", difference(maps.filter(where), *pair), ""))
        if block["layer"].n_unique() > 1:
            wider.append(Check(f"spread of L, {series} − {base}{words}", difference(spreads.filter(where), *pair), ""))
            most = mean(excesses.filter(where, series=series), {}, VALUE)
            larger.append(Check(f"λ of the steepest layer − mean λ: {series}{words}", most, ""))
    if len(vits := differential.filter(series="DiffViT")):
        deep = vits.filter(depth=vits["depth"].max())
        last = int(deep["layer"].max() or 0)  # type: ignore[arg-type]
        words = f"L(layer 1) − L(layer {last + 1})"
        calmer = apart(deep, "layer", 0, last, VALUE, words)
        ends = [(1.0, "DiffViT", 0), (-1.0, "DiffViT", last), (-1.0, "ViT", 0), (1.0, "ViT", last)]
        groups = [(weight, {"series": series, "layer": layer}) for weight, series, layer in ends]
        fall = contrast(maps.filter(depth=deep["depth"][0]), groups, VALUE)
        than_vit = [Check(f"{words}, DiffViT − ViT", fall, "")]
    return {
        "da-is-steeper": steeper,
        "steepest-where-lambda-is-large": larger,
        "da-is-more-spread": wider,
        "later-layers-are-calmer": calmer,
        "calmer-than-vit": than_vit,
    }


FIGURE_4 = slow_study("figure-4", _layer_cells, _draw_layers, _layer_checks, vit_and_clip_settings)


SITES = ("pixels", "tokens")
CLEAN = "at x"
PERTURBED = {"noise": "at x + noise", "pgd": "at x + PGD"}
PLACES = (CLEAN, *PERTURBED.values())
BELOW = pl.col("opposed").cast(pl.Float64)


def _alignment_cells(profile: Profile) -> list[Cell]:
    models = [*twins(profile, None, ["diffvit"]), *clip_models(profile, ["diffclip"])]
    parts = ("alignment", "alignment-perturbed")
    return [bench(profile).sense_of(model, part) for model in models for part in parts]


def placed(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows at x and at x + ξ, with a column ``at`` that says which."""
    names = pl.col("perturbation").replace_strict(PERTURBED, return_dtype=pl.String)
    clean, perturbed = rows["alignment"], rows["alignment-perturbed"].with_columns(at=names)
    both = pl.concat([clean.with_columns(at=pl.lit(CLEAN)), perturbed], how="diagonal_relaxed")
    return both.filter(pl.col("site").is_in(SITES)).with_columns(opposed(both))


def draw_alignment(rows: RowsByTable) -> Artefact:
    """Draw a panel for each data set, site and place: the share of images and heads below zero, over the layers."""
    shares = estimates(placed(rows), ["data", "site", "at", "series", "depth", "layer"], BELOW).drop(BY_SEED)
    shares = shares.sort("depth", "layer", maintain_order=True)
    words = "Share of images and heads with cos(∇A1, ∇A2) < 0, by the {site}, {data}"
    row = pl.format("{}, {}, {}", "series", DEPTH, "at")
    listed = tables(shares, words, "alignment-{data}-{site}", row, LAYER_NAME)
    sites = shares.select("data", "site").unique(maintain_order=True).with_row_index("order")
    lines = shares.with_columns(series=DEPTH).join(sites, on=["data", "site"], maintain_order="left")
    lines = lines.sort("order", pl.col("at").cast(pl.Enum(PLACES)), maintain_order=True)
    labels, title = ("layer", "share with cos < 0"), "{at}, by the {site}, {data}"
    drawn = panels(lines, title, pl.col("layer") + 1, labels, percent=True, level=0.5)
    return Artefact([PAPER.plot("figure-5", drawn, columns=3)], listed)


def _alignment_checks(rows: RowsByTable) -> Checks:
    aligned = placed(rows)
    claims = {"": _opposed(aligned, tuple(PERTURBED.values())), "-at-x": _opposed(aligned, (CLEAN,))}
    vits, words = aligned.filter(series="DiffViT", site="pixels"), "share below 0, at x + PGD − at x"
    depths = sorted(vits["depth"].drop_nulls().unique())
    turned = apart(vits, "at", PERTURBED["pgd"], CLEAN, BELOW, words, "points", depth=depths) if depths else []
    named = {f"{name}{suffix}": checks for suffix, some in claims.items() for name, checks in some.items()}
    return named | ({"opposed-under-attack": turned} if turned else {})


def _opposed(aligned: pl.DataFrame, places: Sequence[str]) -> Checks:
    vits = aligned.filter(series="DiffViT")
    clip = aligned.filter(pl.col("series") == "DiffCLIP", pl.col("site") == "pixels")

    def dominates(**levels: Any) -> list[Check]:
        words, every = ("share below 0 − 50 %, depth {depth}, {site}, {at}", combinations({"at": places} | levels))
        return [Check(words.format(**one), share_above(vits, one, BELOW, 0.5)) for one in every]

    checks: dict[str, list[Check]] = {}
    if len(vits):
        checks["opposed-at-depth-1"] = dominates(site=SITES, depth=1)
        checks["opposed-everywhere"] = dominates(site="pixels", depth=sorted(vits["depth"].drop_nulls().unique()))
    if len(clip):
        last = int(clip["layer"].max() or 0)  # type: ignore[arg-type]
        words = f"share(layer 1) − share(layer {last + 1}), pixels"
        none = [Check(f"{words}, {place}", None) for place in places]
        first = apart(clip, "layer", 0, last, BELOW, words, "points", at=places) if last else none
        checks["opposed-first-in-diffclip"] = first
    return checks


_settings = partial(vit_and_clip_settings, variants=["diffclip"])
FIGURE_5 = slow_study("figure-5", _alignment_cells, draw_alignment, _alignment_checks, _settings)
