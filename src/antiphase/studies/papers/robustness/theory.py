"""Section 4.2 and Appendix B: equation (5), Theorem 4, Corollary 1 and the estimated radii of equation (6)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl
import torch

from antiphase.sensitivity.depth import crossover
from antiphase.sensitivity.layer_estimates import RADIUS_PARTS, RATIOS, layer_parts, radius_parts
from antiphase.sensitivity.theory import estimated_radius
from antiphase.statistics.intervals import linearised
from antiphase.studies import ASR, SAMPLE, SEED, Check, Radius, TrainVit, above, apart, difference, estimates
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Plot, panels, tables
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import PAPER, RobustnessBench, bench, measured, slow_study, twins
from antiphase.studies.papers.robustness.layers import LAYER_NAME, PERTURBATIONS
from antiphase.studies.papers.robustness.success_rates import DEPTH
from antiphase.studies.spec import Cell, Profile, RowsByTable
from antiphase.terminal import eps_label

ALPHA, KEPT, LIPSCHITZ, BOUND, OBSERVED = QUANTITIES = ("ᾱ", "signal kept", "L̄", "ᾱ·L̄", "observed")
VALUE = pl.col("value")
SMALL = 1 / 255
_NAMED = pl.format("{}, {}", "series", DEPTH)
_MODEL = ["data", "depth", "series", SEED, "perturbation", SAMPLE]
_LINES = {BOUND: "bound", OBSERVED: "observed"}
_NUMBERS: dict[str, Any] = {"percent": False, "digits": 3}


def _depth_cells(profile: Profile) -> list[Cell]:
    sizes, both = bench(profile), twins(profile, None)
    branches = [sizes.sense_of(model, "branches") for model in twins(profile, None, ["diffvit"])]
    return [*measured(both, partial(sizes.sense_of, part="depth")), *branches, *map(sizes.attack, both)]


def layers(rows: RowsByTable) -> pl.DataFrame:
    """Return the logarithms of α, of the kept signal, of L and of the growth of every block."""

    def share(part: str, whole: str) -> pl.Expr:
        one, other = (pl.col(name).pow(2).sum().sqrt() for name in (part, whole))
        return (one / other).log()

    named = pl.format("{}, {}", pl.col("perturbation").replace_strict(PERTURBATIONS, return_dtype=pl.String), IN_255THS)
    paths, branches = (rows[table].with_columns(perturbation=named) for table in ("depth", "branches"))
    shares = branches.group_by(*_MODEL, stage=pl.col("layer") + 1).agg(
        share=share("moved", "positive"), kept=share("clean_moved", "clean_positive")
    )
    paths = paths.filter(pl.col("stage") > 0)  # stage 0 is the embedding, no layer of F
    both = paths.join(shares, on=[*_MODEL, "stage"], how="left", maintain_order="left")
    standard = pl.when(pl.col("attention") == "softmax").then(0.0)
    factors = {
        ALPHA: standard.otherwise("share"),
        KEPT: standard.otherwise("kept"),
        LIPSCHITZ: pl.col("lipschitz").log(),
        OBSERVED: pl.col("gain").log(),
    }
    # without models whose branches are not measured yet
    blocks = both.select(*_MODEL, "stage", **factors).drop_nulls(ALPHA)
    return blocks.with_columns((pl.col(ALPHA) + pl.col(LIPSCHITZ)).alias(BOUND))


def per_layer(blocks: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of geometric means over the layers of each model, one row for each quantity."""
    means = blocks.group_by(_MODEL, maintain_order=True).agg(pl.mean(*QUANTITIES))
    long = means.unpivot(QUANTITIES, index=_MODEL, variable_name="quantity")
    constant = (pl.col("series") == "ViT") & pl.col("quantity").is_in([ALPHA, KEPT])  # 1: not an estimate
    return long.filter(~constant)


