"""CLIP and DiffCLIP on six tasks.

The paper (Section 1, Figure 1; CC3M) says that "in each case, DiffCLIP consistently outperforms CLIP". Its bars carry
no numbers; the averages of Tables 1 and 2 are those of five of the six tasks (percent). None is printed for zero-shot
under shift with CC3M.

| task | pretraining | model | Avg. | gain |
|---|---|---|---|---|
| probe | CC3M | CLIP | 63.8 | – |
| probe | CC3M | DiffCLIP | 64.8 | +1.0 |
| few-shot | CC3M | CLIP | 73.9 | – |
| few-shot | CC3M | DiffCLIP | 74.6 | +0.7 |
| image retrieval | CC3M | CLIP | 28.9 | – |
| image retrieval | CC3M | DiffCLIP | 30.1 | +1.2 |
| text retrieval | CC3M | CLIP | 38.3 | – |
| text retrieval | CC3M | DiffCLIP | 40.1 | +1.8 |
| zero-shot | CC3M | CLIP | 13.6 | – |
| zero-shot | CC3M | DiffCLIP | 14.4 | +0.8 |

The caption adds "with only 0.003% extra parameters". That is the variant with differential attention in the image tower
alone (+4,608 of 149,619,969); DiffCLIP has 0.0062 % more (+9,216). On a laptop there is one training set, so the models
are those of Figure 5.

| profile | models | cost |
|---|---|---|
| paper | 6, CC3M | 3 A100-days a model, half a day of measuring |
| laptop | 16, OpenMoji | the trainings of Table 2, 3 core-minutes of measuring a model |

antiphase study run diffclip-figure-1 --profile laptop
"""

from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.papers.diffclip.bench import bench, models, settings
from antiphase.studies.papers.diffclip.show import gains, published
from antiphase.studies.papers.diffclip.six_tasks import TASKS, draw_tasks, six_tasks, task_cells
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = published(__doc__)


def cells(profile: Profile) -> list[Cell]:
    """All tasks of both models of the first training set, all seeds."""
    return task_cells(profile, models(profile, sets=bench(profile).trained_on[:1]))


def draw(rows: RowsByTable) -> Artefact:
    """Bars for each task, and the differences to CLIP."""
    return draw_tasks(rows, "diffclip-figure-1", "CLIP and DiffCLIP on six tasks", PAPER)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better in every task."""
    return [
        Claim(
            "better-in-six-tasks",
            "Section 1, Figure 1",
            "In each of the six tasks, DiffCLIP outperforms CLIP.",
            gains(six_tasks(rows["evaluate"]), TASKS),
        )
    ]


study = Study(
    "diffclip-figure-1",
    "diffclip",
    "Figure 1",
    "CLIP and DiffCLIP on six tasks",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
