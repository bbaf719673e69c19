"""Section 4.2: equation (5), Theorem 4 and Corollary 1 of the robustness paper, measured by depth."""

import math
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.sensitivity.depth import crossover
from antiphase.studies.checks import above, apart, each_data
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
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


def cells(profile: Profile) -> list[Cell]:
    """Paths through both models of every depth, branches of DiffViT, PGD for the success rates."""
    own, both = bench(profile), twins(profile, None)
    return all_cells(
        [own.sense_of(model, "depth") for model in both],
        [own.sense_of(model, "branches") for model in twins(profile, None, ["diffvit"])],
        [own.attack(model) for model in both],
    )


def layers(rows: RowsByTable) -> pl.DataFrame:
    """Return the logarithms of α, of the kept signal, of L and of the growth of every block.

    Args:
        rows: ``depth`` of both models, ``branches`` of DiffViT. ViT subtracts nothing: α = 1 by definition.

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

    Args:
        found: of :func:`layers`.

    Returns:
        Columns ``data, depth, series, training_seed, perturbation, sample, quantity, value``.
    """
    means = found.group_by(_MODEL, maintain_order=True).agg(pl.mean(*QUANTITIES))
    found = means.unpivot(QUANTITIES, index=_MODEL, variable_name="quantity")
    constant = (pl.col("series") == "ViT") & pl.col("quantity").is_in([ALPHA, KEPT])  # 1: not an estimate
    return found.filter(~constant)


def by_stage(found: pl.DataFrame) -> pl.DataFrame:
    """Return the logarithms of the products over the first d layers: what equation (5) allows, and what is observed.

    Args:
        found: of :func:`layers`.

    Returns:
        Columns as those of :func:`per_layer`, and ``stage``.
    """
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
    """Return where DiffViT falls below ViT, as equation (5) predicts and as the growth and the attacks show.

    Args:
        rows: with ``attack``.
        values: of :func:`per_layer`.
    """
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


def draw(rows: RowsByTable) -> Artefact:
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


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Section 4.2, and what they are made of."""
    return each_data(per_layer(layers(rows)), _claims)


def _claims(values: pl.DataFrame) -> list[Claim]:
    depths = sorted(values["depth"].unique())
    kinds = small(values)["perturbation"].unique(maintain_order=True).to_list()
    diffvit = values.filter(series="DiffViT")
    every = {"perturbation": kinds, "depth": depths}

    def quantities(first: str, second: str, what: str) -> list[Check]:
        return apart(diffvit, "quantity", first, second, VALUE, what, **every)

    def models(quantity: str, first: str, second: str, what: str, **levels: Any) -> list[Check]:
        own = values.filter(quantity=quantity)
        words = f"ln {what}({first}) − ln {what}({second})"
        return apart(own, "series", first, second, VALUE, words, **(every | levels))

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
            above(alpha, "−ln ᾱ", -VALUE, **every),
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
            above(bound, "−ln(ᾱ·L̄)", -VALUE, **every),
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
    cells,
    draw,
    claims,
    settings,
)
