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

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 124, those of Figure 3(d) | not run at this size |

antiphase study run layer-sensitivity --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import Kind, difference, estimates, mean, over, trend
from antiphase.studies.figures import BY_SEED, Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.layer_values import (
    ESTIMATORS,
    PARTS,
    PERTURBATIONS,
    PLACE,
    RATIO,
    VALUE,
    lambdas,
    values,
)
from antiphase.studies.papers.robustness.show import each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

MARGIN = 0.05  # of a ratio or its logarithm: 5 %
FACTORS = ("λ", "ρ", "cosθ", "γ")


def cells(profile: Profile) -> list[Cell]:
    """Alignment and Lipschitz constants of both models of every depth, perturbations of DiffViT."""
    own = bench(profile)
    both = twins(profile, own.depths)
    return all_cells(
        [own.sense_of(model, part) for model in both for part in ("alignment", "lipschitz")],
        [own.sense_of(model, "depth") for model in twins(profile, own.depths, ["diffvit"])],
    )


def draw(rows: RowsByTable) -> Artefact:
    """The quantities of Theorem 2, the parts of the ratio, the ratio as predicted and measured, cancellation."""
    found = pl.concat([lambdas(rows["alignment"]), _estimated(values(rows))])
    found = found.sort("depth", "layer", maintain_order=True).with_columns(x=pl.col("layer") + 1.0)
    moves, log = tuple(PERTURBATIONS.values()), "ln(DiffViT / ViT)"
    beyond = found.with_columns(pl.col("value", "low", "high") - 1.0)
    plots = [
        _factors(found),
        _bars(
            found,
            "layer-parts",
            (RATIO, *PARTS),
            log,
            "The logarithm of ‖J_DA‖ / ‖J_base‖ by Theorem 2 and its three parts, which add up to it, layer by layer. "
            f"Above 0, DiffViT's map is the more sensitive one. Whiskers: 95 % over {over(found)}.",
        ),
        _bars(
            found,
            "layer-prediction",
            (RATIO, *ESTIMATORS),
            log,
            "The ratio of gradients (Theorem 2) and the ratios of local Lipschitz estimates of the same maps. Lemma 2 "
            f"says that the first bounds the others from above. Whiskers: 95 % over {over(found)}.",
        ),
        _bars(
            beyond,
            "layer-cancellation",
            moves,
            "cancellation − 1",
            "How much further A1 − λ·A2 moves under a perturbation of ε = 1/255 than two maps that move independently. "
            f"Below 0 the subtraction cancels, above 0 it adds up. Whiskers: 95 % over {over(found)}.",
            percent=True,
        ),
    ]
    tables = [
        _table(found, "layer-factors", FACTORS, "λ, ρ, cosθ and γ by layer"),
        _table(found, "layer-parts", (RATIO, *PARTS, *ESTIMATORS), f"{log} and its parts, by layer"),
        _table(found, "layer-cancellation", moves, "Cancellation by block, ε = 1/255"),
    ]
    return Artefact([plot for plot in plots if plot.panels], tables)


def _estimated(found: pl.DataFrame) -> pl.DataFrame:
    """Return the mean of every quantity, with its interval within the quantity's range."""
    sizes, cosine = found["quantity"].is_in(["ρ", "γ", *PERTURBATIONS.values()]), found["quantity"] == "cosθ"
    parts: list[tuple[pl.Series, Kind]] = [
        (sizes, "size"),
        (cosine, "difference"),
        (~sizes & ~cosine, "number"),
    ]
    return pl.concat([estimates(found.filter(which), PLACE, VALUE, kind) for which, kind in parts])


def _factors(found: pl.DataFrame) -> Plot:
    """Return a panel for each of λ, ρ, cosθ and γ, a line for each depth."""
    shown = found.with_columns(series=pl.format("DiffViT, depth {}", "depth"))
    panels = [
        Panel(f"{name}, {data}", "layer", name, _points(shown.filter(data=data, quantity=name)))
        for data in shown["data"].unique(maintain_order=True)
        for name in FACTORS
    ]
    caption = (
        "λ, ρ = ‖J2‖ / ‖J1‖, cosθ between J1 and J2, and γ = ‖J1‖ / ‖J_base‖, J by the pixels. "
        f"Bands: 95 % over {over(found)}; λ is the same for every image."
    )
    return Plot("layer-factors", caption, tuple(panels))