def by_stage(blocks: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of the products over the first d layers: what equation (5) allows, and what is observed."""
    sums = blocks.sort("stage").with_columns(pl.col(QUANTITIES).cum_sum().over(_MODEL, order_by="stage"))
    return sums.unpivot(QUANTITIES, index=[*_MODEL, "stage"], variable_name="quantity")


def small(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the perturbations of 1/255."""
    return rows.filter(pl.col("perturbation").str.ends_with(f" {eps_label(SMALL)}"))


def titled(rows: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Return the rows of each perturbation, and of each data set if there are several, with a title."""
    keys = ["perturbation", *(["data"] if rows["data"].n_unique() > 1 else [])]
    return [(", ".join(map(str, key)), block) for key, block in rows.group_by(keys, maintain_order=True)]


def crossovers(rows: RowsByTable, values: pl.DataFrame) -> dict[str, str]:
    """Return where DiffViT falls below ViT, as equation (5) predicts and as the growth and the attacks show."""

    def first(block: pl.DataFrame, value: pl.Expr, **where: Any) -> str:
        ends = {}
        for depth in sorted(block["depth"].unique()):
            one, two = ({"series": series, "depth": depth, **where} for series in ("DiffViT", "ViT"))
            if estimate := difference(block, one, two, value):
                ends[depth] = (estimate.low, estimate.high)
        depth = crossover(ends)
        return f"depth {depth}" if depth is not None else f"none among depths {', '.join(map(str, ends))}"

    return {
        f"Crossover {words}, {title}": first(block, VALUE, quantity=quantity)
        for title, block in titled(small(values))
        for quantity, words in ((BOUND, "predicted by equation (5)"), (OBSERVED, "seen in the growth"))
    } | {
        f"Crossover seen in the success rate of PGD at 1/255, {data}": first(block, ASR, eps=SMALL)
        for (data,), block in rows["attack"].group_by("data", maintain_order=True)
    }


def _draw_depth(rows: RowsByTable) -> Artefact:
    blocks = layers(rows)
    values = per_layer(blocks)
    means = estimates(values, ["data", "perturbation", "quantity", "series", "depth"], VALUE, kind="number")
    means = means.sort("depth", maintain_order=True).drop(BY_SEED)
    factors = means.with_columns(pl.col("value", "low", "high").exp())
    order, row = pl.col("quantity").cast(pl.Enum(QUANTITIES)), _NAMED
    listed, drawn = [], []
    for number, (title, block) in enumerate(titled(factors.sort("depth", "series", order, maintain_order=True))):
        words = f"Equation (5) by depth, geometric means per layer, {title}"
        listed += tables(block, words, f"theory-depth-{number}", row, "quantity", **_NUMBERS)
    for title, block in titled(small(factors)):
        for name in (ALPHA, LIPSCHITZ, BOUND, OBSERVED):
            points, labels = block.filter(quantity=name), ("depth", name)
            drawn += panels(points, f"{name}, {title}", "depth", labels, level=1.0)
    lines = pl.col("quantity").is_in(list(_LINES))
    powers = pl.col("value", "low", "high") * pl.col("depth") / math.log(10)
    deepest = small(blocks).filter(pl.col("depth") == pl.col("depth").max())
    keys = ["data", "perturbation", "quantity", "series", "stage"]
    within = estimates(by_stage(deepest).filter(lines), keys, VALUE / math.log(10), kind="number")
    within = within.drop(BY_SEED).sort("stage", maintain_order=True)
    plots = [
        PAPER.plot("theory-depth-factors", drawn, columns=4),
        _growth("theory-depth-growth", means.filter(lines).with_columns(powers), "depth", "depth"),
        _growth("theory-depth-blocks", within, "stage", "block", depth=deepest["depth"].max()),
    ]
    notes = [f"{words}: {depth}." for words, depth in crossovers(rows, values).items()]
    return Artefact(plots, listed, notes=[PAPER.words["notes"]["no-threshold"], *notes])


def _growth(name: str, means: pl.DataFrame, column: str, label: str, **values: Any) -> Plot:
    lines, drawn = pl.format("{}, {}", "series", pl.col("quantity").replace_strict(_LINES)), []
    for title, block in titled(means.with_columns(series=lines)):
        drawn += panels(block, title, column, (label, "log10 of the growth"), level=0.0)
    return PAPER.plot(name, drawn, **values)


def _depth_checks(rows: RowsByTable) -> Checks:
    values = per_layer(layers(rows))
    depths = sorted(values["depth"].unique())
    kinds = small(values)["perturbation"].unique(maintain_order=True).to_list()
    diffvit = values.filter(series="DiffViT")
    every: dict[str, Any] = {"perturbation": kinds, "depth": depths}

    def below_1(quantity: str, words: str) -> list[Check]:
        return above(diffvit.filter(quantity=quantity), words, -VALUE, **every)

    def models(quantity: str, words: str, first: str, second: str, **levels: Any) -> list[Check]:
        block, words = values.filter(quantity=quantity), f"ln {words}({first}) − ln {words}({second})"
        return apart(block, "series", first, second, VALUE, words, **(every | levels))

    def crossed(quantity: str, words: str) -> list[Check]:
        shallow = models(quantity, words, "DiffViT", "ViT", depth=depths[:1])
        return shallow + models(quantity, words, "ViT", "DiffViT", depth=depths[-1:])

    quantities = partial(apart, diffvit, "quantity", value=VALUE, **every)
    return {
        "subtraction-removes": below_1(ALPHA, "−ln ᾱ"),
        "noise-before-signal": quantities(KEPT, ALPHA, what="ln(signal kept) − ln ᾱ"),
        "locally-more-sensitive": models(LIPSCHITZ, "L̄", "DiffViT", "ViT"),
        "attenuated": below_1(BOUND, "−ln(ᾱ·L̄)"),
        "perturbations-shrink": below_1(OBSERVED, "−ln growth"),
        "bound-holds": quantities(BOUND, OBSERVED, what="ln(ᾱ·L̄) − ln growth"),
        "bound-crosses": crossed(BOUND, "ᾱ·L̄"),
        "growth-crosses": crossed(OBSERVED, "growth"),
    }


THEORY_DEPTH = slow_study("theory-depth", _depth_cells, _draw_depth, _depth_checks)


MARGIN, CONSTANT, MEASURED = "Δm", "L ratio", "measured"
CORRECTED, PRINTED = "equation (6), corrected", "equation (6), as printed"
_NAMES = {"margin": MARGIN, "constant": CONSTANT, "measured": MEASURED, "corrected": CORRECTED, "printed": PRINTED}
_TWINS = ["data", "depth", SEED]


def radius_cells(sizes: RobustnessBench, models: Sequence[TrainVit]) -> list[Cell]:
    """Return radii, gradients and nearest adversarial images of models."""
    radii = [Radius(model=model, data=model.data, limit=sizes.few) for model in models]
    return radii + measured(models, partial(sizes.sense_of, part="alignment"), sizes.nearest)


def ratios(rows: RowsByTable) -> pl.DataFrame:
    """Return Δm, L_DA / L_base and the ratio of radii, measured and by each layer, linearised in each image."""
    types = dict.fromkeys((*_TWINS, "layer", SAMPLE, "quantity", "value"), pl.Int64)
    types |= {"data": pl.String, "quantity": pl.String, "value": pl.Float64}
    frames, radii = [pl.DataFrame(schema=types)], rows["radius"].partition_by("series", *_TWINS, as_dict=True)
    aligned = rows["alignment"].partition_by("series", *_TWINS, as_dict=True)
    for (series, *key), radius in radii.items():
        pair = [("DiffViT", *key), ("ViT", *key)]
        if series != "DiffViT" or pair[1] not in radii or not set(pair) <= set(aligned):
            continue
        parts = radius_parts(layer_parts(*(aligned[twin] for twin in pair)), radius, radii[pair[1]])
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            numbers = block.select(RADIUS_PARTS).to_numpy()
            values = {quantity: pl.Series(linearised(numbers, RATIOS[name])) for name, quantity in _NAMES.items()}
            ids = dict(zip((*_TWINS, "layer"), (*key, layer), strict=True))
            frame = block.select(*(pl.lit(one, types[name]).alias(name) for name, one in ids.items()), SAMPLE, **values)
            frames.append(frame.unpivot(index=[*ids, SAMPLE], variable_name="quantity").select(list(types)))
    return pl.concat(frames)


def beyond(rows: RowsByTable) -> pl.DataFrame:
    """Return whether CW found an adversarial example within the estimated radius of each image."""
    keys = ["data", "series", "depth", SEED, SAMPLE]
    distance = pl.when(pl.col("prediction") != pl.col("clean_prediction")).then("distance")
    attacked = rows["attack"].select(*keys, distance=distance)
    both = rows["radius"].join(attacked, on=keys, maintain_order="left")  # images that were attacked
    margin, constant, slope = (torch.tensor(both[name].to_numpy()) for name in ("margin", "lipschitz", "slope"))
    radii = {
        "m / L, as printed": estimated_radius(margin, constant, of="margin"),
        "m / (√2·L)": estimated_radius(margin, constant, of="logits"),
        "m / ‖∂m/∂x‖": estimated_radius(margin, slope, of="margin"),
    }
    near = [both.with_columns(radius=pl.lit(name), reach=radius.numpy()) for name, radius in radii.items()]
    value = (pl.col("reach") > pl.col("distance")).fill_null(value=False).cast(pl.Float64)
    return pl.concat(near).select(*keys, "radius", value=value)


def draw_radii(rows: RowsByTable) -> Artefact:
    """Draw the ratio of radii over depth; tables of its parts, and of images broken within the radius."""
    means = estimates(ratios(rows), ["data", "depth", "layer", "quantity"], VALUE, kind="number")
    order = pl.col("quantity").cast(pl.Enum(_NAMES.values()))
    means = means.drop(BY_SEED).sort("depth", "layer", order, maintain_order=True)
    refuted = estimates(beyond(rows), ["data", "series", "depth", "radius"], VALUE).sort("depth", maintain_order=True)
    title, row = "Estimated radii, DiffViT / ViT, {data}", pl.format("{}, {}", DEPTH, LAYER_NAME)
    listed = tables(means, title, "theory-radius-{data}", row, "quantity", index="layer", **_NUMBERS)
    title, row = "Images with an adversarial example within the radius, {data}", _NAMED
    listed += tables(refuted, title, "theory-radius-refuted-{data}", row, "radius")
    last = means.filter(pl.col("layer") == pl.col("depth") - 1)
    last = last.filter(pl.col("quantity").is_in([MEASURED, CORRECTED, PRINTED]))
    drawn = panels(last.with_columns(series="quantity"), "{data}", "depth", ("depth", "R(DiffViT) / R(ViT)"), level=1.0)
    return Artefact([PAPER.plot("theory-radius", drawn)], listed)


def radius_checks(rows: RowsByTable) -> Checks:
    """Check radius, margin and constant of the models of one layer, and equation (6) in both forms."""
    values = ratios(rows).filter(depth=1)
    ratio = "R(DiffViT) / R(ViT)"
    more = partial(apart, values, "quantity", MEASURED, value=VALUE)
    return {
        "da-shrinks-the-radius": above(values, f"1 − {ratio}", 1.0 - VALUE, quantity=MEASURED),
        "da-raises-the-margin": above(values, "Δm − 1", VALUE - 1.0, quantity=MARGIN),
        "da-raises-the-constant": above(values, "L(DiffViT) / L(ViT) − 1", VALUE - 1.0, quantity=CONSTANT),
        "theorem-5-as-printed": more(PRINTED, what=f"{ratio}, {MEASURED} − {PRINTED}"),
        "theorem-5-corrected": more(CORRECTED, what=f"{ratio}, {MEASURED} − {CORRECTED}"),
    }


THEORY_RADIUS = slow_study(
    "theory-radius", lambda profile: radius_cells(bench(profile), twins(profile, None)), draw_radii, radius_checks
)
