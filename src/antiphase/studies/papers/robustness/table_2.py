"""ASR of ViT and DiffViT of four layers on Tiny ImageNet, patches and small perturbations.

The paper (Table 2, Appendix D.1):

| model | patch 8 | patch 4 | patch 2 | 4/255 | 2/255 | 1/255 | .5/255 |
|---|---|---|---|---|---|---|---|
| DiffViT | .6465 | .4556 | .1834 | .6318 | .3866 | .2822 | .2364 |
| ViT | .6139 | .4072 | .1498 | .6490 | .3857 | .2309 | .1866 |

The paper gives neither epochs nor sizes for Tiny ImageNet: here CIFAR-10's 100 epochs, 192 wide, patches of 8 of 64
pixels. A patch has ε = 1 inside (Appendix C.2.1).

| profile | models | cost |
|---|---|---|
| paper | 6, Tiny ImageNet | not run |
| laptop | 20, Fashion-MNIST in its place | 24 core-minutes, 16 of them training |

antiphase study run table-2 --profile laptop
"""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.cells import TrainVit
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, estimates
from antiphase.studies.figures import Artefact, Table
from antiphase.studies.papers.robustness.bench import EPS, KINDS, all_cells, bench, settings
from antiphase.studies.papers.robustness.show import against, more_fragile, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

WIDTHS = (8, 4, 2)
BUDGETS = tuple(eps for eps in reversed(EPS) if eps <= 4 / 255)
PAPER = {
    "DiffViT": (0.6465, 0.4556, 0.1834, 0.6318, 0.3866, 0.2822, 0.2364),
    "ViT": (0.6139, 0.4072, 0.1498, 0.6490, 0.3857, 0.2309, 0.1866),
}
COLUMNS = (*(f"patch {width}" for width in WIDTHS), *map(eps_label, BUDGETS))


def _models(profile: Profile) -> list[TrainVit]:
    own = bench(profile)
    data = "tiny-imagenet" if profile.name == "paper" else None
    depth = max(depth for depth in own.depths if depth <= 4)
    seeds = own.seeds_of(profile, depth)
    return [own.train(kind, seed, data, depth=depth) for kind in KINDS for seed in seeds]


def cells(profile: Profile) -> list[Cell]:
    """Patches of three widths and PGD at every ε."""
    own, models = bench(profile), _models(profile)
    patches = [own.patch(model, width) for width in WIDTHS for model in models]
    return all_cells(
        [own.attack(model) for model in models], patches, [own.accuracy(model) for model in models]
    )


def draw(rows: RowsByTable) -> Artefact:
    """The paper's table, its numbers beside ours."""
    attacks = rows["attack"].with_columns(
        column=pl.when(attack="patch")
        .then(pl.format("patch {}", "width"))
        .otherwise(pl.col("eps").map_elements(eps_label, pl.String))
    )
    found = estimates(attacks.filter(pl.col("column").is_in(COLUMNS)), ["series", "column"], ASR)
    paper = pl.DataFrame(
        [
            (series, column, value)
            for series, row in PAPER.items()
            for column, value in zip(COLUMNS, row, strict=True)
        ],
        {"series": pl.String, "column": pl.String, "paper": pl.Float64},
        orient="row",
    )
    order = pl.DataFrame({"column": COLUMNS}).with_row_index("_at")
    found = found.join(paper, on=["series", "column"], how="left", maintain_order="left").join(
        order, on="column"
    )
    found = found.sort("series", "_at")
    table = table_of(found, pl.col("series"), pl.col("column"), "table-2", "ASR under PGD with four layers")
    return Artefact(
        tables=[Table(table.name, table.title, "model", table.cells.with_columns(found["paper"]))]
    )


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT is more fragile under patches and small ε."""
    attacks = rows["attack"]
    patches = [
        Check(
            f"ASR(DiffViT) − ASR(ViT), patch {width}",
            against(attacks, "DiffViT", "ViT", ASR, attack="patch", width=width),
        )
        for width in WIDTHS
    ]
    small = more_fragile(attacks.filter(attack="pgd"), [0.5 / 255, 1 / 255])
    higher = "With four layers, DiffViT has the higher ASR"
    return [
        Claim("fragile-to-patches-at-depth-4", "Table 2", f"{higher} under patches.", patches),
        Claim("fragile-at-depth-4", "Table 2", f"{higher} at 0.5/255 and 1/255.", small),
    ]


study = Study(
    "table-2",
    "robustness",
    "Table 2",
    "ASR with four layers, patches and PGD",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
