"""Clean accuracy and ASR of DiffViT when λ_init varies.

The paper (Table 1; CIFAR-10, one layer, PGD at ε = 1/255): ASR rises up to λ_init = .8 and falls beyond.

| λ_init | .5 | .7 | .8 | .85 | .9 | .95 |
|---|---|---|---|---|---|---|
| accuracy | .8605 | .8697 | .8700 | .8567 | .8524 | .8468 |
| ASR | .4074 | .6772 | .8498 | .7531 | .4956 | .4164 |

As in DiffCLIP's code, which the paper follows (Appendix C.1), each head's output is multiplied by 1 − λ_init: a change
of λ_init changes this factor, too. The paper does not say whether its DiffViT has the factor.

| profile | models | cost |
|---|---|---|
| paper | 18, CIFAR-10 | not run |
| laptop | 96, Fashion-MNIST | 51 core-minutes, 40 of them training |

antiphase study run table-1 --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, CORRECT, estimates, over, peak, trend
from antiphase.studies.figures import Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import SMALL, all_cells, bench, settings
from antiphase.studies.papers.robustness.show import table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

LAMBDAS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)
PAPER = {
    "accuracy": (0.8605, 0.8697, 0.8700, 0.8567, 0.8524, 0.8468),
    "ASR": (0.4074, 0.6772, 0.8498, 0.7531, 0.4956, 0.4164),
}
_AT = 1 / 255
_SIDES = {"below": "0.5 to 0.7", "above": "0.85 to 0.95"}
ACCURACY_MARGIN = 0.005  # half a point


def cells(profile: Profile) -> list[Cell]:
    """A DiffViT for each λ_init, PGD on each; λ_init = .8 is the model of the other studies."""
    own = bench(profile)
    models = [
        own.train("diffvit", seed) if lam == 0.8 else own.train("diffvit", seed, lambda_init=lam)
        for lam in LAMBDAS
        for seed in own.seeds_of(profile)
    ]
    return all_cells(
        [own.attack(model, SMALL) for model in models], [own.accuracy(model) for model in models]
    )


def _found(rows: RowsByTable) -> dict[str, pl.DataFrame]:
    attacks = rows["attack"].filter((pl.col("eps") - _AT).abs() < 1e-9)
    return {
        "accuracy": estimates(rows["accuracy"], ["lambda_init"], CORRECT),
        "ASR": estimates(attacks, ["lambda_init"], ASR),
    }


def draw(rows: RowsByTable) -> Artefact:
    """Both numbers by λ_init, the paper's beside them."""
    blocks, panels = [], []
    for metric, found in _found(rows).items():
        found = found.sort("lambda_init")
        theirs = pl.DataFrame({"lambda_init": LAMBDAS, "paper": PAPER[metric]})
        name = "ASR (ε = 1/255)" if metric == "ASR" else metric
        lam = pl.col("lambda_init").map_elements(lambda value: f"{value:g}", pl.String)
        block = table_of(found, pl.lit(name), lam, "", "").cells.drop("paper")
        blocks.append(block.with_columns(paper=found.join(theirs, on="lambda_init", how="left")["paper"]))
        points = found.rename({"lambda_init": "x"}).with_columns(series=pl.lit("DiffViT"))
        paper = theirs.select(series=pl.lit("DiffViT"), x=pl.col("lambda_init"), value=pl.col("paper"))
        panels.append(Panel(name, "λ_init", name, points, percent=True, paper=paper))
    bands = over(*(panel.points for panel in panels))
    caption = f"DiffViT of one layer by λ_init. Bands: 95 % over {bands}; dashed: the paper, CIFAR-10."
    table = Table("table-1", "Accuracy and ASR of DiffViT by λ_init", "λ_init", pl.concat(blocks))
    return Artefact([Plot("table-1", caption, tuple(panels))], [table])


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that ASR and accuracy peak at .8."""
    attacks, clean = rows["attack"], rows["accuracy"]
    where = {"series": "DiffViT", "eps": _AT}
    asr, accuracy = (
        [Check(f"{what} at λ_init 0.8 against {_SIDES[side]} on average", found) for side, found in around]
        for what, around in (
            ("ASR", peak(attacks, "lambda_init", 0.8, where, ASR)),
            ("accuracy", peak(clean, "lambda_init", 0.8, {"series": "DiffViT"}, CORRECT)),
        )
    )
    rise = trend(attacks.filter(pl.col("lambda_init") < 0.801), "lambda_init", where, ASR)
    fall = trend(attacks.filter(pl.col("lambda_init") > 0.799), "lambda_init", where, -ASR)
    return [
        Claim("asr-peaks", "Table 1", "ASR at 1/255 peaks at λ_init = 0.8.", asr),
        Claim(
            "asr-rises",
            "Table 1",
            "ASR rises with λ_init up to 0.8.",
            [Check("fitted rise of ASR from λ 0.5 to 0.8", rise)],
        ),
        Claim(
            "asr-falls",
            "Table 1",
            "ASR falls with λ_init beyond 0.8: over-cancellation.",
            [Check("fitted fall of ASR from λ 0.8 to 0.95", fall)],
        ),
        Claim(
            "accuracy-peaks",
            "Table 1",
            "Clean accuracy is highest at λ_init = 0.8.",
            accuracy,
            ACCURACY_MARGIN,
        ),
    ]


study = Study(
    "table-1", "robustness", "Table 1", "ASR and accuracy by λ_init", __doc__, cells, draw, claims, settings
)
