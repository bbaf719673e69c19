"""The figures of an evaluation: numbers side by side, and MMVP's patterns as a radar chart."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.report.evaluation.wording import heading
from antiphase.report.figure import MARKERS, STYLE, Family, dress, legend_label
from antiphase.statistics.intervals import as_share, mean_over_seeds
from antiphase.studies.report.figures import draw_radar

Result = Mapping[str, Any]
_BAR = 0.22  # of an inch, for each marker


def dot_figure(results: Sequence[Result], groups: Sequence[Family]) -> Figure:
    """Draw the headline number of each data set and setting, a marker a family with its 95 % interval.

    A family of one model has its interval over the images; one of several has the mean over its training seeds and
    Student's t.
    """
    shown = [r for r in results if r["headline"]]
    lines = list(dict.fromkeys((r["data"], heading(r)) for r in shown))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.9 + _BAR * len(lines) * (len(groups) + 1)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for at, family in enumerate(groups):
            for place, line in enumerate(lines):
                found = [r for r in shown if r["model"] in family.models and (r["data"], heading(r)) == line]
                if not found:
                    continue
                value, low, high = _interval(found)
                y = -place + 0.35 - 0.7 * (at + 0.5) / len(groups)
                axes.errorbar(
                    100 * value,
                    y,
                    xerr=[[100 * max(value - low, 0)], [100 * max(high - value, 0)]],
                    fmt=MARKERS[at % len(MARKERS)],
                    ms=5,
                    color=family.color,
                    elinewidth=1.3,
                    capsize=2.5,
                    label=f"family {at}" if place == 0 else None,
                )
        axes.set_yticks(
            [-place for place in range(len(lines))],
            [f"{_fitting(data)}\n{_fitting(name)}" for data, name in lines],
        )
        axes.set_ylim(-len(lines) + 0.45, 0.55)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, 0), min(high, 100))
        axes.set_xlabel("%")
        dress(axes, "x")
        _legend(axes, groups)
    return figure


def radar_figure(results: Sequence[Result], groups: Sequence[Family]) -> Figure:
    """Draw the accuracy of each pattern of MMVP-VLM as a radar chart, as in DiffCLIP's Figure 4.

    Families of several models have their mean. A pattern has 15 pairs, so a step of the chart is 7 points: intervals
    are in the table.
    """
    shown = [r for r in results if not r["headline"]]
    patterns = list(dict.fromkeys(r["metric"] for r in shown))
    lines = []
    for at, family in enumerate(groups):
        its = [r for r in shown if r["model"] in family.models]
        found = [[r["value"] for r in its if r["metric"] == pattern] for pattern in patterns]
        values = [100 * sum(each) / len(each) if each else math.nan for each in found]
        look = {
            "marker": MARKERS[at % len(MARKERS)],
            "ms": 4,
            "lw": 1.7,
            "color": family.color,
            "label": f"family {at}",
        }
        lines += [(values, look)] if its else []
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.add_subplot(projection="polar")
        draw_radar(axes, patterns, lines)
        _legend(axes, groups)
    return figure


def _interval(found: Sequence[Result]) -> tuple[float, float, float]:
    if len(found) > 1:
        mean = as_share(mean_over_seeds([r["value"] for r in found]))
        return mean.value, mean.low, mean.high
    value = found[0]["value"]
    return value, *(value if found[0][end] is None else found[0][end] for end in ("low", "high"))


def _fitting(text: str) -> str:
    """Leave the middle of a long name out, such as a path's, so that the axes keep their room.

    >>> _fitting("a" * 20 + "b" * 40)
    'aaaaaaaaaaaa…bbbbbbbbbbbbbbbbbbbbbbb'
    """
    return text if len(text) <= 36 else f"{text[:12]}…{text[-23:]}"


def _legend(axes: Any, groups: Sequence[Family]) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawn = [groups[int(label.rpartition(" ")[2])] for label in labels]
    legend = axes.figure.legend(
        handles, labels, frameon=False, loc="outside upper left", fontsize=8.5, ncols=min(len(drawn), 2)
    )
    for text, family in zip(legend.get_texts(), drawn, strict=True):
        text.set(text=legend_label(family), parse_math=False)
