"""The result of ``antiphase evaluate``: the numbers of every task, and the differences to the twins.

The title counts the decided differences of all metrics of which more is better (``scores``), and quotes one of the more
frequent side: the first that stands for its task, else the first. Those whose intervals are over units that share
images (``dependent_units``: few-shot episodes) exclude zero too often: they decide only if there are no others.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.result import Result, combined_rows, listed
from antiphase.errors import UserError
from antiphase.evaluation import metrics, tasks
from antiphase.evaluation.rates import by_seed
from antiphase.registry import TASKS
from antiphase.report import figure as figures
from antiphase.report.page import Headline, Plot, Section, answer, text
from antiphase.report.table import Field, Table, difference_field, rate_field, tabulate
from antiphase.report.words import estimate_of, p_text, percent, points, points_interval
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import as_difference, as_share

Number = Mapping[str, Any]
"""A row of ``results`` or of ``differences`` of the summary."""

_words = partial(text, "evaluate.txt")
LEVELS = {"answers at random": "chance", "always the largest class": "constant"}  # shown below the models


class EvaluateResult(Result):
    """What models know, with their differences to their twins."""

    keys = ("models", "results", "differences")

    def headlines(self) -> list[Headline]:
        return [headline(self.summary)]

    def sections(self) -> list[Section]:
        groups, sections = self.families, []
        for name in TASKS:
            if results := [row for row in self.summary["results"] if row["task"] == name]:
                task = tasks.find_task(name)
                caption = f"{task.summary[0].upper()}{task.summary[1:]}, with 95 % intervals."
                plot = Plot(name, numbers_figure(results, groups), caption, beside=True)
                table = _task_table(name, results, groups)
                sections.append(Section(name, task.title, task.notes, [plot], [table]))
        if differences := self.summary["differences"]:
            table = _difference_table(differences, groups)
            sections.append(Section("differences", "Differences", tables=[table]))
        return sections

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        differences = []
        for _, block in rows.group_by("task", "data", "setting", maintain_order=True):
            with suppress(ValueError):  # other units, as of other settings
                differences += metrics.summarise_tasks(block, dict(pairs))["differences"]
        if not differences:
            fix = "measure both with the same tasks, settings and data"
            raise UserError(f"compare: no task was measured in both with the same settings and data; {fix}")
        return pl.DataFrame(differences, infer_schema_length=None)


def heading(number: Number) -> str:
    """Name a number by its setting and metric, such as ``80 prompts, top-1``."""
    return tasks.find_task(number["task"]).heading(number["setting"], number["metric"])


def headline(summary: Mapping[str, Any]) -> Headline:
    """Return the finding, and the numbers that stand for their tasks as a figure."""
    differences = [row for row in summary["differences"] if tasks.find_task(row["task"]).scores(row["metric"])]
    if not differences:
        results = [row for row in summary["results"] if row["headline"]] or summary["results"]
        names = {"names": listed(summary["models"]), "data": results[0]["data"]}
        title = answer("evaluate.txt", "alone", names, row=results[0], heading=heading)
        return Headline(title, _words("reading"), plot=lambda: answer_plot(summary, [], results[0]))
    independent = [row for row in differences if not tasks.find_task(row["task"]).dependent_units] or differences
    dependent = [row for row in differences if row not in independent]
    pairs = list(dict.fromkeys((row["model"], row["twin"]) for row in differences))
    decisions = higher, lower, _ = _decided(independent)
    shown = max(higher, lower, key=len) or independent
    quoted = next((row for row in shown if row["headline"]), shown[0])
    sides = pairs[0] if len(pairs) == 1 else (f"{len(pairs)} models", "their twins")
    few = _few_seeds(summary["models"], pairs)
    number = points_interval(quoted["difference"], quoted["low"], quoted["high"])
    values = {"pairs": pairs, "few": bool(few), "row": quoted, "heading": heading, "least_seeds": LEAST_SEEDS}
    values |= {"number": f"{points(quoted['difference'])} points" if higher and lower else number}
    values |= {"own": decisions, "shared": _decided(dependent)}
    values |= {"units": " and ".join(dict.fromkeys(tasks.find_task(row["task"]).dependent_units for row in dependent))}
    values |= {"others": [_quoted(row) for row in higher + lower if row is not quoted]}
    title = answer("evaluate.txt", "title", dict(zip(("model", "twin"), few or sides, strict=True)), **values)
    lead = f"{_words('lead', **values)} {_words('reading')}"
    return Headline(title, lead, _words("condition", **values), lambda: answer_plot(summary, differences, quoted))


def _few_seeds(models: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Name the two families where all pairs differ in their training seed alone and are too few for a verdict."""
    if not 1 < len(pairs) < LEAST_SEEDS or any("seed" not in model for model in models):
        return ()
    sides = {(_owners(models)[model], _owners(models)[twin]) for model, twin in pairs}
    return sides.pop() if len(sides) == 1 else ()


