"""MMVP-VLM: pairs of images that look alike, by visual pattern.

The paper (Section 4.4, Figure 4; percent, CC12M) says that DiffCLIP surpasses or matches CLIP on nearly all categories
except state and condition, by 5.7 points on average. Its radar plot shows seven of the nine patterns, of which only
the averages are printed: 23 and 29 of their 105 pairs.

| task | pretraining | model | mean of 7 |
|---|---|---|---|
| mmvp | CC12M | CLIP | 21.9 |
| mmvp | CC12M | DiffCLIP | 27.6 |

A pair counts if both of its statements find their own image among the two. The mean over the paper's seven patterns and
the one over all nine are both here; every pattern counts alike. On a laptop ``emoji-mmvp`` stands in: 45 pairs of emoji
held out, in three patterns.

| profile | models | cost |
|---|---|---|
| paper | 6, CC12M | 10 A100-days a model, minutes of measuring |
| laptop | 6, OpenMoji | 20 minutes of training, seconds of measuring |

antiphase study run diffclip-figure-4 --profile laptop
"""

from collections.abc import Sequence

import polars as pl

from antiphase.data.mmvp import PAPER_PATTERNS
from antiphase.evaluation.statistics import mcnemar_exact
from antiphase.studies.artefact import Artefact, Plot
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import SAMPLE, SEED
from antiphase.studies.papers.diffclip.bench import bench, models, settings
from antiphase.studies.papers.diffclip.observed import alike, observations
from antiphase.studies.papers.diffclip.show import (
    KEYS,
    bars,
    caption,
    estimated,
    gains,
    model_table,
    published,
)
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

PAPER = published(__doc__)


def cells(profile: Profile) -> list[Cell]:
    """MMVP of both models of the main training set, all seeds."""
    own = bench(profile)
    return [own.evaluate(model, "mmvp", own.alike) for model in models(profile, sets=[own.main])]


def by_pattern(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations with the pattern in the place of the data set."""
    observed = observations(rows).filter(task="mmvp")
    return observed.with_columns(data=pl.col("pattern"))


def means(observed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the observations of the mean over the paper's seven patterns, where they are there, and over all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    groups: dict[str, Sequence[str]] = {f"mean of {len(names)}": names}
    if set(PAPER_PATTERNS) < set(names):
        groups = {f"mean of {len(PAPER_PATTERNS)}": PAPER_PATTERNS} | groups
    among = [*KEYS[:-1], SEED]
    return {
        title: alike(observed.filter(pl.col("data").is_in(some)), among, "group").with_columns(
            data=pl.lit(title)
        )
        for title, some in groups.items()
    }


def draw(rows: RowsByTable) -> Artefact:
    """Bars by pattern, the means behind them, and an exact test of each seed."""
    observed = by_pattern(rows["evaluate"])
    found = estimated(pl.concat([observed, *means(observed).values()]))
    ticks = found["data"].unique(maintain_order=True).to_list()
    panels = tuple(
        bars(f"trained on {name}", "pairs right", block, PAPER.filter(pretraining=name), "data", ticks)
        for (name,), block in found.group_by("pretraining", maintain_order=True)
    )
    words = caption(
        "Share of pairs for which both statements select their image, by visual pattern.", found, "pairs"
    )
    table = model_table("diffclip-figure-4", "MMVP-VLM, pairs solved", found, PAPER)
    return Artefact([Plot("diffclip-figure-4", words, panels, columns=1)], [table], notes=_tests(observed))


def _tests(observed: pl.DataFrame) -> list[str]:
    """Return the exact McNemar p of DiffCLIP against CLIP over the pairs, for each training seed."""
    (title, _), *_ = means(observed).items()
    patterns = (
        PAPER_PATTERNS if title != f"mean of {observed['data'].n_unique()}" else observed["data"].unique()
    )
    some = observed.filter(pl.col("data").is_in(list(patterns)))
    found = []
    for (pretraining,), block in some.group_by("pretraining", maintain_order=True):
        wide = block.pivot("series", index=[SEED, SAMPLE], values="value").drop_nulls().sort(SEED, SAMPLE)
        if not {"CLIP", "DiffCLIP"} <= set(wide.columns):
            continue
        p = [
            f"{mcnemar_exact(*(own[name].to_numpy() > 0.5 for name in ('CLIP', 'DiffCLIP'))):.2g}"
            for _, own in wide.group_by(SEED, maintain_order=True)
        ]
        pairs = wide[SAMPLE].n_unique()
        found.append(
            f"Exact McNemar test of DiffCLIP against CLIP, trained on {pretraining}, over {pairs} pairs, "
            f"by training seed: p = {', '.join(p)}."
        )
    return found


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better on average."""
    (title, mean), *_ = means(by_pattern(rows["evaluate"])).items()
    return [
        Claim(
            "fine-grained", "Section 4.4, Figure 4",
            f"DiffCLIP solves more MMVP pairs than CLIP ({title} patterns).",
            gains(mean, ["mmvp"], data=title),
        )
    ]  # fmt: skip


study = Study(
    "diffclip-figure-4",
    "diffclip",
    "Figure 4",
    "MMVP by visual pattern",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
