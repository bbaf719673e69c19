"""The result of ``antiphase evaluate``: the numbers of every task, and the differences to the twins.

The headline reads every difference: of all tasks, data sets, settings and metrics of which more is better (``scores``),
so not POPE's share of yes. Which are decided is told by :mod:`antiphase.statistics.decisions`, corrected for all of
them. The title says on which side the decided ones lie, and quotes one of the more frequent side: the first that stands
for its task, else the first. Where none is decided, it quotes the first that stands for its task. The sentences below
give the counts and the other decided differences.

The intervals of some tasks are over units that share their images (``dependent_units``: few-shot episodes), so that
they exclude zero too often: these differences decide the title only if there are no others, and have a sentence of
their own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.text import Text

from antiphase.commands.result import Result, combined_rows, listed
from antiphase.errors import UserError
from antiphase.evaluation.metrics import summarise_tasks
from antiphase.evaluation.rates import by_seed
from antiphase.evaluation.tasks import find_task
from antiphase.registry import TASKS
from antiphase.report.figure import (
    MARKERS,
    STYLE,
    Family,
    draw_radar,
    dress,
    families,
    legend_label,
    seed_counts,
)
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.report.words import p_text, percent, percent_range, points, points_interval, points_range
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate, as_share, mean_over_seeds

Number = Mapping[str, Any]
"""A row of ``results`` or of ``differences`` of the summary."""

_LISTED = 4  # decided differences of each side in a sentence
_CONSOLE_MODELS = 2  # that fit next to the numbers' names in 80 characters
_BAR = 0.22  # of an inch, for each marker
_KEYS = ("model", "task", "data", "setting", "metric")


class EvaluateResult(Result):
    """What models know, with their differences to their twins."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "results", "differences")
    settings_title = "Protocol"

    def headlines(self) -> list[Headline]:
        title, lead = headline(self.summary)
        seeds = seed_counts(families(self.summary["models"]))
        over = (
            "; in figures, models that differ in their training seed alone are drawn as their mean with Student’s t "
            f"over the {seeds} seeds"
            if seeds
            else ""
        )
        words = (
            "Numbers are per cent, with 95 % intervals over the images, captions, episodes or pairs, with the weights "
            f"held fixed{over}. Only the title and the sentence below it are corrected for the number of differences; "
            "intervals and p-values are not."
        )
        return [Headline(title, f"{lead} {words}".lstrip())]

    def sections(self) -> list[Section]:
        groups = families(self.summary["models"])
        sections = []
        for name in TASKS:
            results = [row for row in self.summary["results"] if row["task"] == name]
            if results:
                task = find_task(name)
                draw = radar_figure if task.radar else dot_figure
                plot = Plot(name, draw(results, groups), task.summary, beside=True)
                words = f"{task.summary[0].upper()}{task.summary[1:]}. {task.notes}"
                table = _task_table(name, results, groups)
                sections.append(Section(name, task.title, words, [plot], [table]))
        if differences := self.summary["differences"]:
            table = _difference_table(differences, groups)
            sections.append(Section("differences", "Differences", tables=[table]))
        return sections

    def console(self) -> list[Any]:
        """Return the headline, and numbers down and a few models across."""
        models = [model["name"] for model in self.summary["models"]]
        blocks = [models[start : start + _CONSOLE_MODELS] for start in range(0, len(models), _CONSOLE_MODELS)]
        title = Text(f"{self.headlines()[0].title}.\n", "bold")
        return [title, *(_console_table(self.summary, block).console() for block in blocks)]

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        try:
            differences = summarise_tasks(rows, dict(pairs))["differences"]
        except ValueError as error:
            raise UserError(f"compare: {error}; measure both with the same settings") from None
        if not differences:
            raise UserError(
                "compare: no task was measured in both; measure both with the same tasks and data"
            )
        frame = pl.DataFrame(differences, infer_schema_length=None)
        return frame.rename({"twin": "against", "p": "p_value"})


