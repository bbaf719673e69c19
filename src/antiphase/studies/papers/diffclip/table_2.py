"""Retrieval and zero-shot accuracy of CLIP and DiffCLIP.

The paper (Section 4.2, Table 2; R@5 and accuracy in percent, one training each) says that DiffCLIP surpasses CLIP on
image and text retrieval, with CC3M by 1.2 and 1.8 points on average, and in zero-shot accuracy by .8 (CC3M) and 2.0
(CC12M).

| task | pretraining | model | flickr30k | flickr8k | coco-karpathy | Avg. |
|---|---|---|---|---|---|---|
| image retrieval | CC3M | CLIP | 31.8 | 35.4 | 19.4 | 28.9 |
| image retrieval | CC3M | DiffCLIP | 32.9 | 36.5 | 20.9 | 30.1 |
| image retrieval | CC12M | CLIP | 62.5 | 62.1 | 41.3 | 55.3 |
| image retrieval | CC12M | DiffCLIP | 62.2 | 61.5 | 42.3 | 55.3 |
| text retrieval | CC3M | CLIP | 43.4 | 46.2 | 25.4 | 38.3 |
| text retrieval | CC3M | DiffCLIP | 44.7 | 47.8 | 27.6 | 40.1 |
| text retrieval | CC12M | CLIP | 76.8 | 77.7 | 53.8 | 69.4 |
| text retrieval | CC12M | DiffCLIP | 77.4 | 77.4 | 55.5 | 70.1 |

| task | pretraining | model | imagenet |
|---|---|---|---|
| zero-shot | CC3M | CLIP | 13.6 |
| zero-shot | CC3M | DiffCLIP | 14.4 |
| zero-shot | CC12M | CLIP | 31.8 |
| zero-shot | CC12M | DiffCLIP | 33.8 |

Image retrieval ranks the images for a caption, text retrieval the captions for an image, over a whole Karpathy test
split, as in CLIP_benchmark; the paper names no split. The paper does not state its prompts: here OpenAI's 80
templates, and SLIP's seven for comparison. The captions of an image count as one sample in the intervals.

| profile | models | cost |
|---|---|---|
| paper | 12, CC3M and CC12M | 13 A100-days for each pair of seeds, and an hour of features |
| laptop | 16, OpenMoji | 5 core-minutes of training a model with bf16, 20 without, half a minute of measuring |

antiphase study run diffclip-table-2 --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact, Table
from antiphase.studies.papers.diffclip.bench import bench, models, settings
from antiphase.studies.papers.diffclip.observed import averaged, observations, with_average
from antiphase.studies.papers.diffclip.show import estimated, gains, model_table, published
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = published(__doc__)
RETRIEVAL = ("image retrieval", "text retrieval")


def cells(profile: Profile) -> list[Cell]:
    """Retrieval on every set and zero-shot on the home set, of both models and all seeds."""
    own = bench(profile)
    found: list[Cell] = []
    for model in models(profile):
        found += [own.evaluate(model, "retrieval", data) for data in own.retrieved]
        found.append(own.evaluate(model, "zero-shot", own.home))
    return found


def draw(rows: RowsByTable) -> Artefact:
    """A table for each direction of retrieval and one for zero-shot."""
    found = estimated(with_average(observations(rows["evaluate"])))
    tables: list[Table] = [
        model_table(
            f"diffclip-table-2-{task.split()[0]}", f"{task.capitalize()}, R@5", found.filter(task=task), PAPER
        )
        for task in RETRIEVAL
    ]
    rest = found.filter(~pl.col("task").is_in(RETRIEVAL))
    prompts = pl.col("task").str.strip_prefix("zero-shot")
    column = pl.format(
        "{}{}", "data", pl.when(prompts != "").then(pl.format("{} prompts", prompts)).otherwise(pl.lit(""))
    )
    tables.append(model_table("diffclip-table-2-zero-shot", "Zero-shot, accuracy", rest, PAPER, column))
    return Artefact(tables=tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better in all three columns."""
    mean = averaged(observations(rows["evaluate"]))
    return [
        Claim(
            "retrieval",
            "Section 4.2, Table 2",
            "DiffCLIP surpasses CLIP on image and text retrieval (R@5).",
            gains(mean, RETRIEVAL),
        ),
        Claim(
            "zero-shot",
            "Section 4.2, Table 2",
            "DiffCLIP has a higher zero-shot accuracy than CLIP.",
            gains(mean, ["zero-shot"]),
        ),
    ]


study = Study(
    "diffclip-table-2",
    "diffclip",
    "Table 2",
    "Retrieval and zero-shot",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
