"""MMVP-VLM: pairs of images that look alike, by visual pattern.

The paper (Section 4.4, Figure 4; percent, CC12M) says that DiffCLIP surpasses or matches CLIP on nearly all categories
except state and condition, by 5.7 points on average. Its radar plot shows seven of the nine patterns, of which only
the averages are printed: 23 and 29 of their 105 pairs.

| task | pretraining | model | mean of 7 |
|---|---|---|---|
| mmvp | CC12M | CLIP | 21.9 |
| mmvp | CC12M | DiffCLIP | 27.6 |

The radar chart here has the patterns of the data, seven or all nine; the bars add intervals and means. "Surpasses or
matches" is tested as a higher share for each of the paper's patterns but state and condition, and the exception by
itself. A pattern has 15 pairs, so a match stays undecided.

A pair counts if both of its statements find their own image among the two. The mean over the paper's seven patterns and
the one over all nine are both here; every pattern counts alike.

Under the profiles ``laptop`` and ``smoke`` the pairs are those of ``emoji-mmvp``: 45 of held-out emoji, in three
patterns of their own. Small models solve 31 to 33 % of them, which three seeds do not tell apart from guessing (25 %),
so the page of ``laptop`` shows no number.

| profile | models | cost |
|---|---|---|
| paper | 6, CC12M | 10 A100-days a model, minutes of measuring |
| laptop | 16, OpenMoji | the trainings of Table 2, seconds of measuring |

antiphase study run diffclip-figure-4 --profile laptop
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import polars as pl

from antiphase.data.mmvp import PAPER_PATTERNS
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, over
from antiphase.studies.figures import Artefact, Panel, Plot
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
EXCEPTION = "State and Condition"


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
    """A radar chart of the patterns, bars with the means, and an exact test of each seed."""
    observed = by_pattern(rows["evaluate"])
    patterns = estimated(observed.filter(pl.col("data").is_in(_paper_patterns(observed))))
    found = estimated(pl.concat([observed, *means(observed).values()]))
    words = caption(
        "Share of pairs for which both statements select their image, by visual pattern.", found, "pairs"
    )
    pairs = over(patterns, samples="pairs")
    radar = f"Share of pairs solved, by visual pattern, in percent. Each pattern: {pairs}."
    plots = [
        Plot("diffclip-figure-4", radar, _panels(patterns, "radar")),
        Plot("diffclip-figure-4-bars", words, _panels(found, "bar"), columns=1),
    ]
    table = model_table("diffclip-figure-4", "MMVP-VLM, pairs solved", found, PAPER)
    return Artefact(plots, [table], notes=_tests(observed))


def _panels(found: pl.DataFrame, kind: Literal["bar", "radar"]) -> tuple[Panel, ...]:
    ticks = found["data"].unique(maintain_order=True).to_list()
    return tuple(
        replace(
            bars(f"trained on {name}", "pairs right", block, PAPER.filter(pretraining=name), "data", ticks),
            kind=kind,
        )
        for (name,), block in found.group_by("pretraining", maintain_order=True)
    )


def _paper_patterns(observed: pl.DataFrame) -> list[str]:
    """Return the paper's seven patterns, where they are there; otherwise all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    return [name for name in names if name in PAPER_PATTERNS] or names


def _tests(observed: pl.DataFrame) -> list[str]:
    """Return the exact McNemar p of DiffCLIP against CLIP over the pairs, for each training seed."""
    some = observed.filter(pl.col("data").is_in(_paper_patterns(observed)))
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
    """Claim that DiffCLIP is better on average, and by pattern but for the paper's exception."""
    observed = by_pattern(rows["evaluate"])
    (title, mean), *_ = means(observed).items()
    names = _paper_patterns(observed)

    def by(*patterns: str, first: str = "DiffCLIP", second: str = "CLIP") -> list[Check]:
        return [
            replace(check, what=f"{check.what}, {pattern}")
            for pattern in patterns
            for check in gains(observed, ["mmvp"], first, second, data=pattern)
        ]

    found = [
        Claim(
            "fine-grained",
            "Section 4.4, Figure 4",
            f"DiffCLIP solves more MMVP pairs than CLIP ({title} patterns).",
            gains(mean, ["mmvp"], data=title),
        ),
        Claim(
            "by-pattern",
            "Section 4.4, Figure 4",
            f"DiffCLIP surpasses or matches CLIP on all categories{' but state and condition' * (EXCEPTION in names)}.",
            by(*(name for name in names if name != EXCEPTION)),
        ),
    ]
    if EXCEPTION in names:
        found.append(
            Claim(
                "worse-in-state-and-condition",
                "Section 4.4, Figure 4",
                "In state and condition DiffCLIP solves fewer pairs than CLIP.",
                by(EXCEPTION, first="CLIP", second="DiffCLIP"),
            )
        )
    return found


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
    {
        "laptop": "No numbers at this size: emoji-mmvp has none of the paper's patterns, and models of the profile "
        "laptop do not solve its pairs distinguishably more often than guessing does (25 %)."
    },
)
