"""ASR of ViT and DiffViT of one layer under PGD, over ε.

The paper (Section 5.2, Figure 2(a)): on CIFAR-10 and CIFAR-100 DiffViT has the higher ASR at every ε; on CIFAR-10 its
ASR at .25, .5 and 1/255 is .3310, .6367 and .8498 (Table 3). The other points and the values of ε are only drawn:
here .5 to 8/255.

| profile | models | cost |
|---|---|---|
| paper | 12, CIFAR-10 and CIFAR-100 | not run |
| laptop | 32, Fashion-MNIST | 17 core-minutes, 10 of them training |

antiphase study run figure-2a --profile laptop
"""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import ASR, CORRECT, estimates, over
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import EPS, all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.show import eps_table, more_fragile
from antiphase.studies.scale import titled
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = pl.DataFrame(
    {"series": ["DiffViT"] * 2, "data": ["cifar10"] * 2, "x": [0.5 / 255, 1 / 255], "value": [0.6367, 0.8498]}
)


def cells(profile: Profile) -> list[Cell]:
    """PGD at every ε on models of depth 1."""
    own, models = bench(profile), twins(profile)
    return all_cells([own.attack(model) for model in models], [own.accuracy(model) for model in models])


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each data set: ASR over ε."""
    found = estimates(rows["attack"], ["data", "series", "eps"], ASR)
    panels, tables = [], []
    for (data,), block in found.group_by("data", maintain_order=True):
        theirs = PAPER.filter(data=str(data))
        panels.append(
            Panel(
                f"PGD, {data}",
                "ε",
                "attack success rate",
                block.rename({"eps": "x"}).drop("data"),
                scale="eps",
                percent=True,
                paper=None if theirs.is_empty() else theirs.drop("data"),
            )
        )
        tables.append(eps_table(block, f"ASR under PGD, {data}", f"asr-{data}", theirs))
    caption = f"Share of images whose prediction PGD changes. Bands: 95 % over {over(found)}."
    return Artefact(
        [Plot("figure-2a", caption, tuple(panels))], tables, notes=levels(found, rows["accuracy"])
    )


def levels(found: pl.DataFrame, clean: pl.DataFrame) -> list[str]:
    """Return two sentences for each data set: the ASR of both models at 1/255 and their accuracy, and the paper's ASR.

    Args:
        found: estimates with columns ``data``, ``series`` and ``eps``.
        clean: rows of accuracy.
    """
    right = estimates(clean, ["data", "series"], CORRECT)
    at, told = 1 / 255, []
    theirs, own = PAPER.filter(pl.col("x") == at).select("value", "data").row(0)
    for (data,), block in found.filter((pl.col("eps") - at).abs() < 1e-9).group_by(
        "data", maintain_order=True
    ):
        asr, accuracy = (
            dict(frame.select("series", "value").iter_rows()) for frame in (block, right.filter(data=data))
        )
        if asr.keys() & accuracy.keys() >= {"ViT", "DiffViT"}:
            told.append(
                f"With one layer, PGD at {eps_label(at)} changes {asr['ViT']:.1%} of ViT's predictions and "
                f"{asr['DiffViT']:.1%} of DiffViT's on {titled(str(data))}; their clean accuracies are "
                f"{accuracy['ViT']:.1%} and {accuracy['DiffViT']:.1%}. The paper reports {theirs:.1%} for its "
                f"one-layer DiffViT at {eps_label(at)} on {titled(own)} and no number for ViT"
                f"{'' if data == own else '; models and data differ, so that the two do not compare'}."
            )
    return [each.replace("%", " %") for each in told]


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffViT is more fragile at every small ε."""
    return [
        Claim(
            "fragile-at-depth-1",
            "Section 5.2, Figure 2(a)",
            "With one layer, DiffViT has a higher ASR than ViT under PGD for ε up to 2/255.",
            more_fragile(rows["attack"], [eps for eps in EPS if eps <= 2 / 255]),
        )
    ]


study = Study(
    "figure-2a",
    "robustness",
    "Figure 2(a)",
    "ASR under PGD with one layer",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
