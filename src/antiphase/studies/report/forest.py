"""One picture of all claims: a line for each with estimate, interval and verdict, grouped by section."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from antiphase.report.figure import STYLE, new_figure
from antiphase.studies.claims import OWN, Claim, Verdict
from antiphase.studies.report.words import SHORT, by_key, by_source, deciding, estimate_text, is_tested, price
from antiphase.studies.results import Result

LOOKS: dict[Verdict, tuple[str, str, str]] = {
    "holds": ("#00745a", "o", "holds"),
    "contradicted": ("#a3326f", "X", "contradicted: one at least is opposite"),
    "smaller than claimed": ("#7a5b00", "s", "smaller than claimed"),
    "absent": ("#2f62a8", "D", "absent: too small to matter (shaded)"),
    "undecided": ("#5d6067", "o", "undecided"),
}
"""Colour, marker and words of each verdict; what is undecided is hollow."""

_TITLES = {"points": "Difference in percentage points", "": "Other differences, in standard errors"}
_TICKS = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50)
_LINE = 0.165  # inches
_HEAD = 0.62  # inches above and below the axes of a unit, for its title and ticks
_SOFT = "#55575c"


@dataclass(frozen=True)
class Line:
    """One claim by the check that decides its verdict; numbers are in units of the axis."""

    unit: str
    section: str  # the paper and its section
    statement: str
    verdict: Verdict
    numbers: tuple[str, ...]  # the estimate; of how many it is one; what a verdict would take
    value: float
    low: float
    high: float
    margin: float | None
    beside: tuple[float, ...] = ()  # estimates that do not decide, such as those of single ε


def forest_lines(results: Sequence[Result]) -> list[Line]:
    """Return the lines of all claims tested with enough seeds: percentage points first, then other quantities."""
    lines = [
        line
        for source, pairs in by_source(results).items()
        for _, claim in pairs
        if is_tested(claim) and (line := _line(source, claim))
    ]
    order = list(dict.fromkeys(line.section for line in lines))
    return sorted(lines, key=lambda line: (line.unit != "points", order.index(line.section)))


def answer_lines(results: Sequence[Result], questions: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return a line for each answer that has a row in the picture of the answers, under its question."""
    claims = by_key(results)
    return [
        replace(line, section=question["title"], statement=words["row"])
        for question in questions
        for words in question["answers"]
        if "row" in words and (claim := claims.get(words["claim"])) and is_tested(claim)
        if (line := _line(OWN, claim))
    ]


def _line(source: str, claim: Claim) -> Line | None:
    check = deciding(claim)
    if check is None or check.estimate is None or check.spread is None:
        return None
    scale = 100.0 if check.unit == "points" else 1.0 / check.spread.error
    count = len(claim.deciding)
    alike = count if claim.verdict == "undecided" else claim.verdicts.count(claim.verdict)
    among = f"least favourable of {alike} among {count}" if alike > 1 else f"the {claim.verdict} one of {count}"
    several = "" if count == 1 else f"least favourable of {count}" if alike == count else among
    seeds = price(claim).partition(",")[0]
    text, above, least = estimate_text(check).partition(", above")
    numbers = filter(None, (text, above.strip(", ") + least, several, seeds and f"a verdict takes {seeds}"))
    paper = SHORT.get(source, source)
    section = paper if source == OWN else f"{paper}, {claim.source.partition(',')[0]}"
    told = (section, claim.statement.replace(" %", "\u00a0%"), claim.verdict, tuple(numbers))
    one = check.estimate
    ends = (scale * one.value, scale * one.low, scale * one.high)
    margin = claim.margin_of(check) if claim.effect_of(check) is None else None
    beside = [scale * other.estimate.value for other in claim.checks if not other.decides and other.estimate]
    return Line(check.unit, *told, *ends, None if margin is None else scale * margin, tuple(beside))