def heading(number: Number) -> str:
    """Name a number by its setting and metric.

    >>> heading({"task": "zero-shot", "setting": "80", "metric": "top-1"})
    '80 prompts, top-1'
    >>> heading({"task": "retrieval", "setting": "image", "metric": "R@5"})
    'image R@5'
    """
    return find_task(number["task"]).heading(number["setting"], number["metric"])


def headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return the finding in a title and a few sentences, which are empty where there is no difference to read."""
    differences = [row for row in summary["differences"] if find_task(row["task"]).scores(row["metric"])]
    if not differences:
        results = [row for row in summary["results"] if row["headline"]] or summary["results"]
        shown = [
            f"{row['data']}: {row['task']}, {heading(row)} {percent(row['value'])} %" for row in results[:2]
        ]
        more = f" and {len(results) - 2} more numbers" if len(results) > 2 else ""
        return f"{listed(summary['models'])}; {'; '.join(shown)}{more}", ""
    independent = [row for row in differences if not find_task(row["task"]).dependent_units] or differences
    dependent = [row for row in differences if row not in independent]
    units = " and ".join(dict.fromkeys(find_task(row["task"]).dependent_units for row in dependent))
    pairs = list(dict.fromkeys((row["model"], row["twin"]) for row in differences))
    higher, lower = _decided(independent)
    shown = max(higher, lower, key=len) or independent
    quoted = next((row for row in shown if row["headline"]), shown[0])
    if len(pairs) == 1:
        model, twin = pairs[0]
    else:  # count the models, or those that a decided difference is of
        count = len({row["model"] for row in higher + lower})
        model = f"{count} of {len(pairs)} models" if 0 < count < len(pairs) else f"{len(pairs)} models"
        twin = "their twins"
    elsewhere = f" outside {units}" if any(_decided(dependent)) else ""
    verdict = _verdict(model, twin, len(higher), len(lower), len(independent), elsewhere)
    title = _few_seeds(summary["models"], pairs) or verdict
    lead = [_counts("Of", independent)]
    for side, decided in (("Higher", higher), ("Lower", lower)):
        others = [_quoted(row, several=len(pairs) > 1) for row in decided if row is not quoted]
        if others:
            more = f"; {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            lead.append(f"{side}{', too' if quoted in decided else ''}: {'; '.join(others[:_LISTED])}{more}.")
    if dependent:
        lead.append(_counts(f"Over {units}, which share their images, of", dependent))
    return f"{title}: {_quoted(quoted, several=len(pairs) > 1)}", " ".join(lead)


def _verdict(model: str, twin: str, higher: int, lower: int, total: int, elsewhere: str) -> str:
    score = "score" if twin == "their twins" else "scores"
    if not higher and not lower:
        return f"No difference shown between {model} and {twin}{elsewhere}"
    if not higher or not lower:
        return f"{model} {score} {'higher' if higher else 'lower'} than {twin}"
    sides = [("higher", higher), ("lower", lower)]
    (first, many), (second, few) = sides if higher >= lower else reversed(sides)
    return f"{model} {score} {first} than {twin} in {many} of {total} numbers, {second} in {few}"


def _few_seeds(models: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the title where all pairs differ in their training seed alone and are too few for a verdict."""
    if not 1 < len(pairs) < LEAST_SEEDS or any("seed" not in model for model in models):
        return ""
    owner = {name: family for family, names in by_seed(models).items() for name in names}
    sides = {(owner[model], owner[twin]) for model, twin in pairs}
    if len(sides) > 1:
        return ""
    family, against = sides.pop()
    return f"{len(pairs)} training seeds leave undecided whether {family} scores higher than {against}"


