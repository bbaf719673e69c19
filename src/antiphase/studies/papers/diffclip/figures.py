"""Figures 1, 3, 4 and 5: six tasks, zero-shot under shift, MMVP by visual pattern, and the variants."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from antiphase.data.mmvp import PAPER_PATTERNS
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.statistics.intervals import Estimate
from antiphase.studies.cells import Given, TrainClip
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, over
from antiphase.studies.figures import ESTIMATES, Artefact, Panel, Plot
from antiphase.studies.papers.diffclip.bench import SHIFTED, VARIANTS, bench, diffclip_study, models
from antiphase.studies.papers.diffclip.paper_tables import (
    AVERAGE,
    KEYS,
    VALUE,
    alike,
    apart,
    averaged,
    bars,
    caption,
    estimated,
    gains,
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


def task_cells(profile: Profile, measured: Sequence[TrainClip | Given]) -> list[Cell]:
    """Return all tasks on all data sets, of some models."""
    own = bench(profile)
    asked = [(task, data) for task in ("probe", "few-shot") for data in own.probed]
    asked += [("retrieval", data) for data in own.retrieved]
    asked += [("zero-shot", data) for data in (own.home, *own.shifted)]
    return [own.evaluate(model, task, data) for model in measured for task, data in asked]


def six_tasks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the six tasks, each a mean over its data sets."""
    shifted = (pl.col("task") == "zero-shot") & pl.col("data").is_in(SHIFTED)
    task = pl.when(shifted).then(pl.lit(UNDER_SHIFT)).otherwise("task")
    return averaged(observations(rows).with_columns(task=task).filter(pl.col("task").is_in(TASKS)))


def draw_tasks(rows: RowsByTable, number: int, what: str) -> Artefact:
    """Return bars for each task and their differences to CLIP, and both as tables."""
    name, paper = f"diffclip-figure-{number}", published(f"figure-{number}")
    mean = six_tasks(rows["evaluate"])
    means, gained = estimated(mean), _gains(mean)
    theirs, their_gains = paper.filter(data=AVERAGE), paper.filter(data="gain")
    drawn: list[Panel] = []
    for (trained_on,), block in means.group_by("pretraining", maintain_order=True):
        printed, printed_gains = (frame.filter(pretraining=trained_on) for frame in (theirs, their_gains))
        drawn += bars(block, f"trained on {trained_on}", "accuracy or R@5", printed, "task", TASKS)
        own = gained.filter(pretraining=trained_on)
        drawn += bars(own, "difference to CLIP", "points", printed_gains, "task", TASKS, level=0.0)
    words = caption(f"{what}, each a mean over its data sets.", means, "samples")
    listed = model_table(name, what, means, paper, "task")
    listed += model_table(f"{name}-gains", "Differences to CLIP, points", gained, their_gains, "task")
    return Artefact([Plot(name, words, tuple(drawn), columns=1)], listed)


def _gains(mean: pl.DataFrame) -> pl.DataFrame:
    """Return estimates of every variant's difference to CLIP, on every task."""
    rows: list[tuple[object, ...]] = []
    for (task, pretraining), block in mean.group_by("task", "pretraining", maintain_order=True):
        for series in block["series"].unique(maintain_order=True):
            one = None if series == "CLIP" else apart(block, {}, series, "CLIP")
            if one is not None:
                seeds = block.filter(series=series)[SEED].n_unique()
                rows.append((task, pretraining, series, "gain", one.value, one.low, one.high, one.n, seeds))
    return pl.DataFrame(rows, dict.fromkeys(KEYS, pl.String) | ESTIMATES, orient="row")


