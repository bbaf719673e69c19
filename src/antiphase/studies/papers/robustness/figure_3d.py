"""Mean local Lipschitz estimate over all attention layers, by depth.

The paper (Section 5.3, Figure 3(d)): deeper DiffViTs consistently have higher values. Its estimate samples ξ uniformly
with ‖ξ‖∞ ≤ 8/255, which concentrates on ‖J‖_F/√D, far below the intended supremum (robustness.md, section 1). The
operator norm by power iteration and gradient ascent in the ball are shown for comparison.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 30, Fashion-MNIST | 107 core-minutes, 102 of them training |

antiphase study run figure-3d --profile laptop
"""

from itertools import pairwise

import polars as pl

from antiphase.studies.artefact import Artefact, Panel, Plot
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over
from antiphase.studies.papers.robustness.bench import bench, settings, twins
from antiphase.studies.papers.robustness.show import against, apart, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

ESTIMATORS = ("sampled mean", "sampled maximum", "power iteration", "gradient ascent")
VALUE = pl.col("value")


def cells(profile: Profile) -> list[Cell]:
    """Lipschitz constants of every layer of models of every depth."""
    own = bench(profile)
    return [own.sense_of(model, "lipschitz") for model in twins(profile, own.depths)]


def of_maps(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows of attention maps; the logits' are left out."""
    return rows["lipschitz"].filter(pl.col("of") == "map")


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each estimator: the mean over layers, by depth."""
    maps = of_maps(rows)
    several = maps["data"].n_unique() > 1
    panels, tables = [], []
    found = estimates(maps, ["data", "estimator", "series", "depth"], VALUE, kind="size")
    for (data, estimator), block in found.sort("depth", maintain_order=True).group_by(
        ["data", "estimator"], maintain_order=True
    ):
        if estimator not in ESTIMATORS:
            continue
        title = f"{estimator}, {data}" if several else str(estimator)
        points = block.with_columns(x=pl.col("depth").cast(pl.Float64)).drop("data", "estimator", "depth")
        panels.append(Panel(title, "depth", "Lipschitz estimate", points))
        key = f"lipschitz-{data}-{estimator}".replace(" ", "-")
        depth = pl.format("depth {}", "depth")
        words = f"Mean local Lipschitz estimate over layers, {estimator}, {data}"
        tables.append(table_of(block, pl.col("series"), depth, key, words, percent=False, digits=4))
    caption = (
        "Local Lipschitz estimates of the attention maps (L2 to L2, root mean square over heads), averaged over the "
        f"layers. “Sampled mean” is the paper's estimator. Bands: 95 % over {over(found)}."
    )
    return Artefact([Plot("figure-3d", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that sensitivity rises with depth."""
    return each_data(of_maps(rows), _claims)


def _claims(maps: pl.DataFrame) -> list[Claim]:
    depths = sorted(maps["depth"].unique())

    def rises(estimator: str, second: int, first: int) -> Check:
        found = apart(maps, "depth", second, first, VALUE, {"series": "DiffViT", "estimator": estimator})
        return Check(f"L(DiffViT, depth {second}) − L(depth {first}), {estimator}", found, "")

    pairs = [(second, first) for first, second in pairwise(depths)]
    return [
        Claim(
            "lipschitz-rises", "Section 5.3, Figure 3(d)",
            "The mean local Lipschitz estimate of DiffViT rises with depth (the paper's sampled mean).",
            [rises("sampled mean", *pair) for pair in pairs],
        ),
        Claim(
            "lipschitz-rises-truly", "Section 5.3, with estimators that reach the supremum",
            "The mean local Lipschitz constant of DiffViT rises with depth (power iteration).",
            [rises("power iteration", *pair) for pair in pairs],
        ),
        Claim(
            "lipschitz-above-vit", "Section 5.3, Figure 4",
            "At every depth DiffViT's layers have a higher mean Lipschitz estimate than ViT's (sampled mean).",
            [
                Check(
                    f"L(DiffViT) − L(ViT), depth {depth}",
                    against(maps, "DiffViT", "ViT", VALUE, depth=depth, estimator="sampled mean"), "",
                )
                for depth in depths
            ],
        ),
    ]  # fmt: skip


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
