"""Tables 1, 2, 4 and 5: linear probe, few-shot, retrieval and zero-shot by data set, and their spread over seeds."""

from collections.abc import Sequence
from functools import partial

import polars as pl

from antiphase.data.sources import PROBE_SETS
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SEED
from antiphase.studies.figures import Artefact, Table, tables
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.diffclip.bench import PAPER, bench, clip_study, measured, models
from antiphase.studies.papers.diffclip.paper_tables import (
    AVERAGE,
    KEYS,
    VALUE,
    averaged,
    compared,
    estimated,
    gains,
    levels,
    model_table,
    observations,
    published,
    with_average,
)
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

TITLES = {"probe": "Linear probe, accuracy", "few-shot": "Few-shot (5-way 5-shot), accuracy"}
RETRIEVAL = ("image retrieval", "text retrieval")
_EVALUATION, _TRAINING = "over evaluation seeds", "over training seeds"


def _probed(profile: Profile, *tasks: str) -> list[Cell]:
    """Return some tasks on every set, of both models and all seeds."""
    sets = [(task, data) for task in tasks for data in bench(profile).probed]
    return measured(profile, sets, models(profile))


def draw_table_1(rows: RowsByTable) -> Artefact:
    """Show a table for each of the two tasks."""
    means, paper = estimated(with_average(observations(rows["evaluate"]))), published("table-1")
    listed: list[Table] = []
    level = levels(rows["evaluate"])
    for task, title in TITLES.items():
        listed += model_table(f"diffclip-table-1-{task}", title, means.filter(task=task), paper, level=level)
    return Artefact(tables=listed)


