"""ASR of ViT and DiffViT of one layer under adversarial patches, by their width.

The paper (Section 5.2, Figure 2(c)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every width; the numbers
are only drawn. ε = 1 inside a square at a random place (Appendix C.2.1); the widths 2, 4 and 8 are those of Table 2.

| profile | models | cost |
|---|---|---|
| paper | 12, CIFAR-10 and CIFAR-100 | not run |
| laptop | 32, Fashion-MNIST | 14 core-minutes, 10 of them training |

antiphase study run figure-2c --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates, over
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.show import against, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

WIDTHS = (2, 4, 8)


def cells(profile: Profile) -> list[Cell]:
    """Patches of every width on models of depth 1."""
    own, models = bench(profile), twins(profile)
    return all_cells(
        [own.patch(model, width) for width in WIDTHS for model in models],
        [own.accuracy(model) for model in models],
    )


def draw(rows: RowsByTable) -> Artefact:
    """Draw ASR over the width, with one panel per data set."""
    found = estimates(rows["attack"], ["data", "series", "width"], ASR)
    panels, tables = [], []
    for (data,), block in found.group_by("data", maintain_order=True):
        points = block.with_columns(x=pl.col("width").cast(pl.Float64)).drop("data", "width")
        panels.append(
            Panel(f"patches, {data}", "width in pixels", "attack success rate", points, percent=True)
        )
        width = pl.format("width {}", "width")
        tables.append(
            table_of(block, pl.col("series"), width, f"patches-{data}", f"ASR under patches, {data}")
        )
    caption = f"Share of images whose prediction a patch changes. Bands: 95 % over {over(found)}."
    return Artefact([Plot("figure-2c", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT is more fragile."""
    attacks = rows["attack"]
    checks = [
        Check(
            f"ASR(DiffViT) − ASR(ViT), width {width}, {data}",
            against(attacks, "DiffViT", "ViT", ASR, data=data, width=width),
        )
        for data in attacks["data"].unique(maintain_order=True)
        for width in WIDTHS
    ]
    return [
        Claim(
            "fragile-to-patches",
            "Section 5.2, Figure 2(c)",
            "With one layer, DiffViT has a higher ASR than ViT under patches of every width.",
            checks,
        )
    ]


study = Study(
    "figure-2c",
    "robustness",
    "Figure 2(c)",
    "ASR under patches with one layer",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
