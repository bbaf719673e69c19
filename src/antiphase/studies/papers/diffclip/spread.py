"""Shared by Tables 4 and 5: spread of accuracies over evaluation seeds and over training seeds."""

import polars as pl

from antiphase.studies.claims import Claim
from antiphase.studies.estimation import SEED
from antiphase.studies.figures import Artefact, Table
from antiphase.studies.papers.diffclip.bench import bench, models, settings
from antiphase.studies.papers.diffclip.observed import AVERAGE, VALUE, averaged, observations, with_average
from antiphase.studies.papers.diffclip.show import KEYS, estimated, gains, model_table
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

_EVALUATION, _TRAINING = "over evaluation seeds", "over training seeds"


def spread_study(
    task: str, label: str, title: str, what: str, text: str | None, paper: pl.DataFrame
) -> Study:
    """Return the study of one task over the seeds of the evaluation and of training.

    Args:
        task: probe or few-shot.
        label: name of the table in the paper.
        title: short title.
        what: what the means are of.
        text: docstring of the module.
        paper: as of ``published``, with standard deviations.
    """
    name = f"diffclip-{label.lower().replace(' ', '-')}"

    def cells(profile: Profile) -> list[Cell]:
        own = bench(profile)
        return [own.evaluate(model, task, data) for model in models(profile) for data in own.probed]

    def draw(rows: RowsByTable) -> Artefact:
        observed = observations(rows["evaluate"])
        means = estimated(with_average(observed))
        return Artefact(
            tables=[
                model_table(name, f"{what}, mean", means, paper, digits=1),
                _spread_table(f"{name}-spread", f"{what}, standard deviation", observed, paper),
            ]
        )

    def claims(rows: RowsByTable) -> list[Claim]:
        return [
            Claim(
                f"{task}-over-seeds",
                f"Appendix B, {label}",
                f"Over the evaluation's seeds, DiffCLIP has a higher {task} accuracy than CLIP on average over the "
                "sets.",
                gains(averaged(observations(rows["evaluate"])), [task]),
            )
        ]

    return Study(name, "diffclip", label, title, text, cells, draw, claims, settings)


def _spread_table(name: str, title: str, observed: pl.DataFrame, paper: pl.DataFrame) -> Table:
    """Return a table with two rows for each model; a kind of which there is one seed has none."""
    spreads = spread(observed)
    theirs = paper.select(*KEYS, over=pl.lit(_EVALUATION), paper="sd")
    none = pl.lit(None, pl.Float64)
    cells = spreads.join(theirs, on=[*KEYS, "over"], how="left", maintain_order="left").select(
        "value",
        "n",
        "seeds",
        "paper",
        low=none,
        high=none,
        column="data",
        row=pl.format("{}, {}, {}", "series", "pretraining", "over"),
    )
    return Table(name, title, "model, trained on", cells, digits=2)


def spread(observed: pl.DataFrame) -> pl.DataFrame:
    """Return the standard deviations of the accuracy over both kinds of seeds.

    Over the seeds of the evaluation it is the paper's: of each model's accuracies under its seeds, and the root of the
    mean of the squares over the models of several training seeds. Over training seeds it is that of the models' means.

    Args:
        observed: as of ``observations``, of one task.

    Returns:
        Columns ``KEYS``, ``over``, ``value``, ``n`` (observations) and ``seeds`` (of training).
    """
    each = observed.group_by([*KEYS, SEED, "seed"], maintain_order=True).agg(
        VALUE.mean(), n=pl.len().cast(pl.Int64)
    )
    each = pl.concat([each, _average(each)])
    models = each.group_by([*KEYS, SEED], maintain_order=True).agg(
        VALUE.mean(), pl.sum("n"), deviation=VALUE.std(), drawn=pl.len()
    )
    found = models.group_by(KEYS, maintain_order=True).agg(
        pl.sum("n"),
        pl.len().cast(pl.Int64).alias("seeds"),
        pl.max("drawn"),
        pl.col("deviation").pow(2).mean().sqrt().alias(_EVALUATION),
        VALUE.std().alias(_TRAINING),
    )
    long = found.unpivot([_EVALUATION, _TRAINING], index=[*KEYS, "n", "seeds"], variable_name="over")
    order = found.select(KEYS).with_row_index("_at")
    long = long.join(order, on=KEYS, maintain_order="left").sort("_at", "over", maintain_order=True)
    return long.filter(VALUE.is_not_null()).drop("_at")


def _average(each: pl.DataFrame) -> pl.DataFrame:
    """Return the mean accuracy over the data sets under each seed, of models that were measured on all.

    A set with nothing to draw has the same accuracy under every seed.
    """
    model = [name for name in (*KEYS, SEED) if name != "data"]
    seeds, sets = (each.select(*model, name).unique(maintain_order=True) for name in ("seed", "data"))
    grid = seeds.join(sets, on=model, maintain_order="left")
    filled = grid.join(each, on=[*model, "seed", "data"], how="left", maintain_order="left").with_columns(
        VALUE.fill_null(VALUE.mean().over([*model, "data"])), pl.col("n").fill_null(0)
    )
    mean = filled.group_by([*model, "seed"], maintain_order=True).agg(
        VALUE.mean(), pl.sum("n"), sets=pl.len()
    )
    most = each["data"].n_unique()
    whole = mean.filter((pl.col("sets") == most) & (most > 1)).with_columns(data=pl.lit(AVERAGE))
    return whole.select(each.columns)
