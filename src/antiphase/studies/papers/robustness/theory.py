"""Section 4.2: equation (5), Theorem 4 and Corollary 1 of the robustness paper, measured by depth."""

import math
from typing import Any

import polars as pl
import torch

from antiphase.budgets import eps_label
from antiphase.sensitivity.depth import crossover
from antiphase.sensitivity.layer_estimates import RADIUS_PARTS, RATIOS, layer_parts, radius_parts
from antiphase.sensitivity.theory import estimated_radius
from antiphase.statistics.intervals import linearised
from antiphase.studies.cells import Radius
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, above, apart, each_data
from antiphase.studies.estimation import ASR, SAMPLE, SEED, difference, estimates, over
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.layer_sensitivity import PERTURBATIONS
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

ALPHA, KEPT, LIPSCHITZ, BOUND, OBSERVED = "ᾱ", "signal kept", "L̄", "ᾱ·L̄", "observed"
QUANTITIES = (ALPHA, KEPT, LIPSCHITZ, BOUND, OBSERVED)
VALUE = pl.col("value")
SMALL = 1 / 255
_MODEL = ["data", "depth", "series", SEED, "perturbation", SAMPLE]
_LINES = {BOUND: "bound", OBSERVED: "observed"}
_NO_THRESHOLD = (
    "Corollary 1's D* solves (ᾱ·L̄_DA)^D = L̄_base^D. Only D = 0 does, unless the two bases are equal, so that fixed "
    "factors have no crossover. Those below are read off the models of all depths: the smallest depth from which on "
    "DiffViT's interval lies below ViT's, if an earlier one lies above."
)


def depth_cells(profile: Profile) -> list[Cell]:
    """Paths through both models of every depth, branches of DiffViT, PGD for the success rates."""
    own, both = bench(profile), twins(profile, None)
    return all_cells(
        [own.sense_of(model, "depth") for model in both],
        [own.sense_of(model, "branches") for model in twins(profile, None, ["diffvit"])],
        [own.attack(model) for model in both],
    )


def layers(rows: RowsByTable) -> pl.DataFrame:
    """Return the logarithms of α, of the kept signal, of L and of the growth of every block.

    Returns:
        Columns ``data, depth, series, training_seed, perturbation, sample, stage`` (from 1) and ``QUANTITIES``.
    """

    def norm(of: str) -> pl.Expr:
        return pl.col(of).pow(2).sum().sqrt()

    paths = _labelled(rows["depth"]).filter(pl.col("stage") > 0)  # stage 0 is the embedding, no layer of F
    shares = (
        _labelled(rows["branches"])
        .group_by(*_MODEL, stage=pl.col("layer") + 1)
        .agg(
            share=(norm("moved") / norm("positive")).log(),
            kept=(norm("clean_moved") / norm("clean_positive")).log(),
        )
    )
    both = paths.join(shares, on=[*_MODEL, "stage"], how="left", maintain_order="left")
    standard = pl.col("attention") == "softmax"
    factors = {
        ALPHA: pl.when(standard).then(0.0).otherwise("share"),
        KEPT: pl.when(standard).then(0.0).otherwise("kept"),
        LIPSCHITZ: pl.col("lipschitz").log(),
        OBSERVED: pl.col("gain").log(),
    }
    found = both.select(*_MODEL, "stage", **factors).drop_nulls(
        ALPHA
    )  # models whose branches are not measured yet
    return found.with_columns((pl.col(ALPHA) + pl.col(LIPSCHITZ)).alias(BOUND))


