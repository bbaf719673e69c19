"""Does noise cancellation explain how perturbations grow with depth? Equation (5), Theorem 4 and Corollary 1, measured.

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

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | those of Figure 3(a) | seconds a model beside Figure 3(a) |

antiphase study run theory-depth --profile laptop
"""

import math
from collections.abc import Sequence

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import difference, estimates, mean, over
from antiphase.studies.figures import Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.depth_values import (
    ALPHA,
    BOUND,
    KEPT,
    LIPSCHITZ,
    OBSERVED,
    QUANTITIES,
    VALUE,
    by_stage,
    crossovers,
    layers,
    per_layer,
    small,
    titled,
)
from antiphase.studies.papers.robustness.show import each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

_POINTS = ("series", "x", "value", "low", "high", "n", "seeds")
_LINES = {BOUND: "bound", OBSERVED: "observed"}


def cells(profile: Profile) -> list[Cell]:
    """Paths through both models of every depth, branches of DiffViT, PGD for the success rates."""
    own = bench(profile)
    both = twins(profile, own.depths)
    return all_cells(
        [own.sense_of(model, "depth") for model in both],
        [own.sense_of(model, "branches") for model in twins(profile, own.depths, ["diffvit"])],
        [own.attack(model) for model in both],
    )


def draw(rows: RowsByTable) -> Artefact:
    """The factors by depth, the bound and the growth, the same within the deepest model, and the crossovers."""
    found = layers(rows)
    values = per_layer(found)
    means = estimates(values, ["data", "perturbation", "quantity", "series", "depth"], VALUE, kind="number")
    means = means.sort("depth", maintain_order=True)
    cells = [
        _table(block, f"theory-depth-{at}", f"Equation (5) by depth, geometric means per layer, {title}")
        for at, (title, block) in enumerate(titled(means))
    ]
    return Artefact(
        [_factors(means), _growth(means), _within(found)],
        cells,
        notes=[_NO_THRESHOLD, *(f"{what}: {at}." for what, at in crossovers(rows, values).items())],
    )


_NO_THRESHOLD = (
    "Corollary 1's D* solves (ᾱ·L̄_DA)^D = L̄_base^D. Only D = 0 does, unless the two bases are equal, so that fixed "
    "factors have no crossover. Those below are read off the models of all depths: the smallest depth from which on "
    "DiffViT's interval lies below ViT's, if an earlier one lies above."
)


def _factors(means: pl.DataFrame) -> Plot:
    """Draw each factor over the depth: a line for each model."""
    shown = _exponential(means).with_columns(x=pl.col("depth").cast(pl.Float64))
    panels = [
        Panel(
            f"{quantity}, {title}",
            "depth",
            quantity,
            block.filter(quantity=quantity).select(_POINTS),
            level=1.0,
        )
        for title, block in titled(small(shown))
        for quantity in (ALPHA, LIPSCHITZ, BOUND, OBSERVED)
    ]
    caption = (
        "The factors of equation (5) by depth, geometric means over the layers: the share ᾱ of a perturbation that "
        "the subtraction leaves, the operator norm L̄ of a block, their product, and the growth that is "
        f"observed per block. Below 1 a perturbation is attenuated. Bands: 95 % over {over(means)}."
    )
    return Plot("theory-depth-factors", caption, tuple(panels), columns=4)


def _growth(means: pl.DataFrame) -> Plot:
    """Draw the bound (ᾱ·L̄)^D and the growth over the depth, both as powers of ten."""
    times = pl.col("depth") / math.log(10)
    shown = means.filter(pl.col("quantity").is_in(list(_LINES))).with_columns(
        (pl.col("value", "low", "high") * times),
        x=pl.col("depth").cast(pl.Float64),
        series=pl.format("{}, {}", "series", pl.col("quantity").replace_strict(_LINES)),
    )
    panels = [
        Panel(title, "depth", "log10 of the growth", block.select(_POINTS), level=0.0)
        for title, block in titled(shown)
    ]
    caption = (
        "What equation (5) allows a perturbation to grow to over all layers, (ᾱ·L̄)^D, and what it grows to, "
        "‖Δ(D)‖ / ‖Δ(0)‖, as powers of ten. The distance between them is how loose the bound is. "
        f"Bands: 95 % over {over(means)}."
    )
    return Plot("theory-depth-growth", caption, tuple(panels))


