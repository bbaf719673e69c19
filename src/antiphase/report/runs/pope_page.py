"""The page of an attack on POPE's answers: does a model say yes for absent objects more often under attack?"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from antiphase.budgets import eps_label
from antiphase.files import replacing, write_text
from antiphase.report.figure import MARKERS, STYLE, Family, dress, families, legend_label
from antiphase.report.page import embedded, environment
from antiphase.report.runs.gallery import cards, has_hard_pixels, magnification
from antiphase.report.runs.stored import RUN_KEYS, read_json
from antiphase.report.table import Field, ruled_table
from antiphase.report.table import Table as Sheet
from antiphase.report.words import attack_label, percent, percent_range, points_interval
from antiphase.runs.gallery import read_gallery
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate
from antiphase.vlm.attack import ALL

Row = Mapping[str, Any]
_PANELS = {"false yes": "yes to absent objects, %", "accuracy": "right answers, %"}


def write_pope_page(directory: Path) -> Path:
    """Write ``report.html`` into the directory of an attack on POPE's answers, with its figure next to it.

    Everything is drawn from ``summary.json``, ``run.json``, ``gallery.safetensors`` and ``questions.json``.

    Returns:
        The path of the page.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    summary = read_json(directory / "summary.json", ("models", "pope"))
    run = read_json(directory / "run.json", RUN_KEYS)
    groups, told = families(summary["models"]), summary["pope"]
    figure = embedded(
        pope_figure(told["results"], groups), "false-yes", "rates over ε; the table below has the numbers"
    )
    for ending, content in figure["files"].items():
        with replacing(directory / f"false-yes.{ending}") as temporary:
            temporary.write_bytes(content)
    title, lead = pope_headline(told)
    rates, *differences = pope_sheets(told, groups)
    page = (
        environment()
        .get_template("pope.html")
        .render(
            run=run,
            title=title,
            lead=lead,
            figure_drawn=figure,
            rates=rates,
            differences=differences[0] if differences else None,
            gallery=_gallery(directory, groups),
        )
    )
    path = directory / "report.html"
    write_text(path, page)
    return path


def pope_headline(told: Mapping[str, Sequence[Row]]) -> tuple[str, str]:
    """Return the answer to whether hallucination moves more for the models than for their twins, and its numbers.

    It is judged at the smallest ε and under the first attack. Where an attack changes every answer, as large budgets
    tend to, the difference of the rises says nothing but which model said yes more often before.
    """
    eps = min(row["eps"] for row in told["results"] if row["eps"])
    moves = [
        row
        for row in told["differences"]
        if (row["what"], row["metric"], row["sampling"], row["eps"]) == ("move", "false yes", ALL, eps)
    ]
    if not moves:
        first = told["results"][0]["attack"]
        asked = ("false yes", ALL, first)
        shown = [r for r in told["results"] if (r["metric"], r["sampling"], r["attack"]) == asked]
        words = [f"{r['family']}: {percent(r['value'])} % ({_at(r['eps'])})" for r in shown]
        return "Yes to absent objects under attack", "; ".join(words) + "."
    row = moves[0]
    model, twin = row["model"], row["twin"]
    low, high = row["low"], row["high"]
    ends = (-math.inf if low is None else low, math.inf if high is None else high)
    (sign,) = decide([Estimate(row["value"], *ends, row["n"])], seeds=row["seeds"])
    few = (
        f"; fewer than {LEAST_SEEDS} training seeds decide nothing" if 1 < row["seeds"] < LEAST_SEEDS else ""
    )
    if not sign:
        title = (
            f"Whether an attack makes {model} say yes to absent objects more often than {twin} is not decided"
        )
    else:
        more = "more" if sign > 0 else "less"
        title = f"An attack raises the share of yes to absent objects {more} for {model} than for {twin}"
    seeds = f"{row['seeds']} pairs of models and " if row["seeds"] > 1 else ""
    number = points_interval(row["value"], low, high)
    over = f"95 % interval over {seeds}{row['n']:,} images"
    return title, f"Difference of the two rises at ε = {eps_label(eps)}: {number} ({over}{few})."


def console_table(told: Mapping[str, Sequence[Row]]) -> Table:
    """Return the headline and the rates for a console of 80 columns."""
    title, lead = pope_headline(told)
    found = [row for row in told["results"] if row["metric"] == "false yes"]
    eps = sorted({row["eps"] for row in found})
    attacks = {row["attack"] for row in found}
    table = ruled_table(f"{title}.\n{lead}\n\nYes to absent objects, % [95 % interval]", title_style="")
    for column in ("", "questions", *("no attack" if not each else f"ε = {eps_label(each)}" for each in eps)):
        table.add_column(column, overflow="fold")
    for family, attack, sampling in dict.fromkeys((r["family"], r["attack"], r["sampling"]) for r in found):
        its = {
            r["eps"]: r
            for r in found
            if (r["family"], r["attack"], r["sampling"]) == (family, attack, sampling)
        }
        name = family if len(attacks) == 1 else f"{family}, {_attack(attack)}"
        table.add_row(
            name, sampling, *(f"{percent(its[each]['value'])}\n[{_range(its[each])}]" for each in eps)
        )
    return table


