"""Appendix B: margin over Lipschitz constant, and whether equation (6) predicts the ratio of radii."""

import polars as pl
import torch

from antiphase.sensitivity.layer_estimates import RADIUS_PARTS, RATIOS, layer_parts, radius_parts
from antiphase.sensitivity.theory import estimated_radius
from antiphase.statistics.intervals import linearised
from antiphase.studies.cells import Radius
from antiphase.studies.checks import above, apart, each_data
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import SAMPLE, SEED, estimates, over
from antiphase.studies.figures import BY_SEED, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

MARGIN, LIPSCHITZ, MEASURED = "Δm", "L ratio", "measured"
CORRECTED, PRINTED = "equation (6), corrected", "equation (6), as printed"
_NAMES = {
    "margin": MARGIN,
    "constant": LIPSCHITZ,
    "measured": MEASURED,
    "corrected": CORRECTED,
    "printed": PRINTED,
}
QUANTITIES = tuple(_NAMES.values())
VALUE = pl.col("value")
_TWINS = ["data", "depth", SEED]


def cells(profile: Profile) -> list[Cell]:
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
        same = [pl.col(name) == value for name, value in zip(_TWINS, key, strict=True)]
        twin, (one, two) = (
            radius.filter(*same, series="ViT"),
            (aligned.filter(*same, series=s) for s in ("DiffViT", "ViT")),
        )
        if twin.is_empty() or one.is_empty() or two.is_empty():
            continue
        parts = radius_parts(layer_parts(one, two), own, twin)
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            numbers = block.select(RADIUS_PARTS).to_numpy()
            found += [
                pl.DataFrame(
                    {SAMPLE: block[SAMPLE], "value": linearised(numbers, RATIOS[name])}
                ).with_columns(
                    *(pl.lit(each).alias(column) for column, each in zip(_TWINS, key, strict=True)),
                    layer=pl.lit(layer),
                    quantity=pl.lit(quantity),
                )
                for name, quantity in _NAMES.items()
            ]
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


def draw(rows: RowsByTable) -> Artefact:
    """Draw the ratio of the radii by depth, measured and predicted, and radii that an attack refutes."""
    means = estimates(ratios(rows), ["data", "depth", "layer", "quantity"], VALUE, kind="number").drop(
        BY_SEED
    )
    means = means.sort("depth", "layer", maintain_order=True)
    refuted = estimates(beyond(rows), ["data", "series", "depth", "radius"], VALUE)
    order = pl.col("quantity").cast(pl.Enum(QUANTITIES))
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


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Appendix B, at depth 1."""
    return each_data(ratios(rows).filter(depth=1), _claims)


def _claims(values: pl.DataFrame) -> list[Claim]:
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
            above(values, "L(DiffViT) / L(ViT) − 1", VALUE - 1.0, quantity=LIPSCHITZ),
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
    cells,
    draw,
    claims,
    settings,
)
