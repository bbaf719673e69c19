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

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | those of Figure 3(c) | seconds a model beside Figure 3(c) |

antiphase study run theory-radius --profile laptop
"""

import polars as pl

from antiphase.studies.cells import Radius
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import difference, estimates, mean, over
from antiphase.studies.figures import Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.radius_values import (
    CORRECTED,
    LIPSCHITZ,
    MARGIN,
    MEASURED,
    PRINTED,
    QUANTITIES,
    VALUE,
    beyond,
    ratios,
)
from antiphase.studies.papers.robustness.show import each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study


def cells(profile: Profile) -> list[Cell]:
    """Margins, Lipschitz constants, gradients of the maps and the nearest adversarial example of both models."""
    own = bench(profile)
    both = twins(profile, own.depths)
    return all_cells(
        [Radius(model=model, data=model.data, limit=own.few) for model in both],
        [own.sense_of(model, "alignment") for model in both],
        [own.nearest(model) for model in both],
    )


def draw(rows: RowsByTable) -> Artefact:
    """The ratio of the radii by depth, measured and predicted, and radii that an attack refutes."""
    found = estimates(ratios(rows), ["data", "depth", "layer", "quantity"], VALUE, kind="number")
    found = found.sort("depth", "layer", maintain_order=True)
    refuted = estimates(beyond(rows), ["data", "series", "depth", "radius"], VALUE)
    tables = [
        _ratio_table(block, str(data)) for (data,), block in found.group_by("data", maintain_order=True)
    ]
    tables += [_refuted(block, str(data)) for (data,), block in refuted.group_by("data", maintain_order=True)]
    return Artefact([_by_depth(found)], tables)


def _by_depth(found: pl.DataFrame) -> Plot:
    last = found.filter(
        pl.col("layer") == pl.col("depth") - 1, pl.col("quantity").is_in([MEASURED, CORRECTED, PRINTED])
    )
    shown = last.with_columns(x=pl.col("depth").cast(pl.Float64), series="quantity")
    panels = [
        Panel(
            str(data),
            "depth",
            "R(DiffViT) / R(ViT)",
            block.select("series", "x", "value", "low", "high", "n", "seeds"),
            level=1.0,
        )
        for (data,), block in shown.group_by("data", maintain_order=True)
    ]
    caption = (
        "Estimated radius of DiffViT relative to ViT's, measured and by equation (6) of the last layer. Below 1 "
        f"DiffViT's is smaller. Equation (6) claims that the measured ratio lies above. Bands: 95 % over {over(last)}."
    )
    return Plot("theory-radius", caption, tuple(panels))


def _ratio_table(block: pl.DataFrame, data: str) -> Table:
    order = pl.col("quantity").cast(pl.Enum(QUANTITIES))
    row = pl.format("depth {}, layer {}", "depth", pl.col("layer") + 1)
    return table_of(
        block.sort("depth", "layer", order),
        row,
        pl.col("quantity"),
        f"theory-radius-{data}",
        f"Estimated radii, DiffViT / ViT, {data}",
        index="layer",
        percent=False,
        digits=3,
    )


def _refuted(block: pl.DataFrame, data: str) -> Table:
    row, title = (
        pl.format("{}, depth {}", "series", "depth"),
        "Images with an adversarial example within the radius",
    )
    name = f"theory-radius-refuted-{data}"
    return table_of(block.sort("depth", maintain_order=True), row, pl.col("radius"), name, f"{title}, {data}")


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Appendix B, at depth 1."""
    return each_data(ratios(rows).filter(depth=1), _claims)


def _claims(found: pl.DataFrame) -> list[Claim]:
    def apart(first: str, second: str) -> list[Check]:
        estimate = difference(found, {"quantity": first}, {"quantity": second}, VALUE)
        return [Check(f"R(DiffViT) / R(ViT), {first} − {second}", estimate, "")]

    def of_mean(quantity: str, value: pl.Expr, what: str) -> list[Check]:
        return [Check(what, mean(found, {"quantity": quantity}, value), "")]

    return [
        Claim(
            "da-shrinks-the-radius",
            "Appendix B",
            "The estimated radius of a one-layer DiffViT is smaller than ViT's.",
            of_mean(MEASURED, 1.0 - VALUE, "1 − R(DiffViT) / R(ViT)"),
        ),
        Claim(
            "da-raises-the-margin",
            "Appendix B",
            "Differential attention modestly increases margins: Δm > 1.",
            of_mean(MARGIN, VALUE - 1.0, "Δm − 1"),
        ),
        Claim(
            "da-raises-the-constant",
            "Appendix B",
            "Differential attention raises the logits' Lipschitz constant.",
            of_mean(LIPSCHITZ, VALUE - 1.0, "L(DiffViT) / L(ViT) − 1"),
        ),
        Claim(
            "theorem-5-as-printed",
            "Theorem 5, equation (6)",
            "The ratio of radii is at least that of equation (6).",
            apart(MEASURED, PRINTED),
        ),
        Claim(
            "theorem-5-corrected",
            "Theorem 5, corrected",
            "The ratio of radii is at least that of equation (6) with −2λρ·cosθ inside the root.",
            apart(MEASURED, CORRECTED),
        ),
    ]


study = Study(
    "theory-radius",
    "robustness",
    "Appendix B",
    "Estimated radii and equation (6)",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