def per_layer(found: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of geometric means over the layers of each model, one row for each quantity.

    Returns:
        Columns ``data, depth, series, training_seed, perturbation, sample, quantity, value``.
    """
    means = found.group_by(_MODEL, maintain_order=True).agg(pl.mean(*QUANTITIES))
    found = means.unpivot(QUANTITIES, index=_MODEL, variable_name="quantity")
    constant = (pl.col("series") == "ViT") & pl.col("quantity").is_in([ALPHA, KEPT])  # 1: not an estimate
    return found.filter(~constant)


def by_stage(found: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of the products over the first d layers: what equation (5) allows, and what is observed."""
    sums = found.sort("stage").with_columns(pl.col(QUANTITIES).cum_sum().over(_MODEL, order_by="stage"))
    return sums.unpivot(QUANTITIES, index=[*_MODEL, "stage"], variable_name="quantity")


def small(found: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the perturbations of 1/255."""
    return found.filter(pl.col("perturbation").str.ends_with(f" {eps_label(SMALL)}"))


def titled(found: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Return the rows of each perturbation, and of each data set if there are several, with a title."""
    keys = ["perturbation", *(["data"] if found["data"].n_unique() > 1 else [])]
    groups = found.group_by(keys, maintain_order=True)
    return [(", ".join(map(str, key)), block) for key, block in groups]


def crossovers(rows: RowsByTable, values: pl.DataFrame) -> dict[str, str]:
    """Return where DiffViT falls below ViT, as equation (5) predicts and as the growth and the attacks show."""
    read = {}
    for title, block in titled(small(values)):
        for quantity, what in ((BOUND, "predicted by equation (5)"), (OBSERVED, "seen in the growth")):
            read[f"Crossover {what}, {title}"] = _crossover(block, VALUE, {"quantity": quantity})
    for (data,), own in rows["attack"].group_by("data", maintain_order=True):
        what = f"Crossover seen in the success rate of PGD at 1/255, {data}"
        read[what] = _crossover(own, ASR, {"eps": SMALL})
    return read


def _crossover(rows: pl.DataFrame, value: pl.Expr, where: dict[str, Any]) -> str:
    ends = {}
    for depth in sorted(rows["depth"].unique()):
        one, two = ({"series": series, "depth": depth, **where} for series in ("DiffViT", "ViT"))
        if (estimate := difference(rows, one, two, value)) is not None:
            ends[depth] = (estimate.low, estimate.high)
    first = crossover(ends)
    return f"depth {first}" if first is not None else f"none among depths {', '.join(map(str, ends))}"


def _labelled(rows: pl.DataFrame) -> pl.DataFrame:
    """Name each perturbation with its ε."""
    kind = pl.col("perturbation").replace_strict(PERTURBATIONS, return_dtype=pl.String)
    return rows.with_columns(perturbation=pl.format("{}, {}", kind, IN_255THS))


def draw_depth(rows: RowsByTable) -> Artefact:
    """Draw the factors by depth, the bound and the growth, the same within the deepest model, and the crossovers."""
    by_layer = layers(rows)
    values = per_layer(by_layer)
    means = estimates(values, ["data", "perturbation", "quantity", "series", "depth"], VALUE, kind="number")
    means = means.sort("depth", maintain_order=True).drop(BY_SEED)
    factors = means.with_columns(pl.col("value", "low", "high").exp())
    order = pl.col("quantity").cast(pl.Enum(QUANTITIES))
    row, style = pl.format("{}, depth {}", "series", "depth"), {"percent": False, "digits": 3}
    listed = []
    for number, (title, block) in enumerate(titled(factors)):
        words = f"Equation (5) by depth, geometric means per layer, {title}"
        shown = block.sort("depth", "series", order, maintain_order=True)
        listed += tables(shown, words, f"theory-depth-{number}", row, "quantity", **style)
    drawn = [
        panel
        for title, block in titled(small(factors))
        for quantity in (ALPHA, LIPSCHITZ, BOUND, OBSERVED)
        for panel in panels(
            block.filter(quantity=quantity), f"{quantity}, {title}", "depth", ("depth", quantity), level=1.0
        )
    ]
    caption = (
        "The factors of equation (5) by depth, geometric means over the layers: the share ᾱ of a perturbation that "
        "the subtraction leaves, the operator norm L̄ of a block, their product, and the growth that is "
        f"observed per block. Below 1 a perturbation is attenuated. Bands: 95 % over {over(means)}."
    )
    plots = [
        Plot("theory-depth-factors", caption, tuple(drawn), columns=4),
        _growth(means),
        _within(by_layer),
    ]
    notes = [_NO_THRESHOLD, *(f"{what}: {depth}." for what, depth in crossovers(rows, values).items())]
    return Artefact(plots, listed, notes=notes)


def _grown(means: pl.DataFrame, name: str, column: str, label: str, caption: str) -> Plot:
    """Return a panel for each perturbation: the bound and the growth of both models, as powers of ten."""
    lines = pl.format("{}, {}", "series", pl.col("quantity").replace_strict(_LINES))
    drawn = [
        panel
        for title, block in titled(means.with_columns(series=lines))
        for panel in panels(block, title, column, (label, "log10 of the growth"), level=0.0)
    ]
    return Plot(name, caption, tuple(drawn))


def _growth(means: pl.DataFrame) -> Plot:
    """Draw the bound (ᾱ·L̄)^D and the growth over the depth."""
    times = pl.col("depth") / math.log(10)
    shown = means.filter(pl.col("quantity").is_in(list(_LINES)))
    caption = (
        "What equation (5) allows a perturbation to grow to over all layers, (ᾱ·L̄)^D, and what it grows to, "
        "‖Δ(D)‖ / ‖Δ(0)‖, as powers of ten. The distance between them is how loose the bound is. "
        f"Bands: 95 % over {over(means)}."
    )
    shown = shown.with_columns(pl.col("value", "low", "high") * times)
    return _grown(shown, "theory-depth-growth", "depth", "depth", caption)


def _within(by_layer: pl.DataFrame) -> Plot:
    """Draw the bound and the growth after each block of the deepest models."""
    deepest = small(by_layer).filter(pl.col("depth") == pl.col("depth").max())
    products = by_stage(deepest).filter(pl.col("quantity").is_in(list(_LINES)))
    keys = ["data", "perturbation", "quantity", "series", "stage"]
    sums = estimates(products, keys, VALUE / math.log(10), kind="number").drop(BY_SEED)
    depth = deepest["depth"].max()
    caption = f"The same after each block of the models of depth {depth}. Bands: 95 % over {over(sums)}."
    return _grown(sums.sort("stage", maintain_order=True), "theory-depth-blocks", "stage", "block", caption)


def depth_claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Section 4.2, and what they are made of."""
    return each_data(per_layer(layers(rows)), _depth_claims)


def _depth_claims(values: pl.DataFrame) -> list[Claim]:
    depths = sorted(values["depth"].unique())
    kinds = small(values)["perturbation"].unique(maintain_order=True).to_list()
    diffvit = values.filter(series="DiffViT")
    every = {"perturbation": kinds, "depth": depths}

    def quantities(first: str, second: str, what: str) -> list[Check]:
        return apart(diffvit, "quantity", first, second, VALUE, what, **every)  # pyright: ignore[reportArgumentType]

    def models(quantity: str, first: str, second: str, what: str, **levels: Any) -> list[Check]:
        own = values.filter(quantity=quantity)
        words = f"ln {what}({first}) − ln {what}({second})"
        return apart(own, "series", first, second, VALUE, words, **(every | levels))  # pyright: ignore

    def crossed(quantity: str, what: str) -> list[Check]:
        return [
            *models(quantity, "DiffViT", "ViT", what, depth=depths[:1]),
            *models(quantity, "ViT", "DiffViT", what, depth=depths[-1:]),
        ]

    section, alpha, bound = "Section 4.2", diffvit.filter(quantity=ALPHA), diffvit.filter(quantity=BOUND)
    statements = {
        "subtraction-removes": (
            f"{section}, Theorem 4",
            "At every depth the subtraction removes part of a perturbation of 1/255: ᾱ < 1.",
            above(alpha, "−ln ᾱ", -VALUE, **every),  # pyright: ignore[reportArgumentType]
        ),
        "noise-before-signal": (
            NOT_IN_PAPER,
            "The subtraction removes a larger share of the perturbation than of the signal.",
            quantities(KEPT, ALPHA, "ln(signal kept) − ln ᾱ"),
        ),
        "locally-more-sensitive": (
            "Corollary 1, premise",
            "DiffViT's blocks have larger local Lipschitz constants than ViT's at every depth.",
            models(LIPSCHITZ, "DiffViT", "ViT", "L̄"),
        ),
        "attenuated": (
            f"{section}, equation (5)",
            "ᾱ·L̄ < 1 in DiffViT: perturbations are attenuated with depth.",
            above(bound, "−ln(ᾱ·L̄)", -VALUE, **every),  # pyright: ignore[reportArgumentType]
        ),
        "bound-holds": (
            f"{section}, equation (5)",
            "Perturbations of 1/255 grow by less than ᾱ·L̄ per block in DiffViT.",
            quantities(BOUND, OBSERVED, "ln(ᾱ·L̄) − ln growth"),
        ),
        "bound-crosses": (
            "Corollary 1",
            "ᾱ·L̄ is larger in DiffViT than in ViT at the smallest depth and smaller at the largest.",
            crossed(BOUND, "ᾱ·L̄"),
        ),
        "growth-crosses": (
            f"{section}, Interpretation",
            "Perturbations of 1/255 grow more in DiffViT than in ViT at the smallest depth and less at the largest.",
            crossed(OBSERVED, "growth"),
        ),
    }
    return [Claim(name, source, words, checks) for name, (source, words, checks) in statements.items()]


THEORY_DEPTH = Study(
    "theory-depth",
    "robustness",
    "Section 4.2",
    "Noise cancellation by depth",
    """Does noise cancellation explain how perturbations grow with depth? Equation (5) and Corollary 1, measured.

The paper (Section 4.2) gives no numbers for this. It bounds a perturbation after D layers by

    ‖F(x + ξ) − F(x)‖ ≤ ∏ α(d)·L(d)·‖ξ‖ = (ᾱ·L̄)^D·‖ξ‖   (5)

with α(d) ∈ (0, 1] "the average reduction factor from noise cancellation at layer d", 1 for standard attention, and L(d)
the layer's local Lipschitz constant. Here the two factors are estimated independently of each other and of the growth:

- α(d) = ‖Δ((A1 − λ·A2)·V)‖ / ‖Δ(A1·V)‖ of the perturbation that reaches layer d: the change with the subtraction over
  the change without it. The paper does not define α. This is 1 without subtraction and |1 − λ| for noise that both maps
  share, as the text has it; the alternative, relative to branches that change independently, is below 1 also where the
  subtraction enlarges the change. See :mod:`antiphase.sensitivity.depth`.
- L(d) = ‖J‖₂ of block d at the clean tokens, by power iteration. The subtraction is part of the block, so that α·L
  counts it twice, as the paper does.

f(d) is a whole block with its residual path and MLP, since only blocks compose; ξ is the perturbation of the first
block's tokens. ᾱ and L̄ are geometric means over layers, images and seeds; their intervals come from logarithms.

The signal is measured as well: ‖(A1 − λ·A2)·V‖ / ‖A1·V‖ of the clean input. Rows of A1 − λ·A2 sum to 1 − λ, so that
the subtraction shrinks everything, and the norm behind the heads undoes that. Only if ᾱ is smaller than the signal's
ratio does the subtraction make the perturbation smaller relative to the signal.

Corollary 1 calls the D* that solves (ᾱ·L̄_DA)^D* = L̄_base^D* a crossover. Only D* = 0 solves it, unless the two bases
are equal and every D does: of two exponentials the same one is smaller at every depth. A crossover needs factors that
change with the depth of the model. So the predicted one is read off the models of all depths, with the factors of each,
like the one that is seen: the smallest depth from which on DiffViT lies below ViT, if it lies above at a smaller one.
""",
    depth_cells,
    draw_depth,
    depth_claims,
    settings,
)


MARGIN, CONSTANT, MEASURED = "Δm", "L ratio", "measured"
CORRECTED, PRINTED = "equation (6), corrected", "equation (6), as printed"
_NAMES = {
    "margin": MARGIN,
    "constant": CONSTANT,
    "measured": MEASURED,
    "corrected": CORRECTED,
    "printed": PRINTED,
}
RADII = tuple(_NAMES.values())
VALUE = pl.col("value")
_TWINS = ["data", "depth", SEED]


def radius_cells(profile: Profile) -> list[Cell]:
    """Margins, Lipschitz constants, gradients of the maps and the nearest adversarial example of both models."""
    own, both = bench(profile), twins(profile, None)
    return all_cells(
        [Radius(model=model, data=model.data, limit=own.few) for model in both],
        [own.sense_of(model, "alignment") for model in both],
        [own.nearest(model) for model in both],
    )


def ratios(rows: RowsByTable) -> pl.DataFrame:
    """Return Δm, L_DA / L_base and the ratio of radii, measured and by each layer, linearised in each image.

    Returns:
        Columns ``data, depth, training_seed, layer, sample, quantity, value``.
    """
    radius, aligned = rows["radius"], rows["alignment"]
    found = []
    for key, own in radius.filter(series="DiffViT").group_by(_TWINS, maintain_order=True):
        same = dict(zip(_TWINS, key, strict=True))
        one, two = (aligned.filter(series=series, **same) for series in ("DiffViT", "ViT"))
        twin = radius.filter(series="ViT", **same)
        if any(frame.is_empty() for frame in (twin, one, two)):
            continue
        parts = radius_parts(layer_parts(one, two), own, twin)
        constant = [pl.lit(value).alias(name) for name, value in same.items()]
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            numbers = block.select(RADIUS_PARTS).to_numpy()
            for name, quantity in _NAMES.items():
                frame = pl.DataFrame({SAMPLE: block[SAMPLE], "value": linearised(numbers, RATIOS[name])})
                found.append(frame.with_columns(*constant, layer=pl.lit(layer), quantity=pl.lit(quantity)))
    columns = [*_TWINS, "layer", SAMPLE, "quantity", "value"]
    if not found:
        types = {"data": pl.String, "quantity": pl.String, "value": pl.Float64}
        return pl.DataFrame(schema={name: types.get(name, pl.Int64) for name in columns})
    return pl.concat(found).select(columns)


def beyond(rows: RowsByTable) -> pl.DataFrame:
    """Return whether CW found an adversarial example within the estimated radius of each image.

    Returns:
        Columns ``data, series, depth, training_seed, sample, radius`` (as printed, of the logits, of the margin) and
        ``value``, 0 or 1.
    """
    keys = ["data", "series", "depth", SEED, SAMPLE]
    attacked = rows["attack"].select(
        *keys, distance=pl.when(pl.col("prediction") != pl.col("clean_prediction")).then("distance")
    )
    both = rows["radius"].join(attacked, on=keys, maintain_order="left")  # images that were attacked
    margin, constant, slope = (
        torch.tensor(both[name].to_numpy()) for name in ("margin", "lipschitz", "slope")
    )
    radii = {
        "m / L, as printed": estimated_radius(margin, constant, of="margin"),
        "m / (√2·L)": estimated_radius(margin, constant, of="logits"),
        "m / ‖∂m/∂x‖": estimated_radius(margin, slope, of="margin"),
    }
    near = [both.with_columns(radius=pl.lit(name), reach=radius.numpy()) for name, radius in radii.items()]
    value = (pl.col("reach") > pl.col("distance")).fill_null(value=False).cast(pl.Float64)
    return pl.concat(near).select(*keys, "radius", value=value)


def draw_radii(rows: RowsByTable) -> Artefact:
    """Draw the ratio of the radii by depth, measured and predicted, and radii that an attack refutes."""
    means = estimates(ratios(rows), ["data", "depth", "layer", "quantity"], VALUE, kind="number").drop(
        BY_SEED
    )
    means = means.sort("depth", "layer", maintain_order=True)
    refuted = estimates(beyond(rows), ["data", "series", "depth", "radius"], VALUE)
    order = pl.col("quantity").cast(pl.Enum(RADII))
    by_layer = means.sort("depth", "layer", order, maintain_order=True)
    row, title = (
        pl.format("depth {}, layer {}", "depth", pl.col("layer") + 1),
        "Estimated radii, DiffViT / ViT, {data}",
    )
    style = {"index": "layer", "percent": False, "digits": 3}
    listed = tables(by_layer, title, "theory-radius-{data}", row, "quantity", **style)
    row = pl.format("{}, depth {}", "series", "depth")
    title = "Images with an adversarial example within the radius, {data}"
    refuted = refuted.sort("depth", maintain_order=True)
    listed += tables(refuted, title, "theory-radius-refuted-{data}", row, "radius")
    last = means.filter(
        pl.col("layer") == pl.col("depth") - 1, pl.col("quantity").is_in([MEASURED, CORRECTED, PRINTED])
    )
    labels = ("depth", "R(DiffViT) / R(ViT)")
    drawn = panels(last.with_columns(series="quantity"), "{data}", "depth", labels, level=1.0)
    caption = (
        "Estimated radius of DiffViT relative to ViT's, measured and by equation (6) of the last layer. Below 1 "
        f"DiffViT's is smaller. Equation (6) claims that the measured ratio lies above. Bands: 95 % over {over(last)}."
    )
    return Artefact([Plot("theory-radius", caption, drawn)], listed)


def radius_claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Appendix B, at depth 1."""
    return each_data(ratios(rows).filter(depth=1), _radius_claims)


def _radius_claims(values: pl.DataFrame) -> list[Claim]:
    statements = {
        "da-shrinks-the-radius": (
            "Appendix B",
            "The estimated radius of a one-layer DiffViT is smaller than ViT's.",
            above(values, "1 − R(DiffViT) / R(ViT)", 1.0 - VALUE, quantity=MEASURED),
        ),
        "da-raises-the-margin": (
            "Appendix B",
            "Differential attention modestly increases margins: Δm > 1.",
            above(values, "Δm − 1", VALUE - 1.0, quantity=MARGIN),
        ),
        "da-raises-the-constant": (
            "Appendix B",
            "Differential attention raises the logits' Lipschitz constant.",
            above(values, "L(DiffViT) / L(ViT) − 1", VALUE - 1.0, quantity=CONSTANT),
        ),
        "theorem-5-as-printed": (
            "Theorem 5, equation (6)",
            "The ratio of radii is at least that of equation (6).",
            apart(
                values, "quantity", MEASURED, PRINTED, VALUE, f"R(DiffViT) / R(ViT), {MEASURED} − {PRINTED}"
            ),
        ),
        "theorem-5-corrected": (
            "Theorem 5, corrected",
            "The ratio of radii is at least that of equation (6) with −2λρ·cosθ inside the root.",
            apart(
                values,
                "quantity",
                MEASURED,
                CORRECTED,
                VALUE,
                f"R(DiffViT) / R(ViT), {MEASURED} − {CORRECTED}",
            ),
        ),
    }
    return [Claim(name, source, words, checks) for name, (source, words, checks) in statements.items()]


THEORY_RADIUS = Study(
    "theory-radius",
    "robustness",
    "Appendix B",
    "Estimated radii and equation (6)",
    """Margin over Lipschitz constant: does equation (6) predict how much DiffViT's radius differs from ViT's?

The paper (Appendix B) gives no numbers for this. It takes the radius R(x) = m(x) / L(x), the margin of the logits over
their local Lipschitz constant, and derives (Theorem 5)

    R_DA / R_base ≥ Δm / (γ·√(1 + λ²ρ²) − 2λρ·cosθ)   (6)

with Δm = m_DA / m_base and the γ, ρ and θ of one attention layer (Theorem 2). Three points differ here:

- −2λρ·cosθ belongs into the root (Theorem 2). Both forms are shown: as printed and corrected.
- For L of the vector of logits the radius is m / (√2·L). The factor cancels in the ratio, not in the radius.
- The inequality follows from no argument: L over a ball is at least the gradient's norm at its centre, and a ratio of
  two bounds bounds no ratio. So the ratio is compared with its prediction, in both directions.

m is the margin of the predicted class, which the attacks here attack too; the paper takes that of the true class, the
same for every image that is classified correctly. L is the operator norm ‖∂logits/∂x‖₂ by power iteration, a lower
bound of the constant over any ball. These radii are *estimated*, not certified: the last table says for how many images
an attack (CW) finds an adversarial example within the radius. R_DA / R_base, Δm and L_DA / L_base are geometric means
over images, averaged over seeds; γ, ρ and cosθ are built from inner products averaged over images and heads, J by the
pixels. θ is the angle between J1 and λ·J2, which also covers a λ below 0. The theorem is about models that differ in
one layer, which those of depth 1 do; of deeper ones the last layer's prediction is drawn and every layer's is in the
table.
""",
    radius_cells,
    draw_radii,
    radius_claims,
    settings,
)
