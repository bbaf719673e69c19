"""Shared by Figures 1 and 5: models on six tasks, each a mean over its data sets."""

from collections.abc import Sequence

import polars as pl

from antiphase.studies.cells import Given, TrainClip
from antiphase.studies.estimation import SEED
from antiphase.studies.figures import ESTIMATES, Artefact, Plot
from antiphase.studies.papers.diffclip.bench import SHIFTED, bench
from antiphase.studies.papers.diffclip.observed import AVERAGE, averaged, observations
from antiphase.studies.papers.diffclip.show import KEYS, apart, bars, caption, estimated, model_table
from antiphase.studies.spec import Cell, Profile, RowsByTable

UNDER_SHIFT = "zero-shot, shifted"
TASKS = ("probe", "few-shot", "image retrieval", "text retrieval", "zero-shot", UNDER_SHIFT)


def task_cells(profile: Profile, models: Sequence[TrainClip | Given]) -> list[Cell]:
    """Return all tasks on all data sets, of some models."""
    own = bench(profile)
    found: list[Cell] = []
    for model in models:
        found += [own.evaluate(model, task, data) for task in ("probe", "few-shot") for data in own.probed]
        found += [own.evaluate(model, "retrieval", data) for data in own.retrieved]
        found += [own.evaluate(model, "zero-shot", data) for data in (own.home, *own.shifted)]
    return found


def six_tasks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the six tasks, each a mean over its data sets."""
    shifted = (pl.col("task") == "zero-shot") & pl.col("data").is_in(SHIFTED)
    task = pl.when(shifted).then(pl.lit(UNDER_SHIFT)).otherwise("task")
    return averaged(observations(rows).with_columns(task=task).filter(pl.col("task").is_in(TASKS)))


def draw_tasks(rows: RowsByTable, name: str, what: str, paper: pl.DataFrame) -> Artefact:
    """Return bars for each task and their differences to CLIP, and both as tables.

    Args:
        rows: of :func:`task_cells`.
        name: of the figure and of the tables' CSV.
        what: title of the table.
        paper: as of ``published``, with columns ``Avg.`` and ``gain``.
    """
    mean = six_tasks(rows["evaluate"])
    found, gained = estimated(mean), _gains(mean)
    panels = []
    for (trained_on,), block in found.group_by("pretraining", maintain_order=True):
        theirs = paper.filter(pretraining=trained_on)
        panels += [
            bars(
                f"trained on {trained_on}",
                "accuracy or R@5",
                block,
                theirs.filter(data=AVERAGE),
                "task",
                TASKS,
            ),
            bars(
                "difference to CLIP",
                "points",
                gained.filter(pretraining=trained_on),
                theirs.filter(data="gain"),
                "task",
                TASKS,
                level=0.0,
            ),
        ]
    words = caption(f"{what}, each a mean over its data sets.", found, "samples")
    tables = [
        model_table(name, what, found, paper, pl.col("task")),
        model_table(
            f"{name}-gains", "Differences to CLIP, points", gained, paper.filter(data="gain"), pl.col("task")
        ),
    ]
    return Artefact([Plot(name, words, tuple(panels), columns=1)], tables)


def _gains(mean: pl.DataFrame) -> pl.DataFrame:
    """Return estimates of every variant's difference to CLIP, on every task."""
    rows: list[tuple[object, ...]] = []
    for (task, pretraining), block in mean.group_by("task", "pretraining", maintain_order=True):
        for series in block["series"].unique(maintain_order=True):
            found = None if series == "CLIP" else apart(block, {}, series, "CLIP")
            if found is not None:
                seeds = block.filter(series=series)[SEED].n_unique()
                rows.append(
                    (task, pretraining, series, "gain", found.value, found.low, found.high, found.n, seeds)
                )
    return pl.DataFrame(rows, dict.fromkeys(KEYS, pl.String) | ESTIMATES, orient="row")
