"""What makes a layer of DiffViT more sensitive than the same layer of ViT, and whether the subtraction cancels.

The paper (Section 4) gives no numbers for this. It derives ‖J_DA‖ / ‖J_base‖ = γ·√(1 + λ²ρ² − 2λρ·cosθ) (Theorem 2),
with ρ = ‖J2‖ / ‖J1‖ and γ = ‖J1‖ / ‖J_base‖, attributes a ratio above 1 to cosθ < 0 (Theorem 3), bounds the ratio of
local Lipschitz constants by it (Lemma 2), and says that the subtraction attenuates perturbations, more so in deeper
models (Section 4.2). J are Jacobians by the pixels.

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
| laptop | 30, those of Figure 3(d) | not run |

antiphase study run layer-sensitivity --profile laptop
"""

import polars as pl

from antiphase.evaluation.statistics import Estimate
from antiphase.studies.artefact import Artefact, Panel, Plot, Table
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimates import SAMPLE, SEED, difference, estimates
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.show import each_data, table_of
from antiphase.studies.spec import Cell, Profile, Rows, Study

LAYER = ["data", "depth", SEED, "layer"]
VALUE = pl.col("value")
FACTORS = ("λ", "ρ", "cosθ", "γ")
RATIO = "gradients, Theorem 2"
PARTS = ("A1 alone, γ", "size of A2, ρ", "angle, cosθ")
ESTIMATORS = ("sampled mean", "power iteration", "gradient ascent")
PERTURBATIONS = {"noise": "uniform noise", "pgd": "PGD"}


def cells(profile: Profile) -> list[Cell]:
    """Alignment and Lipschitz constants of both models of every depth, perturbations of DiffViT."""
    own = bench(profile)
    both = twins(profile, own.depths)
    return all_cells(
        [own.sense_of(model, part) for model in both for part in ("alignment", "lipschitz")],
        [own.sense_of(model, "depth") for model in twins(profile, own.depths, ["diffvit"])],
    )