def checks_of_table_1(rows: RowsByTable) -> Checks:
    """Check that DiffCLIP is better on average over the data sets, and on all of them but one of nine."""
    observed = observations(rows["evaluate"])
    checks: dict[str, Sequence[Check] | Claim] = {
        f"{task}-average": gains(averaged(observed), [task]) for task in TITLES
    }
    for task in TITLES:
        for name in compared(observed.filter(task=task)):
            block = observed.filter(pretraining=name, task=task)
            sets = block["data"].unique(maintain_order=True).to_list()
            values = {"sets": len(sets), "exceptions": len(sets) // len(PROBE_SETS)}
            words = filled(PAPER.words["notes"]["almost-every"], task=task, trained_on=name, **values)
            own = [check for data in sets for check in gains(block, [task], data=data, told=True)]
            key, exceptions = f"{task}-almost-every-{name}", values["exceptions"]
            checks[key] = Claim(key, "Section 4.2, Table 1", words, own, exceptions=exceptions)
    return checks


TABLE_1 = clip_study(
    "diffclip-table-1", lambda profile: _probed(profile, "probe", "few-shot"), draw_table_1, checks_of_table_1
)


def table_2_cells(profile: Profile) -> list[Cell]:
    """Retrieval on every set and zero-shot on the home set, of both models and all seeds."""
    sizes = bench(profile)
    asked = [*(("retrieval", data) for data in sizes.retrieved), ("zero-shot", sizes.home)]
    return measured(profile, asked, models(profile))


def draw_table_2(rows: RowsByTable) -> Artefact:
    """Show a table for each direction of retrieval and one for zero-shot."""
    means, paper = estimated(with_average(observations(rows["evaluate"]))), published("table-2")
    listed: list[Table] = []
    level = levels(rows["evaluate"])
    for task in RETRIEVAL:
        name, title = f"diffclip-table-2-{task.split()[0]}", f"{task.capitalize()}, R@5"
        listed += model_table(name, title, means.filter(task=task), paper, level=level)
    prompts = pl.col("task").str.strip_prefix("zero-shot")
    named = pl.when(prompts != "").then(pl.format("{} prompts", prompts)).otherwise(pl.lit(""))
    rest, column = means.filter(~pl.col("task").is_in(RETRIEVAL)), pl.format("{}{}", "data", named)
    listed += model_table(
        "diffclip-table-2-zero-shot", "Zero-shot, accuracy", rest, paper, column, level=level
    )
    return Artefact(tables=listed)


def checks_of_table_2(rows: RowsByTable) -> Checks:
    """Check that DiffCLIP is better in all three columns."""
    mean = averaged(observations(rows["evaluate"]))
    return {"retrieval": gains(mean, RETRIEVAL), "zero-shot": gains(mean, ["zero-shot"])}


TABLE_2 = clip_study("diffclip-table-2", table_2_cells, draw_table_2, checks_of_table_2)


def _spread_study(number: int, task: str) -> Study:
    """Return the study of one task over the seeds of the evaluation and of training."""
    name = f"diffclip-table-{number}"
    paper = published(f"table-{number}")

    def draw(rows: RowsByTable) -> Artefact:
        observed = observations(rows["evaluate"])
        every = estimated(with_average(observed))
        means = model_table(name, f"{TITLES[task]}, mean", every, paper, level=levels(rows["evaluate"]))
        theirs = paper.select(*KEYS, over=pl.lit(_EVALUATION), value="sd")
        none = pl.lit(None, pl.Float64)
        deviations = spread(observed).with_columns(low=none, high=none)
        row, words = (
            pl.format("{}, {}, {}", "series", "pretraining", "over"),
            f"{TITLES[task]}, standard deviation",
        )
        show = partial(tables, index="model, trained on", digits=2, paper=theirs)
        return Artefact(tables=means + show(deviations, words, f"{name}-spread", row, "data"))

    def checks(rows: RowsByTable) -> Checks:
        return {f"{task}-over-seeds": gains(averaged(observations(rows["evaluate"])), [task])}

    return clip_study(name, lambda profile: _probed(profile, task), draw, checks)


def spread(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the standard deviations of the accuracy over both kinds of seeds.

    Over the seeds of the evaluation it is the paper's: of each model's accuracies under its seeds, and the root of the
    mean of the squares over the models of several training seeds. Over training seeds it is that of the models' means;
    a kind of which there is one seed has none.
    """
    count = pl.len().cast(pl.Int64)
    means = observed.group_by([*KEYS, SEED, "seed"], maintain_order=True).agg(VALUE.mean(), n=count)
    means = pl.concat([means, _average(means)])
    by_model = means.group_by([*KEYS, SEED], maintain_order=True)
    deviations = (
        by_model.agg(VALUE.mean(), pl.sum("n"), deviation=VALUE.std())
        .group_by(KEYS, maintain_order=True)
        .agg(
            pl.sum("n"),
            count.alias("seeds"),
            pl.col("deviation").pow(2).mean().sqrt().alias(_EVALUATION),
            VALUE.std().alias(_TRAINING),
        )
        .with_row_index("place")
    )
    long = deviations.unpivot(
        [_EVALUATION, _TRAINING], index=[*KEYS, "n", "seeds", "place"], variable_name="over"
    )
    return long.sort("place", "over", maintain_order=True).drop("place").drop_nulls("value")


def _average(means: pl.DataFrame) -> pl.DataFrame:
    """Return the mean accuracy over the data sets under each seed, of models that were measured on all."""
    model = [name for name in (*KEYS, SEED) if name != "data"]
    seeds, sets = (means.select(*model, name).unique(maintain_order=True) for name in ("seed", "data"))
    grid = seeds.join(sets, on=model, maintain_order="left")
    every = grid.join(means, on=[*model, "seed", "data"], how="left", maintain_order="left").with_columns(
        VALUE.fill_null(VALUE.mean().over([*model, "data"])), pl.col("n").fill_null(0)
    )
    most = means["data"].n_unique()
    mean = every.group_by([*model, "seed"], maintain_order=True).agg(VALUE.mean(), pl.sum("n"), sets=pl.len())
    whole = mean.filter((pl.col("sets") == most) & (most > 1)).with_columns(data=pl.lit(AVERAGE))
    return whole.select(means.columns)


TABLE_4 = _spread_study(4, "probe")
TABLE_5 = _spread_study(5, "few-shot")