FIGURE_1 = diffclip_study(
    "Figure 1",
    "CLIP and DiffCLIP on six tasks",
    """CLIP and DiffCLIP on six tasks.

The paper (Section 1, Figure 1; CC3M) says that "in each case, DiffCLIP consistently outperforms CLIP". Its bars carry
no numbers; the averages of Tables 1 and 2 are those of five of the six tasks (percent). None is printed for zero-shot
under shift with CC3M.

The caption adds "with only 0.003% extra parameters". That is the variant with differential attention in the image tower
alone (+4,608 of 149,619,969); DiffCLIP has 0.0062 % more (+9,216). On a laptop there is one training set, so the models
are those of Figure 5.
""",
    lambda profile: task_cells(profile, models(profile, sets=bench(profile).trained_on[:1])),
    lambda rows: draw_tasks(rows, 1, "CLIP and DiffCLIP on six tasks"),
    lambda rows: [
        Claim(
            "better-in-six-tasks",
            "Section 1, Figure 1",
            "In each of the six tasks, DiffCLIP outperforms CLIP.",
            gains(six_tasks(rows["evaluate"]), TASKS),
        )
    ],
)


def shift_cells(profile: Profile) -> list[Cell]:
    """Zero-shot on the home set and its shifts, of both models and all seeds."""
    own = bench(profile)
    sets = (own.home, *own.shifted)
    return [own.evaluate(model, "zero-shot", data) for model in models(profile) for data in sets]


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
    words = caption("Zero-shot accuracy on the home set and under distribution shift.", means, "images")
    listed = model_table("diffclip-figure-3", "Zero-shot under shifts, accuracy", means, paper)
    return Artefact([Plot("diffclip-figure-3", words, drawn)], listed)


FIGURE_3 = diffclip_study(
    "Figure 3",
    "Zero-shot under shift",
    """Zero-shot accuracy on ImageNet and under shifts of its distribution.

The paper (Section 4.3, Figure 3) says that DiffCLIP outperforms CLIP by 2.1 points on average over ImageNet-V2, A, R
and Sketch. The text does not say for which training set this holds; by Section 4.5 it is CC12M. Its bars are only
drawn; of ImageNet itself Table 2 gives the numbers (percent).

The average here is over the shifted sets alone, which the claim is of. On a laptop the models were trained on
OpenMoji's drawings, and Noto's emoji of the concepts held out are the shift; the nine classes count alike.
""",
    shift_cells,
    draw_shift,
    lambda rows: [
        Claim(
            "better-under-shift",
            "Section 4.3, Figure 3",
            "DiffCLIP has a higher zero-shot accuracy than CLIP under shift, on average over the shifted sets.",
            gains(_shifted(observations(rows["evaluate"])), ["zero-shot"], data=SHIFT_AVERAGE),
        )
    ],
)


def pattern_cells(profile: Profile) -> list[Cell]:
    """MMVP of both models of the main training set, all seeds."""
    own = bench(profile)
    return [own.evaluate(model, "mmvp", own.alike) for model in models(profile, sets=[own.main])]