def forest_figure(lines: Sequence[Line], *, narrow: bool = False) -> Figure:
    """Draw the claims; for a narrow screen, with the words above and below each interval."""
    width, letters = (3.9, 50) if narrow else (10.4, 64)
    units = {unit: list(block) for unit, block in itertools.groupby(lines, lambda line: line.unit)}
    heights = {unit: _LINE * sum(_rows(block, letters, narrow)) for unit, block in units.items()}
    legend = [look for verdict, look in LOOKS.items() if verdict in {line.verdict for line in lines}]
    top = 0.1 + 0.2 * (len(legend) if narrow else 1)
    height = top + sum(heights.values()) + 2 * _HEAD * len(heights)
    with new_figure(width, height, None, STYLE | {"text.parse_math": False}) as figure:
        marks = [Line2D([], [], label=look[2], **_mark(*look)) for look in legend]
        columns = 1 if narrow else max(1, len(marks))
        style: dict[str, Any] = {"frameon": False, "borderpad": 0, "labelspacing": 0.3}
        figure.legend(handles=marks, loc="upper left", ncols=columns, **style)
        for unit, block in units.items():
            top += _HEAD
            left, share = (0.05, 0.9) if narrow else (0.47, 0.32)
            axes = figure.add_axes((left, 1 - (top + heights[unit]) / height, share, heights[unit] / height))
            _draw(axes, block, letters, narrow)
            figure.text(0.012, 1 - (top - 0.4) / height, _TITLES[unit], weight="bold", size=10)
            top += heights[unit] + _HEAD
    return figure


def _rows(block: Sequence[Line], letters: int, narrow: bool) -> list[float]:
    """Return the heights of the sections' names and of the claims, in lines of text."""
    texts = [(len(textwrap.wrap(line.statement, letters)), len(line.numbers), line.section) for line in block]
    claims = [words + 1 + numbers if narrow else max(words, numbers) for words, numbers, _ in texts]
    return [0.7 + rows for rows in claims] + [1.6] * len({section for *_, section in texts})


def _draw(axes: Any, block: Sequence[Line], letters: int, narrow: bool) -> None:
    ends = np.array([(line.low, line.high) for line in block])
    reach = np.abs(ends[np.isfinite(ends)]).max(initial=1)
    most = next((tick for tick in _TICKS if tick >= reach), _TICKS[-1])
    axes.set_xscale("asinh", linear_width=4.0)
    axes.set(xlim=(-most, most), ylim=(sum(_rows(block, letters, narrow)), 0), yticks=[])
    ticks = [tick for tick in _TICKS if abs(tick) <= most]
    axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(top=True, labeltop=True, length=0, labelsize=8)
    axes.grid(axis="x", color="#e4e3de", lw=0.8)
    axes.axvline(0, color="#9a9ca1", lw=0.8, zorder=1.5)
    axes.spines[:].set_visible(False)
    edge = blended_transform_factory(axes.figure.transFigure, axes.transData)
    text: dict[str, Any] = {"transform": edge, "va": "top", "linespacing": 1.28}
    y = 0.0
    for section, group in itertools.groupby(block, lambda line: line.section):
        axes.text(0.012, y + 0.4, section, color=_SOFT, weight="bold", size=8.5, **text)
        y += 1.6
        for line in group:
            words, numbers = textwrap.wrap(line.statement, letters), "\n".join(line.numbers)
            look = _mark(*LOOKS[line.verdict])
            axes.text(0.012, y, "\n".join(words), **text)
            bottom = y + (len(words) if narrow else 0)
            place = (0.012, bottom + 1) if narrow else (0.8, y)
            axes.text(*place, numbers, size=8.5, color=look["color"], **text)
            if line.margin:
                shade, ends = {"color": "#2f62a8", "alpha": 0.1, "lw": 0}, (-line.margin, line.margin)
                axes.fill_between(ends, bottom - 0.2, bottom + 1.2, **shade)
            ends = np.clip([line.low, line.high], -most, most)
            axes.plot(ends, [bottom + 0.5] * 2, color=look["color"], lw=1.8)
            dots = np.clip(line.beside, -most, most)
            axes.plot(dots, [bottom + 0.5] * len(dots), ".", color=look["color"], ms=6, alpha=0.5, mew=0)
            axes.plot(np.clip(line.value, -most, most), bottom + 0.5, clip_on=False, zorder=3, **look)
            rows = len(words) + 1 + len(line.numbers) if narrow else max(len(words), len(line.numbers))
            y += 0.7 + rows


def _mark(color: str, marker: str, words: str) -> dict[str, Any]:
    fill = {"mfc": "white"} if words == "undecided" else {}
    return {"color": color, "marker": marker, "ms": 6.5, "ls": "", "mew": 1.4, **fill}
