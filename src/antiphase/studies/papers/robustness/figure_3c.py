"""ASR of Carlini and Wagner's attack over the L2 distance of its examples, by depth.

The paper (Section 5.2, Figure 3(c)): deeper DiffViTs need larger perturbations to reach an ASR of 100 %. The numbers
are only drawn. Its implementation (kkew3/pytorch-cw2) searches 5 constants over 1,000 steps each; ``laptop`` searches 4
over 50. Distances are in units of the [0, 1] pixel; that implementation's box is (−1, 1), where the same change is
twice as long, and the paper does not say which it draws. An image without an example nearer than 10 counts as robust.
The distance at which ASR reaches 100 % exists only if every image is broken, so the claims are of the mean distance.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 124, Fashion-MNIST | not run at this size |

antiphase study run figure-3c --profile laptop
"""

from dataclasses import replace

import numpy as np
import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over, trend
from antiphase.studies.figures import BY_SEED, Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import bench, settings, twins
from antiphase.studies.papers.robustness.show import each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

_FOUND = pl.col("prediction") != pl.col("clean_prediction")
DISTANCE = pl.col("reach")
MARGIN = 0.05  # in units of the L2 distance


def cells(profile: Profile) -> list[Cell]:
    """The nearest adversarial example of each image, for models of every depth."""
    own = bench(profile)
    return [own.nearest(model) for model in twins(profile, own.depths)]


def _reaching(rows: RowsByTable) -> pl.DataFrame:
    """Set the distance of robust images to the largest distance found on the data set, a lower bound."""
    attacks = rows["attack"].with_columns(found=_FOUND)
    most = pl.when("found").then("distance").max().over("data")
    return attacks.with_columns(reach=pl.when("found").then("distance").otherwise(most.fill_null(0.0)))


def draw(rows: RowsByTable) -> Artefact:
    """ASR over the distance for every depth of DiffViT and ViT, and the mean distance by depth."""
    attacks = _reaching(rows)
    panels, tables = [], []
    for (data,), block in attacks.group_by("data", maintain_order=True):
        for kind in ("DiffViT", "ViT"):
            own = block.filter(series=kind)
            most = float(own["reach"].quantile(0.99) or 1.0)
            curves = []
            for at in np.linspace(0.0, most, 25).tolist():
                within = (pl.col("found") & (pl.col("distance") <= at)).cast(pl.Float64)
                curves.append(estimates(own, ["depth"], within).with_columns(x=pl.lit(at)))
            points = (
                pl.concat(curves).sort("depth", maintain_order=True).drop(BY_SEED)
            )  # too many lines to tell apart
            points = points.with_columns(series=pl.format("depth {}", "depth")).drop("depth")
            title = f"{kind}, {data}"
            panels.append(Panel(title, "L2 distance", "attack success rate", points, percent=True))
        depth, words = pl.format("depth {}", "depth"), f"Mean L2 distance, {data}"
        mean = estimates(block, ["series", "depth"], DISTANCE, kind="size").sort("depth", maintain_order=True)
        points = mean.with_columns(x=pl.col("depth").cast(pl.Float64)).drop("depth")
        panels.append(Panel(f"mean distance, {data}", "depth", "L2 distance", points))
        tables.append(
            table_of(mean, pl.col("series"), depth, f"cw-mean-{data}", words, percent=False, digits=3)
        )
        if block.filter(pl.col("found").all().over("series", "depth")).height:
            tables.append(_farthest(block, str(data)))
    lost = 1.0 - float(attacks["found"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]
    caption = (
        f"Carlini and Wagner's L2 attack. Bands: 95 % over {over(*(panel.points for panel in panels))}. "
        f"No adversarial example was found for {lost * 100:.1f} % of the images."
    )
    return Artefact([Plot("figure-3c", caption, tuple(panels))], tables)


def _farthest(block: pl.DataFrame, data: str) -> Table:
    """Return the distance at which every image is broken: the largest over images, averaged over seeds."""
    some = block.filter(pl.col("found").all().over("series", "depth"))  # undefined if an image is robust
    far = some.group_by(["series", "depth", "training_seed"], maintain_order=True).agg(
        pl.max("reach"), n=pl.len()
    )
    mean = far.group_by(["series", "depth"], maintain_order=True).agg(
        value=pl.mean("reach"),
        low=pl.min("reach"),
        high=pl.max("reach"),
        n=pl.first("n").cast(pl.Int64),
        seeds=pl.len().cast(pl.Int64),
    )
    title = f"L2 distance at which ASR reaches 100 %: mean over seeds, {data}"
    depth = pl.format("depth {}", "depth")
    table = table_of(
        mean.sort("depth", maintain_order=True),
        pl.col("series"),
        depth,
        f"cw-all-{data}",
        title,
        percent=False,
        digits=3,
    )
    return replace(table, brackets="least and largest")


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that deeper models need larger perturbations."""
    return each_data(_reaching(rows), _claims)


def _claims(attacks: pl.DataFrame) -> list[Claim]:
    depths = sorted(attacks["depth"].unique())
    deeper = depths[1:] if len(depths) > 2 else depths

    def rises(among: list[int]) -> Check:
        found = trend(
            attacks.filter(pl.col("depth").is_in(among)),
            "depth",
            {"series": "DiffViT"},
            DISTANCE,
            scale="log2",
        )
        return Check(f"fitted rise of mean L2(DiffViT) over log2 depth, {among[0]} to {among[-1]}", found, "")

    return [
        Claim(
            "cw-needs-more-when-deep",
            "Section 5.2, Figure 3(c)",
            "Deeper DiffViTs require larger L2 perturbations under Carlini and Wagner's attack.",
            [rises(depths)],
            MARGIN,
        ),
        Claim(
            "cw-needs-more-at-each-depth",
            "Section 5.2, Figure 3(c)",
            "Among DiffViTs of more than one layer, too, the deeper ones require larger L2 perturbations.",
            [rises(deeper)],
            MARGIN,
        ),
    ]


study = Study(
    "figure-3c",
    "robustness",
    "Figure 3(c)",
    "L2 distances of CW by depth",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