def by_pattern(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations with the pattern in the place of the data set."""
    return observations(rows).filter(task="mmvp").with_columns(data=pl.col("pattern"))


def pattern_means(observed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the observations of the mean over the paper's seven patterns, where they are there, and over all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    groups: dict[str, Sequence[str]] = {f"mean of {len(names)}": names}
    if set(PAPER_PATTERNS) < set(names):
        groups = {f"mean of {len(PAPER_PATTERNS)}": PAPER_PATTERNS} | groups
    return {
        title: alike(observed.filter(pl.col("data").is_in(some)), [*KEYS[:-1], SEED], "group").with_columns(
            data=pl.lit(title)
        )
        for title, some in groups.items()
    }


def draw_patterns(rows: RowsByTable) -> Artefact:
    """Draw a radar chart of the patterns, bars with the means, and say an exact test of each seed."""
    paper, observed = published("figure-4"), by_pattern(rows["evaluate"])
    patterns = estimated(observed.filter(pl.col("data").is_in(_paper_patterns(observed))))
    means = estimated(pl.concat([observed, *pattern_means(observed).values()]))

    def drawn(shown: pl.DataFrame, kind: Literal["bar", "radar"]) -> tuple[Panel, ...]:
        ticks = shown["data"].unique(maintain_order=True).to_list()
        return bars(shown, "trained on {pretraining}", "pairs right", paper, "data", ticks, kind=kind)

    words = "Share of pairs for which both statements select their image, by visual pattern."
    pairs = over(patterns, samples="pairs")
    radar = f"Share of pairs solved, by visual pattern, in percent. Each pattern: {pairs}."
    plots = [
        Plot("diffclip-figure-4", radar, drawn(patterns, "radar")),
        Plot("diffclip-figure-4-bars", caption(words, means, "pairs"), drawn(means, "bar"), columns=1),
    ]
    listed = model_table("diffclip-figure-4", "MMVP-VLM, pairs solved", means, paper)
    return Artefact(plots, listed, notes=_tests(observed))


def _paper_patterns(observed: pl.DataFrame) -> list[str]:
    """Return the paper's seven patterns, where they are there; otherwise all."""
    names = observed["data"].unique(maintain_order=True).to_list()
    return [name for name in names if name in PAPER_PATTERNS] or names


def _tests(observed: pl.DataFrame) -> list[str]:
    """Return the exact McNemar p of DiffCLIP against CLIP over the pairs, for each training seed."""
    some, twins = observed.filter(pl.col("data").is_in(_paper_patterns(observed))), ("CLIP", "DiffCLIP")
    said = []
    for (pretraining,), block in some.group_by("pretraining", maintain_order=True):
        wide = block.pivot("series", index=[SEED, SAMPLE], values="value").drop_nulls().sort(SEED, SAMPLE)
        if set(twins) <= set(wide.columns):
            p = [
                f"{mcnemar_exact(*(own[name].to_numpy() > 0.5 for name in twins)):.2g}"
                for _, own in wide.group_by(SEED, maintain_order=True)
            ]
            said.append(
                f"Exact McNemar test of DiffCLIP against CLIP, trained on {pretraining}, over "
                f"{wide[SAMPLE].n_unique()} pairs, by training seed: p = {', '.join(p)}."
            )
    return said


def pattern_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better on average, and by pattern but for the paper's exception."""
    observed, source = by_pattern(rows["evaluate"]), "Section 4.4, Figure 4"
    (title, mean), *_ = pattern_means(observed).items()
    names = _paper_patterns(observed)

    def by(patterns: Sequence[str], first: str = "DiffCLIP", second: str = "CLIP") -> list[Check]:
        some = [gains(observed, ["mmvp"], first, second, data=pattern, told=True) for pattern in patterns]
        return [check for checks in some for check in checks]

    solved = f"DiffCLIP solves more MMVP pairs than CLIP ({title} patterns)."
    but = " but state and condition" * (EXCEPTION in names)
    every = f"DiffCLIP surpasses or matches CLIP on all categories{but}."
    worse = "In state and condition DiffCLIP solves fewer pairs than CLIP."
    made = [
        Claim("fine-grained", source, solved, gains(mean, ["mmvp"], data=title)),
        Claim("by-pattern", source, every, by([name for name in names if name != EXCEPTION])),
    ]
    if EXCEPTION in names:
        checks = by([EXCEPTION], first="CLIP", second="DiffCLIP")
        made.append(Claim("worse-in-state-and-condition", source, worse, checks))
    return made


FIGURE_4 = diffclip_study(
    "Figure 4",
    "MMVP by visual pattern",
    """MMVP-VLM: pairs of images that look alike, by visual pattern.

The paper (Section 4.4, Figure 4; percent, CC12M) says that DiffCLIP surpasses or matches CLIP on nearly all categories
except state and condition, by 5.7 points on average. Its radar plot shows seven of the nine patterns, of which only
the averages are printed: 23 and 29 of their 105 pairs.

The radar chart here has the patterns of the data, seven or all nine; the bars add intervals and means. "Surpasses or
matches" is tested as a higher share for each of the paper's patterns but state and condition, and the exception by
itself. A pattern has 15 pairs, so a match stays undecided.

A pair counts if both of its statements find their own image among the two. The mean over the paper's seven patterns and
the one over all nine are both here; every pattern counts alike.

Under the profiles ``laptop`` and ``smoke`` the pairs are those of ``emoji-mmvp``: 45 of held-out emoji, in three
patterns of their own. Small models solve 31 to 33 % of them, which three seeds do not tell apart from guessing (25 %),
so the page of ``laptop`` shows no number.
""",
    pattern_cells,
    draw_patterns,
    pattern_claims,
    meaningless={
        "laptop": "No numbers at this size: emoji-mmvp has none of the paper's patterns, and models of the profile "
        "laptop do not solve its pairs distinguishably more often than guessing does (25 %)."
    },
)


def variant_claims(rows: RowsByTable) -> list[Claim]:
    """Claims of Sections 4.5 and 4.6 about the two variants."""
    mean = six_tasks(rows["evaluate"])
    whole = averaged(mean, "task", _ALL)
    kept = [
        Check(f"DiffCLIP† − mean of CLIP and DiffCLIP, six tasks, trained on {name}", _past_the_middle(block))
        for (name,), block in whole.group_by("pretraining", maintain_order=True)
    ]
    statements = {
        "dynamic-above-clip": (
            "DiffCLIP* is better than CLIP in zero-shot, text retrieval and zero-shot under shift.",
            gains(mean, ["zero-shot", "text retrieval", UNDER_SHIFT], DYNAMIC),
        ),
        "dynamic-above-fixed": (
            "DiffCLIP* is better than DiffCLIP in zero-shot and text retrieval.",
            gains(mean, ["zero-shot", "text retrieval"], DYNAMIC, "DiffCLIP"),
        ),
        "dynamic-behind-under-shift": (
            "DiffCLIP* is worse than DiffCLIP under shift.",
            gains(mean, [UNDER_SHIFT], "DiffCLIP", DYNAMIC),
        ),
        "vision-only-above-clip": (
            "DiffCLIP† improves on CLIP in all six tasks.",
            gains(mean, TASKS, VISION_ONLY),
        ),
        "vision-only-keeps-most": (
            "DiffCLIP† keeps more than half of DiffCLIP's gain over CLIP, on average over the six tasks.",
            kept + gains(whole, (_ALL,), "DiffCLIP"),
        ),
    }
    return [
        Claim(name, f"Section 4.{5 if 'dynamic' in name else 6}, Figure 5", words, checks)
        for name, (words, checks) in statements.items()
    ]


def _past_the_middle(mean: pl.DataFrame) -> Estimate | None:
    """Estimate how far DiffCLIP† lies above the middle between CLIP and DiffCLIP."""
    three = ("CLIP", "DiffCLIP", VISION_ONLY)
    some = mean.filter(pl.col("series").is_in(three))
    some = some.filter(pl.col("series").n_unique().over(SEED) == len(three))
    ends = some.with_columns(end=pl.col("series") != VISION_ONLY)
    return difference(ends, {"end": False}, {"end": True}, VALUE)


FIGURE_5 = diffclip_study(
    "Figure 5",
    "Four variants on six tasks",
    """Four variants on six tasks: CLIP, DiffCLIP, DiffCLIP* (λ_init by depth) and DiffCLIP† (image tower alone).

The paper (Sections 4.5 and 4.6, Figure 5; CC12M, points of accuracy or R@5) prints these differences; its bars are only
drawn. Of CLIP and DiffCLIP the averages are those of Tables 1 and 2.

For DiffCLIP* relative to DiffCLIP it also reports zero-shot +.8, text retrieval +.8, shifted −.8; and it says that
differential attention in the image tower alone "already captures most of the benefits". Here that is tested as keeping
more than half of the mean gain over the six tasks.
""",
    lambda profile: task_cells(profile, models(profile, VARIANTS, [bench(profile).main])),
    lambda rows: draw_tasks(rows, 5, "Variants on six tasks"),
    variant_claims,
)