def _owners(models: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {name: family for family, names in by_seed(models).items() for name in names}


_MOST_LINES = 12  # of the figure next to the title


def answer_plot(summary: Mapping[str, Any], differences: Sequence[Number], quoted: Number) -> Plot:
    """Draw the differences that stand for their tasks, and the numbers that the title compares, above chance."""
    owner, colors = _owners(summary["models"]), figures.colors_of(figures.families(summary["models"]))

    def place(row: Number) -> tuple[str, ...]:
        return tuple(row[name] for name in ("task", "data", "setting", "metric"))

    rows, seeds, sides = [], 1, ()
    if differences:
        sides = owner[quoted["model"]], owner[quoted["twin"]]
        of_place: dict[tuple[str, ...], list[Number]] = {place(quoted): []}  # the title's comes first
        for row in differences:
            if (row["headline"] or place(row) == place(quoted)) and (owner[row["model"]], owner[row["twin"]]) == sides:
                of_place.setdefault(place(row), []).append(row)
        seeds = max(map(len, of_place.values()))
        higher, lower, _ = _decided(differences)
        for where, of_pairs in of_place.items():
            estimates = [estimate_of(row, "difference") for row in of_pairs]
            sign = (of_pairs[0] in higher) - (of_pairs[0] in lower)
            if seeds > 1:
                (sign,) = decide([figures.mean_line("", estimates, as_difference).estimate], seeds=seeds)
            rows.append((f"{heading(of_pairs[0])}, {of_pairs[0]['data']}", estimates, sign, where == place(quoted)))
    rates: dict[str, list[Number]] = {}
    for row in summary["results"]:
        if place(row) == place(quoted):
            rates.setdefault(owner[row["model"]], []).append(row)
    level = next((row["chance"] for several in rates.values() for row in several if row["chance"]), None)
    title = figures.shortened(f"{heading(quoted)}, {quoted['data']}")
    accuracies = [(name, colors[name], list(map(estimate_of, rates.get(name, ())))) for name in sides or tuple(rates)]
    more = max(0, len(rows) - _MOST_LINES)
    caption = _words("answer", seeds=seeds if seeds > 1 else 0, more=more, compared=bool(differences))
    return Plot("answer", figures.answer_figure("Difference", rows[:_MOST_LINES], title, accuracies, level), caption)


def _decided(differences: Sequence[Number]) -> tuple[list[Number], ...]:
    """Return the differences that are decided to be above zero, those below, and the others."""
    signs = decide([estimate_of(row, "difference") for row in differences], [row["p"] for row in differences])
    return tuple([row for row, sign in zip(differences, signs, strict=True) if sign == side] for side in (1, -1, 0))


def _quoted(row: Number) -> str:
    number = points_interval(row["difference"], row["low"], row["high"])
    return f"{number} for {row['model']} in {row['task']}, {heading(row)} on {row['data']} (n = {row['n']:,})"


def _task_table(task: str, results: Sequence[Number], groups: Sequence[figures.Family]) -> Table:
    """Tabulate the numbers of a task: models and data sets down, then levels without a model; numbers across."""
    frame = pl.DataFrame(results, infer_schema_length=None)
    heads = list(map(heading, results))
    shown = frame.with_columns(color=pl.col("model").replace_strict(figures.colors_of(groups)), number=pl.Series(heads))
    once = shown.unique(["data", "number"], keep="first", maintain_order=True).with_columns(color=pl.lit(""))
    levels = [
        once.drop_nulls(level).with_columns(model=pl.lit(words), value=pl.col(level).cast(pl.Float64))
        for words, level in LEVELS.items()
    ]
    shown = pl.concat([shown, *levels])
    columns = {head: head for head in heads}
    return tabulate(task, f"{task}, %", shown, ["model", "data"], "number", _field, columns, frame)


def _field(row: Number) -> Field:
    if row["model"] in LEVELS:
        return Field(percent(row["value"]))
    field = rate_field(row)
    notes = [*field.notes]
    if row["seed_sd"] is not None:
        notes.append(f"sd over {row['seeds']} seeds {percent(row['seed_sd'])}")
    if row["unit_sd"] is not None:
        notes.append(f"over episodes {percent(row['unit_sd'])}")
    return replace(field, notes=tuple(notes))


def _difference_table(differences: Sequence[Number], groups: Sequence[figures.Family]) -> Table:
    colors = figures.colors_of(groups)
    rows = []
    for row in differences:
        sides = Field(row["model"], (), colors[row["model"]], "name"), Field(row["twin"], kind="word")
        p = Field("–" if row["p"] is None else p_text(row["p"]))
        rows.append((*sides, Field(f"{row['data']}: {heading(row)}", kind="word"), difference_field(row), p))
    csv = pl.DataFrame(differences, infer_schema_length=None).write_csv()
    columns = ("model", "twin", "number", "difference, points", "p")
    return Table("differences", "Differences to the twins, on the same images", columns, tuple(rows), csv)


def numbers_figure(results: Sequence[Number], groups: Sequence[figures.Family]) -> Figure:
    """Draw the numbers that stand for a task, or all of one that draws all: a panel each, a line for each family."""
    shown = [row for row in results if row["headline"] or tasks.find_task(row["task"]).draws_all]
    panels: dict[str, list[Number]] = {}
    for row in shown:
        panels.setdefault(f"{heading(row)}, {row['data']}", []).append(row)
    forests = []
    for title, rows in panels.items():
        of_family = [[estimate_of(row) for row in rows if row["model"] in group.models] for group in groups]
        pairs = [(group, some) for group, some in zip(groups, of_family, strict=True) if some]
        lines = [figures.mean_line(figures.legend_label(group), some, as_share, group.color) for group, some in pairs]
        forests.append(figures.Forest(f"{figures.shortened(title, 60)}, %", lines))
    drawn = [line.estimate for forest in forests for line in forest.lines]
    low, high = min(one.low for one in drawn) - 0.02, max(one.high for one in drawn) + 0.02
    return figures.forest_figure([replace(forest, limits=(max(0.0, low), min(1.0, high))) for forest in forests])