def _bars(
    found: pl.DataFrame,
    name: str,
    quantities: tuple[str, ...],
    axis: str,
    caption: str,
    percent: bool = False,
) -> Plot:
    """Return a panel for each data set and depth: bars of each quantity, layer by layer."""
    shown = pl.concat([found.filter(quantity=each) for each in quantities]).rename({"quantity": "series"})
    panels = [
        Panel(f"depth {depth}, {data}", "layer", axis, _points(block), kind="bar", percent=percent, level=0.0)
        for (data, depth), block in shown.group_by(["data", "depth"], maintain_order=True)
    ]
    return Plot(name, caption, tuple(panels))


def _points(block: pl.DataFrame) -> pl.DataFrame:
    return block.select("series", "x", "value", "low", "high", "n", "seeds", BY_SEED)


def _table(found: pl.DataFrame, name: str, quantities: tuple[str, ...], title: str) -> Table:
    shown = pl.concat([found.filter(quantity=quantity) for quantity in quantities])
    place = pl.format("depth {}, layer {}", "depth", pl.col("layer") + 1)
    if shown["data"].n_unique() > 1:
        place = pl.format("{}, {}", "data", place)
    return table_of(shown, place, pl.col("quantity"), name, title, index="layer", percent=False, digits=3)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Section 4 about a layer, and consequences."""
    return each_data(values(rows), _claims)


def _claims(found: pl.DataFrame) -> list[Claim]:
    depths = sorted(found["depth"].unique())

    def above(quantity: str, what: str, value: pl.Expr = VALUE) -> list[Check]:
        own = found.filter(quantity=quantity)
        return [Check(f"{what}, depth {depth}", mean(own, {"depth": depth}, value), "") for depth in depths]

    def apart(first: str, second: str, what: str) -> list[Check]:
        return [
            Check(
                f"{what}, depth {depth}",
                difference(
                    found, {"depth": depth, "quantity": first}, {"depth": depth, "quantity": second}, VALUE
                ),
                "",
            )
            for depth in depths
        ]

    statements = {
        "gradient-above-vit": (
            "Section 4.1, Theorem 3",
            "At every depth the maps of DiffViT's layers have larger gradients than those of ViT's.",
            above(RATIO, "ln(‖J_DA‖ / ‖J_base‖)"),
        ),
        "angle-amplifies": (
            "Section 4.1, Theorem 1",
            "At every depth the angle between the two gradients raises the sensitivity of DiffViT's layers.",
            above(PARTS[2], "the angle's part"),
        ),
        "angle-before-size": (
            "not in the paper",
            "The angle adds more to the sensitivity of DiffViT's layers than the size of A2's gradient.",
            apart(PARTS[2], PARTS[1], "the angle's part − the part of A2's size"),
        ),
        "lemma-2": (
            "Section 4.1, Lemma 2",
            "Averaged over layers, the ratio of gradients is an upper bound of that of local Lipschitz constants.",
            apart(RATIO, "power iteration", "ln(‖J_DA‖ / ‖J_base‖) − ln(L_DA / L_base), power iteration"),
        ),
        "subtraction-cancels": (
            "Section 4.2",
            "At every depth the subtraction cancels part of what a perturbation of 1/255 does to the two maps.",
            [
                check
                for name in PERTURBATIONS.values()
                for check in above(name, f"1 − cancellation, {name}", 1.0 - VALUE)
            ],
        ),
        "cancels-more-when-deep": (
            "Section 4.2",
            "The deeper the DiffViT, the more the subtraction cancels in its layers.",
            [
                Check(
                    f"fitted fall of what is left over log2 depth, {depths[0]} to {depths[-1]}, {name}",
                    trend(found, "depth", {"quantity": name}, -VALUE, scale="log2"),
                    "",
                )
                for name in PERTURBATIONS.values()
            ],
        ),
    }
    return [
        Claim(name, source, words, checks, MARGIN) for name, (source, words, checks) in statements.items()
    ]


study = Study(
    "layer-sensitivity",
    "robustness",
    "Section 4",
    "What makes a layer sensitive, and what cancels",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
