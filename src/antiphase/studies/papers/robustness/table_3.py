"""Accuracy and ASR of DiffViT after adversarial training, by its ε; of ViT as well, which the paper left out.

The paper (Table 3, Appendix D.2; CIFAR-10, one layer). It says nothing of how the training was done beyond its ε:
PGD (Madry et al., 2018) with a warm-up of ε here, see ``antiphase.training.adversarial``.

| DiffViT | accuracy | ASR .25/255 | ASR .5/255 | ASR 1/255 |
|---|---|---|---|---|
| natural | .8700 | .3310 | .6367 | .8498 |
| ε = .25/255 | .9518 | .2537 | .6434 | .8824 |
| ε = .5/255 | .8931 | .1787 | .4440 | .7676 |
| ε = 1/255 | .7384 | .0982 | .2089 | .4302 |

The text says that adversarial training with small perturbations "successfully reduced ASR without harming
classification accuracy". In the table the model trained at .25/255 has a lower ASR at .25/255 alone and a higher one at
.5 and 1/255, and its accuracy is 8 points above the natural one. The claims here are of the ε of the training.

| profile | models | cost |
|---|---|---|
| paper | 24, CIFAR-10 | not run |
| laptop | 128, Fashion-MNIST | 51 core-minutes, 44 of them training |

antiphase study run table-3 --profile laptop
"""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, CORRECT, estimates, over, trend
from antiphase.studies.figures import Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import KINDS, SMALL, all_cells, bench, settings
from antiphase.studies.papers.robustness.show import apart, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

TRAINED = (0.0, 0.25 / 255, 0.5 / 255, 1 / 255)
ACCURACY_MARGIN = 0.005  # half a point
COLUMNS = ("accuracy", *(f"ASR {eps_label(eps)}" for eps in SMALL))
PAPER = (
    (0.8700, 0.3310, 0.6367, 0.8498),
    (0.9518, 0.2537, 0.6434, 0.8824),
    (0.8931, 0.1787, 0.4440, 0.7676),
    (0.7384, 0.0982, 0.2089, 0.4302),
)


def cells(profile: Profile) -> list[Cell]:
    """Natural and adversarial trainings of both kinds, PGD at the paper's three ε."""
    own = bench(profile)
    models = [
        own.train(kind, seed, adversary=eps)
        for kind in reversed(KINDS)
        for eps in TRAINED
        for seed in own.seeds_of(profile)
    ]
    return all_cells(
        [own.attack(model, SMALL) for model in models], [own.accuracy(model) for model in models]
    )


def _name(series: str, eps: float) -> str:
    return f"{series}, adversarial ε = {eps_label(eps)}" if eps else f"{series}, natural"


def _trained(eps: float) -> str:
    return f"trained at {eps_label(eps)}" if eps else "natural"


def _nearest(eps: float) -> int:
    return min(range(len(TRAINED)), key=lambda at: abs(TRAINED[at] - eps))


def draw(rows: RowsByTable) -> Artefact:
    """The paper's table with ViT below, and ASR over ε for each training."""
    asr = estimates(rows["attack"], ["series", "train_eps", "eps"], ASR)
    clean = estimates(rows["accuracy"], ["series", "train_eps"], CORRECT)
    named = pl.struct("series", "train_eps").map_elements(
        lambda one: _name(one["series"], one["train_eps"]), pl.String
    )
    column = pl.format("ASR {}", pl.col("eps").map_elements(eps_label, pl.String))
    blocks = [
        table_of(found, named, label, "", "").cells.with_columns(found["series"], found["train_eps"])
        for found, label in ((clean, pl.lit("accuracy")), (asr, column))
    ]
    cells = pl.concat(blocks).with_columns(
        paper=pl.struct("series", "train_eps", "column").map_elements(_paper, pl.Float64)
    )
    table = Table(
        "table-3", "Accuracy and ASR after adversarial training", "model", cells.drop("series", "train_eps")
    )
    panels = []
    for (series,), block in asr.group_by("series", maintain_order=True):
        curves = block.with_columns(
            series=pl.col("train_eps").map_elements(_trained, pl.String), x=pl.col("eps")
        )
        panels.append(
            Panel(str(series), "ε of the attack", "attack success rate", curves, scale="eps", percent=True)
        )
    caption = f"ASR under PGD by the ε of adversarial training. Bands: 95 % over {over(asr)}."
    return Artefact([Plot("table-3", caption, tuple(panels))], [table])


def _paper(one: dict) -> float | None:
    return (
        PAPER[_nearest(one["train_eps"])][COLUMNS.index(one["column"])]
        if one["series"] == "DiffViT"
        else None
    )


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that small ε lower the ASR at no cost in accuracy, and larger ε cost accuracy."""
    attacks, clean = rows["attack"], rows["accuracy"]

    def asr(kind: str, trained: float, at: float) -> Check:
        found = apart(attacks, "train_eps", 0.0, trained, ASR, {"series": kind, "eps": at})
        return Check(f"ASR({kind}, natural) − ASR(adversarially trained), at {eps_label(at)}", found)

    def kept(kind: str, first: float, second: float) -> Check:
        words = ["natural" if eps == 0 else eps_label(eps) for eps in (first, second)]
        found = apart(clean, "train_eps", first, second, CORRECT, {"series": kind})
        return Check(f"accuracy({kind}, {words[0]}) − accuracy({words[1]})", found)

    hostile = clean.filter(pl.col("train_eps") > 0)
    falls = trend(hostile, "train_eps", {"series": "DiffViT"}, -CORRECT, scale="log2")
    return [
        Claim(
            "training-lowers-asr",
            "Appendix D.2, Table 3",
            "Adversarial training of DiffViT lowers its ASR at the ε it was trained for.",
            [asr("DiffViT", eps, eps) for eps in TRAINED[1:]],
        ),
        Claim(
            "training-lowers-asr-of-vit",
            "not in the paper",
            "Adversarial training of ViT lowers its ASR at the ε it was trained for.",
            [asr("ViT", eps, eps) for eps in TRAINED[1:]],
        ),
        Claim(
            "small-eps-is-free",
            "Appendix D.2, Table 3",
            "Adversarial training at 0.25/255 raises DiffViT's clean accuracy, as the paper's table has it.",
            [kept("DiffViT", TRAINED[1], 0.0)],
            ACCURACY_MARGIN,
        ),
        Claim(
            "large-eps-costs",
            "Appendix D.2, Table 3",
            "Beyond ε = 0.5/255 adversarial training costs DiffViT clean accuracy.",
            [
                Check("accuracy(DiffViT, fitted line at 0.25/255) − accuracy(1/255)", falls),
                kept("DiffViT", 0.0, TRAINED[3]),
            ],
            ACCURACY_MARGIN,
        ),
    ]


study = Study(
    "table-3", "robustness", "Table 3", "Adversarial training", __doc__, cells, draw, claims, settings
)