def _decided(differences: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    """Return the differences that are decided to be above zero, and those below."""
    estimates = [
        Estimate(
            row["difference"],
            -math.inf if row["low"] is None else row["low"],
            math.inf if row["high"] is None else row["high"],
            row["n"],
        )
        for row in differences
    ]
    signs = decide(estimates, [row["p"] for row in differences])
    higher, lower = (
        [row for row, sign in zip(differences, signs, strict=True) if sign == side] for side in (1, -1)
    )
    return higher, lower


def _counts(begin: str, differences: Sequence[Number]) -> str:
    total, (higher, lower) = len(differences), map(len, _decided(differences))
    return (
        f"{begin} {total} difference{'' if total == 1 else 's'} {higher} {'is' if higher == 1 else 'are'} above zero, "
        f"{lower} below, and {total - higher - lower} undecided (5 % level, corrected by Holm)."
    )


def _quoted(row: Number, several: bool) -> str:
    number = points_interval(row["difference"], row["low"], row["high"])
    which = f"{row['model']}, " if several else ""
    return f"{number} in {which}{row['task']}, {heading(row)} on {row['data']} (n = {row['n']:,})"


def _task_table(task: str, results: Sequence[Number], groups: Sequence[Family]) -> Table:
    """Tabulate the numbers of a task: models and data sets down, numbers across."""
    colors = {model: family.color for family in groups for model in family.models}
    columns = list(dict.fromkeys(map(heading, results)))
    blocks: dict[tuple[str, str], dict[str, Number]] = {}
    for row in results:
        blocks.setdefault((row["model"], row["data"]), {})[heading(row)] = row
    rows = []
    for (model, data), numbers in blocks.items():
        fields = (_field(numbers.get(column)) for column in columns)
        rows.append((Field(model, color=colors[model], kind="name"), Field(data, kind="word"), *fields))
    csv = pl.DataFrame(results, infer_schema_length=None).write_csv()
    return Table(task, f"{task}, %", ("model", "data", *columns), tuple(rows), csv)


def _difference_table(differences: Sequence[Number], groups: Sequence[Family]) -> Table:
    """Tabulate how much higher each model is than its twin."""
    colors = {model: family.color for family in groups for model in family.models}
    rows = tuple(
        (
            Field(row["model"], (), colors[row["model"]], "name"),
            Field(row["twin"], kind="word"),
            Field(f"{row['data']}: {heading(row)}", kind="word"),
            Field(points(row["difference"]), (points_range(row["low"], row["high"]),)),
            Field("–" if row["p"] is None else p_text(row["p"])),
        )
        for row in differences
    )
    csv = pl.DataFrame(differences, infer_schema_length=None).write_csv()
    columns = ("model", "twin", "number", "difference, points", "p (McNemar)")
    return Table("differences", "Differences to the twins, on the same images", columns, rows, csv)


def _console_table(summary: Mapping[str, Any], models: Sequence[str]) -> Table:
    differences = {tuple(row[key] for key in _KEYS): row for row in summary["differences"]}
    blocks: dict[tuple[str, str], dict[str, dict[str, Field]]] = {}
    for row in sorted(summary["results"], key=lambda row: list(TASKS).index(row["task"])):
        value, (interval, *notes) = _field(row).text, _field(row).notes
        if difference := differences.get(tuple(row[key] for key in _KEYS)):
            apart = points_range(difference["low"], difference["high"]).replace(" to ", " ")
            notes.append(f"Δ {points(difference['difference'])} [{apart}]")
        field = Field(f"{value} [{interval}]", tuple(notes))
        block = blocks.setdefault((row["task"], row["data"]), {})
        block.setdefault(heading(row), {})[row["model"]] = field
    rows = []
    for place, numbers in blocks.items():
        rows.append((Field(", ".join(place)), *(Field("") for _ in models)))
        for number, fields in numbers.items():
            rows.append((Field(f"  {number}"), *(fields.get(model, Field("–")) for model in models)))
    title = "% and 95 % interval" + (", Δ to the twin" if differences else "")
    return Table("numbers", title, ("", *models), tuple(rows), "")


def _field(result: Number | None) -> Field:
    if result is None:
        return Field("–")
    notes = [percent_range(result["low"], result["high"])]
    if result["seed_sd"] is not None:
        notes.append(f"sd over {result['seeds']} seeds {percent(result['seed_sd'])}")
    if result["unit_sd"] is not None:
        notes.append(f"over episodes {percent(result['unit_sd'])}")
    return Field(percent(result["value"]), tuple(notes))


def dot_figure(results: Sequence[Number], groups: Sequence[Family]) -> Figure:
    """Draw the headline number of each data set and setting, a marker a family with its 95 % interval.

    A family of one model has its interval over the images; one of several has the mean over its training seeds and
    Student's t.
    """
    lines: dict[tuple[str, str], list[Number]] = {}
    for row in results:
        if row["headline"]:
            lines.setdefault((row["data"], heading(row)), []).append(row)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.9 + _BAR * len(lines) * (len(groups) + 1)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for index, family in enumerate(groups):
            for place, rows in enumerate(lines.values()):
                rows = [row for row in rows if row["model"] in family.models]
                if not rows:
                    continue
                value, low, high = _interval(rows)
                axes.errorbar(
                    100 * value,
                    -place + 0.35 - 0.7 * (index + 0.5) / len(groups),
                    xerr=[[100 * max(value - low, 0)], [100 * max(high - value, 0)]],
                    fmt=MARKERS[index % len(MARKERS)],
                    ms=5,
                    color=family.color,
                    elinewidth=1.3,
                    capsize=2.5,
                    label=f"family {index}" if place == 0 else None,
                )
        labels = [f"{_fitting(data)}\n{_fitting(name)}" for data, name in lines]
        axes.set_yticks([-place for place in range(len(lines))], labels)
        axes.set_ylim(-len(lines) + 0.45, 0.55)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, 0), min(high, 100))
        axes.set_xlabel("%")
        dress(axes, "x")
        _add_legend(axes, groups)
    return figure


