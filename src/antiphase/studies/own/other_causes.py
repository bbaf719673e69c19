"""The parts of the difference in ASR in other models than those of *Causes*: other initial weights, and larger ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import polars as pl

from antiphase.studies import CORRECT, Artefact, Margin, Panel, Table, TrainVit, estimates, tables
from antiphase.studies.own import asr_causes as causes
from antiphase.studies.own.larger_vits import larger_bench, larger_settings
from antiphase.studies.own.variants import DIFFVIT, PAPER, STARTS, seeds_of, shown_settings
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

_LARGER = "larger "  # before the names of models, so that their cells have names of their own


def ladder(scale: RobustnessBench, seed: int, data: str, start: str, before: str = "") -> dict[str, TrainVit]:
    """Return the models of the two ladders of *Causes*, at other sizes and from other initial weights."""
    sizes = {**scale.sizes, **({"initial_weights": start} if start != "uniform" else {})}
    models = causes.trainings(replace(scale, sizes=sizes), seed, data)
    return {name: replace(models[name], called=before + name) for name in causes.STEPS}


def _cells(profile: Profile, scale: RobustnessBench, starts: Sequence[str], before: str) -> list[Cell]:
    """Return PGD, accuracy and margins of each model, and the least perturbation of DiffViT."""
    made = list[Cell]()
    for data, start, seed in product(scale.data, starts, seeds_of(profile)):
        models = ladder(scale, seed, data, start, before)
        for name, model in models.items():
            margin = Margin(model=model, data=data, limit=scale.images, gradients=name == DIFFVIT)
            made += [scale.attack(model), scale.accuracy(model), margin]
        made.append(causes.nearest(scale, models[DIFFVIT], data))
    return made


def _study(
    name: str,
    bench_of: Callable[[Profile], RobustnessBench],
    starts: Sequence[str],
    settings: Callable[[Profile], dict[str, str]],
    before: str = "",
) -> Study:
    def named(rows: RowsByTable) -> RowsByTable:
        series = pl.col("series").str.strip_prefix(before)
        return {table: frame.with_columns(series=series) for table, frame in rows.items()}

    def draw(rows: RowsByTable) -> Artefact:
        drawn, listed, rows = list[Panel](), list[Table](), named(rows)
        for data in rows["attack"]["data"].unique(maintain_order=True):
            measured = causes.Measured({table: frame.filter(data=data) for table, frame in rows.items()})
            if measured.seeds:
                parts = causes.in_both_orders(measured)
                drawn += causes.parts_panels(parts, data)
                listed += causes.parts_tables(parts, f", {data}", f"{name}-{data}")
        clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
        listed += tables(clean, "Clean accuracy", f"{name}-accuracy", "series", "data")
        return Artefact([PAPER.plot(name, drawn, columns=1, caption="parts")], listed)

    return PAPER.study(
        name,
        lambda profile: _cells(profile, bench_of(profile), starts, before),
        draw,
        lambda rows: causes.ladder_checks(causes.Measured(named(rows))),
        settings,
        by_data=True,
    )


CAUSES_NORMAL = _study("causes-normal", bench, STARTS[1:], shown_settings)
LARGER_CAUSES = _study("larger-causes", larger_bench, STARTS, larger_settings, _LARGER)