def pope_sheets(told: Mapping[str, Sequence[Row]], groups: Sequence[Family]) -> list[Sheet]:
    """Return the table of rates and, where models were compared, that of differences."""
    differences = _differences(told["differences"], groups)
    return [_rates(told["results"], groups), *([differences] if differences else [])]


def pope_figure(results: Sequence[Row], groups: Sequence[Family]) -> Figure:
    """Draw false yes and accuracy over ε under the first attack, a line for each family with 95 % intervals."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        attack = results[0]["attack"]
        apart = 5.0 * max(row["eps"] for row in results)  # of 255, so that error bars do not hide each other
        for axes, (metric, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
            for at, family in enumerate(groups):
                its = sorted(
                    (
                        r
                        for r in results
                        if (r["family"], r["metric"], r["sampling"], r["attack"])
                        == (family.name, metric, ALL, attack)
                    ),
                    key=lambda row: row["eps"],
                )
                values = [100 * row["value"] for row in its]
                ends = [
                    [100 * (math.nan if row[end] is None else row[end]) for row in its]
                    for end in ("low", "high")
                ]
                errors = [
                    [
                        max(sign * (v - e), 0.0) if not math.isnan(e) else 0.0
                        for v, e in zip(values, some, strict=True)
                    ]
                    for sign, some in zip((1, -1), ends, strict=True)
                ]
                axes.errorbar(
                    [255 * row["eps"] + apart * at for row in its],
                    values,
                    yerr=errors,
                    ms=5,
                    capsize=2.5,
                    marker=MARKERS[at % len(MARKERS)],
                    color=family.color,
                    label=f"family {at}",
                )
            axes.set_xlabel("ε · 255")
            axes.set_ylabel(label)
            axes.set_ylim(0, 100)
            dress(axes)
        handles, labels = axes.get_legend_handles_labels()
        legend = figure.legend(
            handles, labels, frameon=False, loc="outside upper left", fontsize=8.5, ncols=min(len(groups), 2)
        )
        for text, family in zip(legend.get_texts(), groups, strict=True):
            text.set(text=legend_label(family), parse_math=False)
    return figure


def _rates(results: Sequence[Row], groups: Sequence[Family]) -> Sheet:
    colors = {family.name: family.color for family in groups}
    metrics = list(dict.fromkeys(row["metric"] for row in results))
    eps = sorted({row["eps"] for row in results})
    several = len({row["attack"] for row in results}) > 1
    rows = []
    for family, attack, sampling in dict.fromkeys((r["family"], r["attack"], r["sampling"]) for r in results):
        its = {
            (r["metric"], r["eps"]): r
            for r in results
            if (r["family"], r["attack"], r["sampling"]) == (family, attack, sampling)
        }
        cells = (its[metric, each] for metric in metrics for each in eps)
        rows.append(
            (
                Field(family, color=colors.get(family, "#888"), kind="name"),
                *([Field(_attack(attack), kind="word")] if several else []),
                Field(sampling, kind="word"),
                *(Field(percent(row["value"]), (_range(row),)) for row in cells),
            )
        )
    heads = [f"{metric}, {_at(each)}" for metric in metrics for each in eps]
    csv = pl.DataFrame(list(results), infer_schema_length=None).write_csv()
    columns = ("model", *(["attack"] if several else []), "questions", *heads)
    return Sheet("pope", "Answers, % [95 % interval]", columns, tuple(rows), csv)


def _differences(differences: Sequence[Row], groups: Sequence[Family]) -> Sheet | None:
    if not differences:
        return None
    colors = {family.name: family.color for family in groups}
    several = len({row["attack"] for row in differences}) > 1
    rows = tuple(
        (
            Field(row["model"], color=colors.get(row["model"], "#888"), kind="name"),
            Field(row["twin"], kind="word"),
            *([Field(_attack(row["attack"]), kind="word")] if several else []),
            Field(row["sampling"], kind="word"),
            Field(
                f"{row['metric']}, {'rise to ' if row['what'] == 'move' else ''}{_at(row['eps'])}",
                kind="word",
            ),
            Field(points_interval(row["value"], row["low"], row["high"])),
        )
        for row in differences
        if row["metric"] != "false no"
    )
    csv = pl.DataFrame(list(differences), infer_schema_length=None).write_csv()
    columns = ("model", "twin", *(["attack"] if several else []), "questions", "number", "difference")
    return Sheet("pope-differences", "Differences to the twins", columns, rows, csv)


def _gallery(directory: Path, groups: Sequence[Family]) -> dict[str, Any]:
    gallery = read_gallery(directory / "gallery.safetensors")
    words = read_json(directory / "questions.json", ("questions", "answers"))
    shown = [
        {
            "card": card,
            "question": words["questions"][at],
            "answers": [words["answers"][model][at] for model in gallery.models],
        }
        for at, card in enumerate(cards(gallery))
    ]
    return {
        "cards": shown,
        "eps": eps_label(gallery.eps),
        "magnification": magnification(gallery),
        "hard_pixels": has_hard_pixels(gallery),
        "colors": {model: family.color for family in groups for model in family.models},
    }


def _at(eps: float) -> str:
    return f"ε = {eps_label(eps)}" if eps else "no attack"


def _attack(name: str) -> str:
    return attack_label(name, "linf").partition(" (")[0]


def _range(row: Row) -> str:
    return percent_range(row["low"], row["high"])
