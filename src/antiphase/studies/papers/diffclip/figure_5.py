"""Four variants on six tasks: CLIP, DiffCLIP, DiffCLIP* (λ_init by depth) and DiffCLIP† (image tower alone).

The paper (Sections 4.5 and 4.6, Figure 5; CC12M, points of accuracy or R@5) prints these differences; its bars are only
drawn. Of CLIP and DiffCLIP the averages are those of Tables 1 and 2.

| task | pretraining | model | Avg. | gain |
|---|---|---|---|---|
| probe | CC12M | CLIP | 77.0 | – |
| probe | CC12M | DiffCLIP | 77.3 | +0.3 |
| probe | CC12M | DiffCLIP† | – | +0.1 |
| few-shot | CC12M | CLIP | 85.3 | – |
| few-shot | CC12M | DiffCLIP | 85.4 | +0.1 |
| few-shot | CC12M | DiffCLIP† | – | +0.3 |
| image retrieval | CC12M | CLIP | 55.3 | – |
| image retrieval | CC12M | DiffCLIP | 55.3 | +0.0 |
| image retrieval | CC12M | DiffCLIP† | – | +0.4 |
| text retrieval | CC12M | CLIP | 69.4 | – |
| text retrieval | CC12M | DiffCLIP | 70.1 | +0.7 |
| text retrieval | CC12M | DiffCLIP* | – | +1.5 |
| text retrieval | CC12M | DiffCLIP† | – | +1.2 |
| zero-shot | CC12M | CLIP | 31.8 | – |
| zero-shot | CC12M | DiffCLIP | 33.8 | +2.0 |
| zero-shot | CC12M | DiffCLIP* | – | +2.8 |
| zero-shot | CC12M | DiffCLIP† | – | +1.9 |
| zero-shot, shifted | CC12M | DiffCLIP | – | +2.1 |
| zero-shot, shifted | CC12M | DiffCLIP* | – | +1.3 |
| zero-shot, shifted | CC12M | DiffCLIP† | – | +2.3 |

For DiffCLIP* relative to DiffCLIP it also reports zero-shot +.8, text retrieval +.8, shifted −.8; and it says that
differential attention in the image tower alone "already captures most of the benefits". Here that is tested as keeping
more than half of the mean gain over the six tasks.

| profile | models | cost |
|---|---|---|
| paper | 12, CC12M | 10 A100-days a model, half a day of measuring |
| laptop | 32, OpenMoji | the trainings of Table 2 and as many again, 3 core-minutes of measuring a model |

antiphase study run diffclip-figure-5 --profile laptop
"""

import polars as pl

from antiphase.statistics.intervals import Estimate
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SEED, difference
from antiphase.studies.figures import Artefact
from antiphase.studies.papers.diffclip.bench import VARIANTS, bench, models, settings
from antiphase.studies.papers.diffclip.observed import VALUE, averaged
from antiphase.studies.papers.diffclip.show import gains, published
from antiphase.studies.papers.diffclip.six_tasks import TASKS, UNDER_SHIFT, draw_tasks, six_tasks, task_cells
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = published(__doc__)
DYNAMIC, VISION_ONLY = "DiffCLIP*", "DiffCLIP†"
_ALL = "six tasks"


def cells(profile: Profile) -> list[Cell]:
    """All tasks of the four variants of the main training set, all seeds."""
    return task_cells(profile, models(profile, VARIANTS, [bench(profile).main]))


def draw(rows: RowsByTable) -> Artefact:
    """Bars for each task, and the differences to CLIP."""
    return draw_tasks(rows, "diffclip-figure-5", "Variants on six tasks", PAPER)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Sections 4.5 and 4.6 about the two variants."""
    mean = six_tasks(rows["evaluate"])
    return [
        Claim(
            "dynamic-above-clip",
            "Section 4.5, Figure 5",
            "DiffCLIP* is better than CLIP in zero-shot, text retrieval and zero-shot under shift.",
            gains(mean, ["zero-shot", "text retrieval", UNDER_SHIFT], DYNAMIC),
        ),
        Claim(
            "dynamic-above-fixed",
            "Section 4.5, Figure 5",
            "DiffCLIP* is better than DiffCLIP in zero-shot and text retrieval.",
            gains(mean, ["zero-shot", "text retrieval"], DYNAMIC, "DiffCLIP"),
        ),
        Claim(
            "dynamic-behind-under-shift",
            "Section 4.5, Figure 5",
            "DiffCLIP* is worse than DiffCLIP under shift.",
            gains(mean, [UNDER_SHIFT], "DiffCLIP", DYNAMIC),
        ),
        Claim(
            "vision-only-above-clip",
            "Section 4.6, Figure 5",
            "DiffCLIP† improves on CLIP in all six tasks.",
            gains(mean, TASKS, VISION_ONLY),
        ),
        Claim(
            "vision-only-keeps-most",
            "Section 4.6, Figure 5",
            "DiffCLIP† keeps more than half of DiffCLIP's gain over CLIP, on average over the six tasks.",
            [
                Check(
                    f"DiffCLIP† − mean of CLIP and DiffCLIP, six tasks, trained on {name}",
                    _past_the_middle(block),
                )
                for (name,), block in averaged(mean, "task", _ALL).group_by(
                    "pretraining", maintain_order=True
                )
            ]
            + gains(averaged(mean, "task", _ALL), (_ALL,), "DiffCLIP"),
        ),
    ]


def _past_the_middle(mean: pl.DataFrame) -> Estimate | None:
    """Estimate how far DiffCLIP† lies above the middle between CLIP and DiffCLIP."""
    three = ("CLIP", "DiffCLIP", VISION_ONLY)
    some = mean.filter(pl.col("series").is_in(three))
    some = some.filter(pl.col("series").n_unique().over(SEED) == len(three))
    ends = some.with_columns(end=pl.col("series") != VISION_ONLY)
    return difference(ends, {"end": False}, {"end": True}, VALUE)


study = Study(
    "diffclip-figure-5",
    "diffclip",
    "Figure 5",
    "Four variants on six tasks",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