def values(rows: Rows) -> pl.DataFrame:
    """Return every quantity of every layer of DiffViT, one row for each training seed and image.

    A ratio of means over the images is linearised: the mean of an image's values is the ratio itself, and their
    spread over the images is that of the ratio, so that it can be averaged like any other value.

    Returns:
        Columns ``data, depth, training_seed, layer, sample, quantity, value``.
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
        .agg(pl.mean("lam", "first", "second", "cross", "moved", "size"))
    )
    found = _twins(heads, keys, ["moved"])
    base = pl.col("base_moved")
    quantities = {
        "λ": pl.col("lam"), "ρ": _root(second, first), "cosθ": _cosine(cross, first, second), "γ": _root(first, base),
        RATIO: _log(moved, base), PARTS[0]: _log(first, base), PARTS[1]: _log(size, first), PARTS[2]: _log(moved, size),
    }  # fmt: skip
    return pl.concat([_named(found, pl.lit(name), value) for name, value in quantities.items()])


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


def draw(rows: Rows) -> Artefact:
    """The quantities of Theorem 2, the parts of the ratio, the ratio as predicted and measured, cancellation."""
    found = estimates(values(rows), ["data", "depth", "layer", "quantity"], VALUE, share=False)
    found = found.sort("depth", "layer", maintain_order=True).with_columns(x=pl.col("layer") + 1.0)
    log = "ln(DiffViT / ViT)"
    plots = [
        _by_quantity(found),
        _by_depth(
            found, "layer-parts", (RATIO, *PARTS), log, 0.0,
            "The logarithm of ‖J_DA‖ / ‖J_base‖ by Theorem 2 and its three parts, which add up to it, layer by layer. "
            "Above 0, DiffViT's map is the more sensitive one. Bands: 95 % over training seeds and images.",
        ),
        _by_depth(
            found, "layer-prediction", (RATIO, *ESTIMATORS), log, 0.0,
            "The ratio of gradients (Theorem 2) and the ratios of local Lipschitz estimates of the same maps. Lemma 2 "
            "says that the first bounds the others from above. Bands: 95 % over training seeds and images.",
        ),
        _by_depth(
            found, "layer-cancellation", tuple(PERTURBATIONS.values()), "cancellation", 1.0,
            "How far A1 − λ·A2 moves under a perturbation of ε = 1/255, relative to two maps that move independently. "
            "Below 1 the subtraction cancels, above 1 it adds up. Bands: 95 % over training seeds and images.",
        ),
    ]  # fmt: skip
    tables = [
        _table(found, "layer-factors", FACTORS, "λ, ρ, cosθ and γ by layer"),
        _table(
            found, "layer-parts", (RATIO, *PARTS, *ESTIMATORS), "ln(DiffViT / ViT) and its parts, by layer"
        ),
        _table(
            found, "layer-cancellation", tuple(PERTURBATIONS.values()), "Cancellation by block, ε = 1/255"
        ),
    ]
    return Artefact([plot for plot in plots if plot.panels], tables)


def _by_quantity(found: pl.DataFrame) -> Plot:
    """Return a panel for each of λ, ρ, cosθ and γ, a line for each depth."""
    shown = found.with_columns(series=pl.format("DiffViT, depth {}", "depth"))
    level = {"ρ": 1.0, "cosθ": 0.0, "γ": 1.0}
    panels = [
        Panel(f"{name}, {data}", "layer", name, _points(shown.filter(data=data, quantity=name)), level=level.get(name))
        for data in shown["data"].unique(maintain_order=True)
        for name in FACTORS
    ]  # fmt: skip
    caption = (
        "λ, ρ = ‖J2‖ / ‖J1‖, cosθ between J1 and J2, and γ = ‖J1‖ / ‖J_base‖, J by the pixels. "
        "Bands: 95 % over training seeds and images."
    )
    return Plot("layer-factors", caption, tuple(panels))


def _by_depth(
    found: pl.DataFrame, name: str, quantities: tuple[str, ...], axis: str, level: float, caption: str
) -> Plot:
    """Return a panel for each data set and depth, a line for each quantity."""
    shown = pl.concat([found.filter(quantity=quantity) for quantity in quantities])
    panels = [
        Panel(
            f"depth {depth}, {data}",
            "layer",
            axis,
            _points(block.rename({"quantity": "series"})),
            level=level,
        )
        for (data, depth), block in shown.group_by(["data", "depth"], maintain_order=True)
    ]
    return Plot(name, caption, tuple(panels))


def _points(block: pl.DataFrame) -> pl.DataFrame:
    return block.select("series", "x", "value", "low", "high", "n", "seeds")


def _table(found: pl.DataFrame, name: str, quantities: tuple[str, ...], title: str) -> Table:
    shown = pl.concat([found.filter(quantity=quantity) for quantity in quantities])
    place = pl.format("depth {}, layer {}", "depth", pl.col("layer") + 1)
    if shown["data"].n_unique() > 1:
        place = pl.format("{}, {}", "data", place)
    return table_of(shown, place, pl.col("quantity"), name, title, index="layer", percent=False, digits=3)


def claims(rows: Rows) -> list[Claim]:
    """What Section 4 says of a layer, and what follows from it."""
    return each_data(values(rows), _claims)


def _claims(found: pl.DataFrame) -> list[Claim]:
    depths = sorted(found["depth"].unique())

    def above(quantity: str, what: str, value: pl.Expr = VALUE) -> list[Check]:
        own = found.filter(quantity=quantity)
        return [
            Check(f"{what}, depth {depth}", _mean(own.filter(depth=depth), value), "") for depth in depths
        ]

    def apart(first: str, second: str, what: str) -> list[Check]:
        return [
            Check(
                f"{what}, depth {depth}",
                difference(found, {"depth": depth, "quantity": first}, {"depth": depth, "quantity": second}, VALUE), "",
            )
            for depth in depths
        ]  # fmt: skip

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
            "The subtraction cancels more in the layers of the deepest DiffViT than at depth 1.",
            [
                Check(
                    f"cancellation, depth {depths[0]} − depth {depths[-1]}, {name}",
                    difference(
                        found, {"depth": depths[0], "quantity": name}, {"depth": depths[-1], "quantity": name}, VALUE
                    ), "",
                )
                for name in PERTURBATIONS.values()
            ],
        ),
    }  # fmt: skip
    return [Claim(name, source, words, checks) for name, (source, words, checks) in statements.items()]


def _mean(block: pl.DataFrame, value: pl.Expr) -> Estimate | None:
    if block.is_empty():
        return None
    one = estimates(block, ["quantity"], value, share=False).row(0, named=True)
    return Estimate(one["value"], one["low"], one["high"], one["n"])


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