def radar_figure(results: Sequence[Number], groups: Sequence[Family]) -> Figure:
    """Draw the accuracy of each pattern of MMVP-VLM as a radar chart, as in DiffCLIP's Figure 4.

    Families of several models have their mean. A pattern has 15 pairs, so a step of the chart is 7 points: intervals
    are in the table.
    """
    shown = [row for row in results if not row["headline"]]
    patterns = list(dict.fromkeys(row["metric"] for row in shown))
    lines = []
    for index, family in enumerate(groups):
        rows = [row for row in shown if row["model"] in family.models]
        values = [[row["value"] for row in rows if row["metric"] == pattern] for pattern in patterns]
        means = [100 * sum(value) / len(value) if value else math.nan for value in values]
        look = {"marker": MARKERS[index % len(MARKERS)], "ms": 4, "lw": 1.7}
        look |= {"color": family.color, "label": f"family {index}"}
        lines += [(means, look)] if rows else []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.add_subplot(projection="polar")
        draw_radar(axes, patterns, lines)
        _add_legend(axes, groups)
    return figure


def _interval(rows: Sequence[Number]) -> tuple[float, float, float]:
    if len(rows) > 1:
        mean = as_share(mean_over_seeds([row["value"] for row in rows]))
        return mean.value, mean.low, mean.high
    value = rows[0]["value"]
    return value, *(value if rows[0][end] is None else rows[0][end] for end in ("low", "high"))


def _fitting(text: str) -> str:
    """Leave the middle of a long name out, such as a path's, so that the axes keep their room.

    >>> _fitting("a" * 20 + "b" * 40)
    'aaaaaaaaaaaa…bbbbbbbbbbbbbbbbbbbbbbb'
    """
    return text if len(text) <= 36 else f"{text[:12]}…{text[-23:]}"


def _add_legend(axes: Any, groups: Sequence[Family]) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawn = [groups[int(label.rpartition(" ")[2])] for label in labels]
    legend = axes.figure.legend(
        handles, labels, frameon=False, loc="outside upper left", fontsize=8.5, ncols=min(len(drawn), 2)
    )
    for text, family in zip(legend.get_texts(), drawn, strict=True):
        text.set(text=legend_label(family), parse_math=False)
