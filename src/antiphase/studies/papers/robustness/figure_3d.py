"""Local Lipschitz estimates averaged over all attention layers, by depth.

The paper (Section 5.3, Figure 3(d)) samples ξ uniformly with ‖ξ‖∞ ≤ 8/255 to estimate the local Lipschitz constant of
equation (4), which is a supremum, and averages "across all layers of each model": "deeper DiffViT models consistently
yield higher per-layer Lipschitz values". So the paper's estimator is read as the largest of the sampled slopes, and
"mean" as the mean over layers (and images); the number of samples is not given (100 here). The mean over ξ is shown
too. Both are far below the supremum: they concentrate on ‖J‖_F/√D. Power iteration (the operator norm at x) and
gradient ascent in the ball come closer to it.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 124, Fashion-MNIST | not run at this size |

antiphase study run figure-3d --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over, trend
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import bench, settings, twins
from antiphase.studies.papers.robustness.show import against, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPERS, STEEPEST = "sampled maximum", "power iteration"
"""The paper's estimator, and the one near the supremum with which its claims are tested again."""

ESTIMATORS = (PAPERS, "sampled mean", STEEPEST, "gradient ascent")
VALUE = pl.col("value")


def cells(profile: Profile) -> list[Cell]:
    """Lipschitz constants of every layer of models of every depth."""
    own = bench(profile)
    return [own.sense_of(model, "lipschitz") for model in twins(profile, own.depths)]


def of_maps(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows of attention maps; the logits' are left out."""
    return rows["lipschitz"].filter(pl.col("of") == "map")


def in_order(maps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the estimators that are drawn, in the order of ``ESTIMATORS``."""
    return pl.concat([maps.filter(estimator=name) for name in ESTIMATORS])


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each estimator: the mean over layers, by depth."""
    maps = in_order(of_maps(rows))
    several = maps["data"].n_unique() > 1
    panels, tables = [], []
    found = estimates(maps, ["data", "estimator", "series", "depth"], VALUE, kind="size")
    for (data, estimator), block in found.sort("depth", maintain_order=True).group_by(
        ["data", "estimator"], maintain_order=True
    ):
        title = f"{estimator}, {data}" if several else str(estimator)
        points = block.with_columns(x=pl.col("depth").cast(pl.Float64)).drop("data", "estimator", "depth")
        panels.append(Panel(title, "depth", "Lipschitz estimate", points))
        key = f"lipschitz-{data}-{estimator}".replace(" ", "-")
        depth = pl.format("depth {}", "depth")
        words = f"Local Lipschitz estimate, mean over layers, {estimator}, {data}"
        tables.append(table_of(block, pl.col("series"), depth, key, words, percent=False, digits=4))
    caption = (
        "Local Lipschitz estimates of the attention maps (L2 to L2, root mean square over heads), averaged over the "
        f"layers. The paper's estimator is the sampled maximum. Bands: 95 % over {over(found)}."
    )
    return Artefact([Plot("figure-3d", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that sensitivity rises with depth."""
    return each_data(of_maps(rows), _claims)


def _claims(maps: pl.DataFrame) -> list[Claim]:
    depths = sorted(maps["depth"].unique())

    def rises(estimator: str) -> list[Check]:
        found = trend(maps, "depth", {"series": "DiffViT", "estimator": estimator}, VALUE, "log2")
        return [Check(f"rise of L(DiffViT) from depth {depths[0]} to {depths[-1]}, {estimator}", found, "")]

    return [
        Claim(
            "lipschitz-rises",
            "Section 5.3, Figure 3(d)",
            "DiffViT's local Lipschitz estimate, averaged over layers, rises with depth (sampled maximum).",
            rises(PAPERS),
        ),
        Claim(
            "lipschitz-rises-truly",
            "Section 5.3, with an estimator near the supremum",
            "DiffViT's local Lipschitz constant, averaged over layers, rises with depth (power iteration).",
            rises(STEEPEST),
        ),
        Claim(
            "lipschitz-above-vit",
            "Section 5.3, Figure 4",
            "At every depth DiffViT's layers have a higher mean Lipschitz estimate than ViT's (sampled maximum).",
            [
                Check(
                    f"L(DiffViT) − L(ViT), depth {depth}",
                    against(maps, "DiffViT", "ViT", VALUE, depth=depth, estimator=PAPERS),
                    "",
                )
                for depth in depths
            ],
        ),
    ]


study = Study(
    "figure-3d",
    "robustness",
    "Figure 3(d)",
    "Lipschitz estimates by depth",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