def _within(found: pl.DataFrame) -> Plot:
    """Draw the bound and the growth after each block of the deepest models."""
    deepest = small(found).filter(pl.col("depth") == pl.col("depth").max())
    products = by_stage(deepest).filter(pl.col("quantity").is_in(list(_LINES)))
    keys = ["data", "perturbation", "quantity", "series", "stage"]
    sums = estimates(products, keys, VALUE / math.log(10), kind="number")
    shown = sums.sort("stage", maintain_order=True).with_columns(
        x=pl.col("stage").cast(pl.Float64),
        series=pl.format("{}, {}", "series", pl.col("quantity").replace_strict(_LINES)),
    )
    panels = [
        Panel(title, "block", "log10 of the growth", block.select(_POINTS), level=0.0)
        for title, block in titled(shown)
    ]
    depth = deepest["depth"].max()
    caption = f"The same after each block of the models of depth {depth}. Bands: 95 % over {over(sums)}."
    return Plot("theory-depth-blocks", caption, tuple(panels))


def _exponential(means: pl.DataFrame) -> pl.DataFrame:
    """Return geometric means and their intervals from those of logarithms."""
    return means.with_columns(pl.col("value", "low", "high").exp())


def _table(block: pl.DataFrame, name: str, title: str) -> Table:
    order = pl.col("quantity").cast(pl.Enum(QUANTITIES))
    shown = _exponential(block).sort("depth", "series", order, maintain_order=True)
    row = pl.format("{}, depth {}", "series", "depth")
    return table_of(shown, row, pl.col("quantity"), name, title, percent=False, digits=3)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Section 4.2, and what they are made of."""
    return each_data(per_layer(layers(rows)), _claims)


def _claims(found: pl.DataFrame) -> list[Claim]:
    depths = sorted(found["depth"].unique())
    kinds = small(found)["perturbation"].unique(maintain_order=True).to_list()

    def of_mean(quantity: str, sign: float, what: str) -> list[Check]:
        return [
            Check(
                f"{what}, {kind}, depth {depth}",
                mean(_of(found, kind, depth, quantity), {}, sign * VALUE),
                "",
            )
            for kind in kinds
            for depth in depths
        ]

    def apart(
        first: Sequence[str], second: Sequence[str], what: str, at: Sequence[int] = depths
    ) -> list[Check]:
        return [
            Check(
                f"{what}, {kind}, depth {depth}",
                difference(
                    found.filter(depth=depth, perturbation=kind), _named(first), _named(second), VALUE
                ),
                "",
            )
            for kind in kinds
            for depth in at
        ]

    def crossed(quantity: str, what: str) -> list[Check]:
        diff, base, name = ("DiffViT", quantity), ("ViT", quantity), f"ln {what}"
        return [
            *apart(diff, base, f"{name}(DiffViT) − {name}(ViT)", depths[:1]),
            *apart(base, diff, f"{name}(ViT) − {name}(DiffViT)", depths[-1:]),
        ]

    section = "Section 4.2"
    statements = {
        "subtraction-removes": (
            f"{section}, Theorem 4",
            "At every depth the subtraction removes part of a perturbation of 1/255: ᾱ < 1.",
            of_mean(ALPHA, -1.0, "−ln ᾱ"),
        ),
        "noise-before-signal": (
            "not in the paper",
            "The subtraction removes a larger share of the perturbation than of the signal.",
            apart(("DiffViT", KEPT), ("DiffViT", ALPHA), "ln(signal kept) − ln ᾱ"),
        ),
        "locally-more-sensitive": (
            "Corollary 1, premise",
            "DiffViT's blocks have larger local Lipschitz constants than ViT's at every depth.",
            apart(("DiffViT", LIPSCHITZ), ("ViT", LIPSCHITZ), "ln L̄(DiffViT) − ln L̄(ViT)"),
        ),
        "attenuated": (
            f"{section}, equation (5)",
            "ᾱ·L̄ < 1 in DiffViT: perturbations are attenuated with depth.",
            of_mean(BOUND, -1.0, "−ln(ᾱ·L̄)"),
        ),
        "bound-holds": (
            f"{section}, equation (5)",
            "Perturbations of 1/255 grow by less than ᾱ·L̄ per block in DiffViT.",
            apart(("DiffViT", BOUND), ("DiffViT", OBSERVED), "ln(ᾱ·L̄) − ln growth"),
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


def _named(which: Sequence[str]) -> dict[str, str]:
    series, quantity = which
    return {"series": series, "quantity": quantity}


def _of(found: pl.DataFrame, kind: str, depth: int, quantity: str) -> pl.DataFrame:
    return found.filter(series="DiffViT", perturbation=kind, depth=depth, quantity=quantity)


study = Study(
    "theory-depth",
    "robustness",
    "Section 4.2",
    "Noise cancellation by depth",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
