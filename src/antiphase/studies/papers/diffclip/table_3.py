"""POPE of a small vision-language model on the image tower of CLIP or DiffCLIP, without and under attack.

The paper (Section 5.1, Table 3; percent, one training each) puts towers trained on CC12M into a model of TinyLLaVA's
kind: Qwen2.5-0.5B-Instruct, a linear projector, two stages of training. It says that DiffCLIP consistently outperforms
CLIP across all metrics of POPE.

| task | pretraining | model | accuracy | precision | recall |
|---|---|---|---|---|---|
| random | CC12M | CLIP | 50.14 | 50.07 | 98.21 |
| random | CC12M | DiffCLIP | 50.41 | 50.21 | 98.56 |
| popular | CC12M | CLIP | 50.27 | 50.13 | 99.33 |
| popular | CC12M | DiffCLIP | 50.27 | 50.13 | 99.47 |
| adversarial | CC12M | CLIP | 50.17 | 50.08 | 99.33 |
| adversarial | CC12M | DiffCLIP | 50.20 | 50.10 | 99.47 |

By these numbers both models answer yes to nearly every question: half of the right answers are yes, so always yes has
an accuracy of 50 %. They are no target. Two of the nine gains are 0 as printed. F1, the share of yes and AUC are added
here; AUC, of the probability of yes, does not depend on where a model draws the line between yes and no.
The tokens of an image are those before the tower's last block, without the class token, as in TinyLLaVA's code.

Not in the paper: the hallucination rate, which is the share of yes to absent objects, under APGD on the answer at 2/255
and 4/255, with 100 steps under the profile paper. The claim is that the rate rises more for the DiffCLIP tower. It was
written before any run, for the two smallest budgets; since seed 0 of the profile laptop, whose rates were 98 to 100 %
for both models from 1/255 on, it is judged at the smallest alone. Three training seeds give intervals, but no verdict:
that takes eight (``--seeds 8``).

| profile | models | cost |
|---|---|---|
| paper | 6, CC12M, Qwen2.5-0.5B-Instruct | never run; towers as in Table 1, for the rest there is no estimate |
| laptop | 6, SmolLM2-135M on the towers of Table 1 | about 60 core-minutes a model without bf16, 22 for its tower |

antiphase study run diffclip-table-3 --profile laptop
"""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
from antiphase.studies.estimation import estimates, over
from antiphase.studies.figures import BY_SEED, ESTIMATES, Artefact, Panel, Plot, Table
from antiphase.studies.papers.diffclip.answered import hallucinations, rises, scores
from antiphase.studies.papers.diffclip.observed import VALUE
from antiphase.studies.papers.diffclip.show import KEYS, estimated, gains, model_table, published
from antiphase.studies.papers.diffclip.vlm_bench import bench, models, settings
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study
from antiphase.vlm.attack import ALL
from antiphase.vlm.pope import SAMPLINGS

PAPER = published(__doc__)
PRINTED = ("accuracy", "precision", "recall")


def cells(profile: Profile) -> list[Cell]:
    """POPE without and under attack, of both models and all seeds."""
    return [cell for model in models(profile) for cell in bench(profile).measure(model)]


def draw(rows: RowsByTable) -> Artefact:
    """A table for each sampling, and the hallucination rate by budget as a table and as bars."""
    found = estimated(scores(rows["evaluate"]))
    tables: list[Table] = [
        model_table(f"diffclip-table-3-{name}", f"POPE, {name}", found.filter(task=name), PAPER, digits=2)
        for name in SAMPLINGS
    ]
    observed = hallucinations(rows["answers"]).filter(task=ALL)
    rates = estimated(observed)
    rise = estimates(rises(observed), KEYS, VALUE, "difference")
    tables += [
        model_table(
            "diffclip-table-3-attacked", "Yes to absent objects, by budget of the attack", rates, PAPER
        ),
        model_table(
            "diffclip-table-3-rise", "Yes to absent objects, difference to the clean images", rise, PAPER
        ),
    ]
    words = (
        "Share of yes to questions about absent objects, by budget of the attack. "
        f"Intervals: 95 % over {over(rates, samples='images')}."
    )
    panels = tuple(
        _panel(str(name), block) for (name,), block in rates.group_by("pretraining", maintain_order=True)
    )
    return Artefact([Plot("diffclip-table-3-attacked", words, panels)], tables)


def _panel(pretraining: str, rates: pl.DataFrame) -> Panel:
    ticks = rates["data"].unique(maintain_order=True).to_list()
    places = {tick: float(at) for at, tick in enumerate(ticks)}
    points = rates.with_columns(x=pl.col("data").replace_strict(places, return_dtype=pl.Float64))
    title = f"towers trained on {pretraining}"
    chosen = points.select("series", "x", *ESTIMATES, BY_SEED)
    return Panel(title, "ε", "yes to absent objects", chosen, "bar", ticks=tuple(ticks), percent=True)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better in every metric, and that its hallucination rate rises more under attack."""
    observed = scores(rows["evaluate"])
    rise = rises(hallucinations(rows["answers"]))
    smallest = eps_label(rows["answers"]["eps"].min())  # type: ignore[arg-type]

    def better(*metrics: str) -> list[Check]:
        return _named(observed, SAMPLINGS, metrics)

    return [
        Claim(
            "pope-accuracy",
            "Section 5.1, Table 3",
            "On a DiffCLIP tower the accuracy on POPE is higher, on all three samplings.",
            better("accuracy"),
        ),
        Claim(
            "pope-every-metric",
            "Section 5.1, Table 3",
            "On a DiffCLIP tower accuracy, precision and recall on POPE are higher, on all three samplings.",
            better(*PRINTED),
        ),
        Claim(
            "pope-f1",
            NOT_IN_PAPER,
            "On a DiffCLIP tower F1 on POPE is higher, on all three samplings.",
            better("F1"),
        ),
        Claim(
            "hallucinations-under-attack",
            NOT_IN_PAPER,
            f"Under APGD at {smallest} the share of yes to absent objects rises more on a DiffCLIP tower.",
            _named(rise, [ALL], [smallest]),
        ),
    ]


def _named(observed: pl.DataFrame, tasks: Sequence[str], columns: Sequence[str]) -> list[Check]:
    """Return the checks that DiffCLIP is higher in each column."""
    return [
        replace(check, what=f"{check.what}, {column}")
        for column in columns
        for check in gains(observed, tasks, data=column)
    ]


study = Study(
    "diffclip-table-3",
    "diffclip",
    "Table 3",
    "POPE on a DiffCLIP tower",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
