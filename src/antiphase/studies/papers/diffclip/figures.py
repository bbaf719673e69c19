"""Figures 1, 3, 4 and 5: six tasks, zero-shot under shift, MMVP by visual pattern, and the variants."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import polars as pl

from antiphase.evaluation.mmvp import PAPER_PATTERNS
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.statistics.intervals import Estimate
from antiphase.studies.cells import Given, TrainClip
from antiphase.studies.claims import Check
from antiphase.studies.estimation import SAMPLE, SEED, difference
from antiphase.studies.figures import ESTIMATES, Artefact, Panel
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.diffclip.bench import (
    PAPER,
    SHIFTED,
    VARIANTS,
    bench,
    clip_study,
    measured,
    models,
)
from antiphase.studies.papers.diffclip.paper_tables import (
    AVERAGE,
    KEYS,
    VALUE,
    alike,
    averaged,
    bars,
    estimated,
    gains,
    levels,
    model_table,
    observations,
    published,
)
from antiphase.studies.spec import Cell, Profile, RowsByTable

UNDER_SHIFT = "zero-shot, shifted"
TASKS = ("probe", "few-shot", "image retrieval", "text retrieval", "zero-shot", UNDER_SHIFT)
SHIFT_AVERAGE = "Avg. shifted"
EXCEPTION = "State and Condition"
DYNAMIC, VISION_ONLY = "DiffCLIP*", "DiffCLIP†"
_ALL = "six tasks"


def task_cells(profile: Profile, models: Sequence[TrainClip | Given]) -> list[Cell]:
    """Return all tasks on all data sets, of some models."""
    sizes = bench(profile)
    sets = {"probe": sizes.probed, "few-shot": sizes.probed, "retrieval": sizes.retrieved}
    sets["zero-shot"] = (sizes.home, *sizes.shifted)
    return measured(profile, [(task, data) for task, some in sets.items() for data in some], models)


def six_tasks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the six tasks, each a mean over its data sets."""
    return averaged(_named_by_shift(observations(rows)).filter(pl.col("task").is_in(TASKS)))


def _named_by_shift(frame: pl.DataFrame) -> pl.DataFrame:
    shifted = (pl.col("task") == "zero-shot") & pl.col("data").is_in(SHIFTED)
    return frame.with_columns(task=pl.when(shifted).then(pl.lit(UNDER_SHIFT)).otherwise("task"))


def draw_tasks(rows: RowsByTable, number: int, words: str) -> Artefact:
    """Return bars for each task and their differences to CLIP, and both as tables."""
    name, paper = f"diffclip-figure-{number}", published(f"figure-{number}")
    mean = six_tasks(rows["evaluate"])
    means, gained = estimated(mean), _gains(mean)
    theirs, their_gains = paper.filter(data=AVERAGE), paper.filter(data="gain")
    drawn: list[Panel] = []
    for trained_on in means["pretraining"].unique(maintain_order=True):
        own, printed, differences, printed_gains = (
            frame.filter(pretraining=trained_on) for frame in (means, theirs, gained, their_gains)
        )
        drawn += bars(own, f"trained on {trained_on}", "accuracy or R@5", printed, "task", TASKS)
        drawn += bars(differences, "difference to CLIP", "points", printed_gains, "task", TASKS, level=0.0)
    listed = model_table(name, words, means, paper, "task", level=_named_by_shift(levels(rows["evaluate"])))
    listed += model_table(f"{name}-gains", "Differences to CLIP, points", gained, their_gains, "task")
    return Artefact([PAPER.plot(name, drawn, columns=1, samples="samples")], listed)


def _gains(mean: pl.DataFrame) -> pl.DataFrame:
    """Return estimates of every variant's difference to CLIP, on every task."""
    rows: list[tuple[Any, ...]] = []
    for (task, trained_on), block in mean.group_by("task", "pretraining", maintain_order=True):
        for series in block["series"].unique(maintain_order=True):
            one = difference(block, {"series": series}, {"series": "CLIP"}, VALUE)
            if series != "CLIP" and one is not None:
                seeds = block.filter(series=series)[SEED].n_unique()
                rows.append((task, trained_on, series, "gain", one.value, one.low, one.high, one.n, seeds))
    return pl.DataFrame(rows, dict.fromkeys(KEYS, pl.String) | ESTIMATES, orient="row")


FIGURE_1 = clip_study(
    "diffclip-figure-1",
    lambda profile: task_cells(profile, models(profile, sets=bench(profile).trained_on[:1])),
    partial(draw_tasks, number=1, words="CLIP and DiffCLIP on six tasks"),
    lambda rows: {"better-in-six-tasks": gains(six_tasks(rows["evaluate"]), TASKS)},
)


def _shifted(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the mean over the shifted sets."""
    return averaged(observed.filter(pl.col("data").is_in(SHIFTED)), name=SHIFT_AVERAGE)


def draw_shift(rows: RowsByTable) -> Artefact:
    """Draw bars for each data set and training set, and show the same as a table."""
    paper, observed = published("figure-3"), observations(rows["evaluate"]).filter(task="zero-shot")
    several = observed.filter(pl.col("data").is_in(SHIFTED))["data"].n_unique() > 1
    means = estimated(pl.concat([observed, _shifted(observed)]) if several else observed)
    ticks = means["data"].unique(maintain_order=True).to_list()
    drawn = bars(means, "trained on {pretraining}", "zero-shot accuracy", paper, "data", ticks)
    level = levels(rows["evaluate"])
    shift = level.filter(pl.col("data").is_in(SHIFTED)).group_by("task", "series", maintain_order=True)
    level = pl.concat([level, shift.agg(pl.mean("value"), data=pl.lit(SHIFT_AVERAGE))], how="diagonal")
    listed = model_table("diffclip-figure-3", "Zero-shot under shifts, accuracy", means, paper, level=level)
    return Artefact([PAPER.plot("diffclip-figure-3", drawn)], listed)


def _shift_checks(rows: RowsByTable) -> Checks:
    mean = _shifted(observations(rows["evaluate"]))
    return {"better-under-shift": gains(mean, ["zero-shot"], data=SHIFT_AVERAGE)}


FIGURE_3 = clip_study(
    "diffclip-figure-3",
    lambda profile: measured(
        profile,
        [("zero-shot", data) for data in (bench(profile).home, *bench(profile).shifted)],
        models(profile),
    ),
    draw_shift,
    _shift_checks,
)


def by_pattern(rows: RowsByTable) -> pl.DataFrame:
    """Return the observations with the pattern in the place of the data set."""
    return observations(rows["evaluate"]).filter(task="mmvp").with_columns(data=pl.col("pattern"))


def pattern_means(observed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the observations of the mean over the paper's seven patterns, where they are there, and over all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    groups = dict.fromkeys([_paper_patterns(observed), tuple(names)])
    among = [*KEYS[:-1], SEED]
    return {
        f"mean of {len(some)}": alike(
            observed.filter(pl.col("data").is_in(some)), among, "group"
        ).with_columns(data=pl.lit(f"mean of {len(some)}"))
        for some in groups
    }


def draw_patterns(rows: RowsByTable) -> Artefact:
    """Draw a radar chart of the patterns, bars with the means, and say an exact test of each seed."""
    name, paper, observed = "diffclip-figure-4", published("figure-4"), by_pattern(rows)
    chosen = observed.filter(pl.col("data").is_in(_paper_patterns(observed)))
    means = estimated(pl.concat([observed, *pattern_means(observed).values()]))

    def drawn(shown: pl.DataFrame, kind: Literal["bar", "radar"]) -> tuple[Panel, ...]:
        ticks = shown["data"].unique(maintain_order=True).to_list()
        return bars(shown, "trained on {pretraining}", "pairs right", paper, "data", ticks, kind=kind)

    plots = [
        PAPER.plot(name, drawn(estimated(chosen), "radar"), samples="pairs"),
        PAPER.plot(f"{name}-bars", drawn(means, "bar"), columns=1, samples="pairs"),
    ]
    level = means.select("task", "data", series=pl.lit("chance"), value=pl.lit(0.25)).unique(
        maintain_order=True
    )
    listed = model_table(name, "MMVP-VLM, pairs solved", means, paper, level=level)
    return Artefact(plots, listed, notes=_exact_tests(chosen))


def _paper_patterns(observed: pl.DataFrame) -> tuple[str, ...]:
    """Return the paper's seven patterns, where they are there; otherwise all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    return tuple(name for name in names if name in PAPER_PATTERNS) or tuple(names)


def _exact_tests(observed: pl.DataFrame) -> list[str]:
    """Return the exact McNemar p of DiffCLIP against CLIP over the pairs, for each training seed."""
    twins, notes = ("CLIP", "DiffCLIP"), []
    for (trained_on,), block in observed.group_by("pretraining", maintain_order=True):
        wide = block.pivot("series", index=[SEED, SAMPLE], values="value").drop_nulls().sort(SEED, SAMPLE)
        if set(twins) <= set(wide.columns):
            p = ", ".join(
                f"{mcnemar_exact(*(pairs[name].to_numpy() > 0.5 for name in twins)):.2g}"
                for pairs in wide.partition_by(SEED, maintain_order=True)
            )
            values = {"trained_on": trained_on, "pairs": wide[SAMPLE].n_unique(), "p": p}
            notes.append(filled(PAPER.words["notes"]["mcnemar"], **values))
    return notes


def pattern_checks(rows: RowsByTable) -> Checks:
    """Check that DiffCLIP is better on average, and by pattern but for the paper's exception."""
    observed = by_pattern(rows)
    (title, mean), *_ = pattern_means(observed).items()
    names = _paper_patterns(observed)

    def by(patterns: Sequence[str], *pair: str) -> list[Check]:
        some = [gains(observed, ["mmvp"], *pair, data=pattern, told=True) for pattern in patterns]
        return [check for checks in some for check in checks]

    checks = {
        "fine-grained": gains(mean, ["mmvp"], data=title),
        "by-pattern": by([name for name in names if name != EXCEPTION]),
    }
    if EXCEPTION in names:
        checks["worse-in-state-and-condition"] = by([EXCEPTION], "CLIP", "DiffCLIP")
    return checks


def _pattern_words(rows: RowsByTable) -> dict[str, str]:
    observed = by_pattern(rows)
    but = " but state and condition" * (EXCEPTION in _paper_patterns(observed))
    return {"mean": next(iter(pattern_means(observed))), "but": but}


FIGURE_4 = clip_study(
    "diffclip-figure-4",
    lambda profile: measured(
        profile, [("mmvp", bench(profile).alike)], models(profile, sets=[bench(profile).main])
    ),
    draw_patterns,
    pattern_checks,
    fill=_pattern_words,
)


def variant_checks(rows: RowsByTable) -> Checks:
    """Check the claims of Sections 4.5 and 4.6 about the two variants."""
    mean = six_tasks(rows["evaluate"])
    whole = averaged(mean, "task", _ALL)
    kept = [
        Check(f"DiffCLIP† − mean of CLIP and DiffCLIP, six tasks, trained on {name}", _past_the_middle(block))
        for (name,), block in whole.group_by("pretraining", maintain_order=True)
    ]
    three = ["zero-shot", "text retrieval", UNDER_SHIFT]
    return {
        "dynamic-above-clip": gains(mean, three, DYNAMIC),
        "dynamic-above-fixed": gains(mean, three[:2], DYNAMIC, "DiffCLIP"),
        "dynamic-behind-under-shift": gains(mean, three[2:], "DiffCLIP", DYNAMIC),
        "vision-only-above-clip": gains(mean, TASKS, VISION_ONLY),
        "vision-only-keeps-most": kept + gains(whole, (_ALL,), "DiffCLIP"),
    }


def _past_the_middle(mean: pl.DataFrame) -> Estimate | None:
    """Estimate how far DiffCLIP† lies above the middle between CLIP and DiffCLIP."""
    three = ("CLIP", "DiffCLIP", VISION_ONLY)
    some = mean.filter(pl.col("series").is_in(three))
    some = some.filter(pl.col("series").n_unique().over(SEED) == len(three))
    ends = some.with_columns(end=pl.col("series") != VISION_ONLY)
    return difference(ends, {"end": False}, {"end": True}, VALUE)


FIGURE_5 = clip_study(
    "diffclip-figure-5",
    lambda profile: task_cells(profile, models(profile, VARIANTS, [bench(profile).main])),
    partial(draw_tasks, number=5, words="Variants on six tasks"),
    variant_checks,
)
