"""One picture of all claims: a line for each with estimate, interval and verdict, grouped by section."""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.report.figure import STYLE
from antiphase.studies.claims import Claim, Verdict
from antiphase.studies.report.words import by_source, deciding, estimate_parts, price, section_of
from antiphase.studies.results import Result

LOOKS: dict[Verdict, tuple[str, str, str]] = {
    "holds": ("#00745a", "o", "holds"),
    "contradicted": ("#a3326f", "X", "contradicted: at least one is the opposite"),
    "absent": ("#2f62a8", "D", "absent: too small to matter (shaded)"),
    "undecided": ("#5d6067", "o", "undecided"),
}
"""Colour, marker and words of each verdict; what is undecided is hollow."""

_POINTS, _OTHERS = "percentage points", "other quantities, in standard errors"
_ABOUT = {
    _POINTS: "Right of 0: as claimed. Shaded: too small to matter.",
    _OTHERS: "Axis: standard errors. Numbers: their own units.",
}
_TICKS = {_POINTS: (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50), _OTHERS: (-20, -10, -5, -2, 0, 2, 5, 10, 20)}
_LINEAR = {_POINTS: 4.0, _OTHERS: 4.0}  # the axis is linear up to here and logarithmic beyond
_WIDE, _NARROW = 10.4, 3.9  # inches; a phone shows the narrow one
_TEXT, _AXIS, _EDGE, _RIGHT = 4.9, 3.1, 0.12, 2.0  # columns of the wide picture
_LINE, _GAP, _HEAD, _SCALE = 0.165, 0.09, 0.34, 0.36
_LETTER = 0.072  # width of a letter
_RULE, _SOFT = "#e4e3de", "#55575c"


@dataclass(frozen=True)
class Line:
    """One claim by the check that decides its verdict.

    Attributes:
        block: unit of the axis.
        section: the paper and its section.
        statement: the claim.
        verdict: its verdict.
        numbers: the estimate and its interval in words; of how many it is one, and what a verdict would take.
        value, low, high: the estimate and its interval in units of the axis.
        margin: the margin in units of the axis, or None.
    """

    block: str
    section: str
    statement: str
    verdict: Verdict
    numbers: tuple[str, ...]
    value: float
    low: float
    high: float
    margin: float | None


def forest_lines(results: Sequence[Result]) -> list[Line]:
    """Return the lines of all claims tested with enough seeds: percentage points first, then other quantities."""
    found = [
        _line(result, claim)
        for its in by_source(results).values()
        for result, claim in its
        if claim.verdict in LOOKS and not claim.lacks_seeds and deciding(claim)
    ]
    blocks = {block: [line for line in found if line.block == block] for block in (_POINTS, _OTHERS)}
    ordered = []
    for lines in blocks.values():
        sections = list(dict.fromkeys(line.section for line in lines))
        ordered += sorted(lines, key=lambda line: sections.index(line.section))
    return ordered


def _line(result: Result, claim: Claim) -> Line:
    check = deciding(claim)
    assert check is not None
    assert check.estimate is not None
    assert check.spread is not None
    block = _POINTS if check.unit == "points" else _OTHERS
    scale = 100.0 if check.unit == "points" else 1.0 / check.spread.error
    margin = claim.margin_of(check)
    paid = price(claim).partition(", ")[0]
    parts = [
        " ".join(estimate_parts(check)),
        f"least favourable of {len(claim.checks)}" if len(claim.checks) > 1 else "",
        f"a verdict takes {paid}" if paid.endswith("seeds") else paid,
    ]
    numbers = tuple(filter(None, parts))
    value, low, high = (
        scale * part for part in (check.estimate.value, check.estimate.low, check.estimate.high)
    )
    section = section_of(result, claim)
    margin = None if margin is None else scale * margin
    return Line(block, section, claim.statement, claim.verdict, numbers, value, low, high, margin)


def forest_svg(lines: Sequence[Line], *, narrow: bool = False) -> str:
    """Return the picture as an SVG document whose text is text: small, and searchable in a page."""
    figure = forest_figure(lines, narrow=narrow)
    buffer = io.StringIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata=none)
    return buffer.getvalue().replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def forest_figure(lines: Sequence[Line], *, narrow: bool = False) -> Figure:
    """Draw the claims.

    Args:
        lines: of ``forest_lines``.
        narrow: whether the words stand above each interval, for a narrow screen.
    """
    width = _NARROW if narrow else _WIDE
    letters = int((width - 2 * _EDGE) / _LETTER) if narrow else int((_TEXT - 0.3) / _LETTER)
    rows = [(line, textwrap.wrap(line.statement.replace(" %", "\u00a0%"), letters)) for line in lines]
    height = _EDGE + _height(rows, narrow)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        y = _legend(axes, [line.verdict for line in lines], width)
        for block in dict.fromkeys(line.block for line in lines):
            y = _block(axes, [row for row in rows if row[0].block == block], block, y, width, narrow)
    return figure


def _height(rows: Sequence[tuple[Line, list[str]]], narrow: bool) -> float:
    sections = len({(line.block, line.section) for line, _ in rows})
    blocks = len({line.block for line, _ in rows})
    legend = _LINE * 1.5 * (len({line.verdict for line, _ in rows}) if narrow else 1) + 0.1
    return (
        legend
        + blocks * (_HEAD + _SCALE + 0.5)
        + sections * (_LINE + 0.16)
        + sum(_tall(line, words, narrow) for line, words in rows)
    )


def _tall(line: Line, words: Sequence[str], narrow: bool) -> float:
    """Return the height of a line in inches."""
    if narrow:
        return _LINE * (len(words) + len(_shown(line, narrow))) + 0.2 + _GAP
    return _LINE * max(len(words), len(line.numbers)) + _GAP


def _shown(line: Line, narrow: bool) -> tuple[str, ...]:
    """Return the numbers by line: in a wide picture there is only room for one each."""
    return tuple(filter(None, (line.numbers[0], "; ".join(line.numbers[1:])))) if narrow else line.numbers


def _legend(axes: Axes, verdicts: Sequence[Verdict], width: float) -> float:
    """Draw the shapes of the verdicts that occur; return where they end."""
    x, y = _EDGE + 0.1, _EDGE + 0.08
    for verdict, (_, _, words) in LOOKS.items():
        if verdict not in verdicts:
            continue
        if x > _EDGE + 0.1 and x + 0.15 + _LETTER * len(words) > width:
            x, y = _EDGE + 0.1, y + 1.4 * _LINE
        _mark(axes, x, y, verdict)
        _write(axes, x + 0.14, y, words, va="center_baseline")
        x += 0.45 + _LETTER * len(words)
    return y + 1.2 * _LINE


def _block(
    axes: Axes, rows: Sequence[tuple[Line, list[str]]], block: str, top: float, width: float, narrow: bool
) -> float:
    left, right = (_EDGE + 0.2, width - 0.3) if narrow else (_TEXT, _TEXT + _AXIS)
    ends = [abs(end) for line, _ in rows for end in (line.low, line.high) if math.isfinite(end)]
    most = next((tick for tick in _TICKS[block] if tick >= max(ends, default=1.0)), _TICKS[block][-1])
    linear = _LINEAR[block]

    def place(value: float) -> float:
        share = math.asinh(max(-most, min(most, value)) / linear) / math.asinh(most / linear)
        return left + (right - left) * (share + 1) / 2

    title = f"Difference in {block}" if block == _POINTS else block.capitalize()
    y = top + _HEAD
    _write(axes, _EDGE, y, title, weight="bold", size=10)
    _write(axes, _EDGE, y + _LINE, _ABOUT[block], color=_SOFT, size=8.5)
    y += 0.12 + _SCALE
    bottom = y + sum(_tall(line, words, narrow) for line, words in rows)
    bottom += len({line.section for line, _ in rows}) * (_LINE + 0.16)
    for tick in _TICKS[block]:
        if abs(tick) <= most:
            axes.plot(
                [place(tick)] * 2, [y, bottom], color="#9a9ca1" if tick == 0 else _RULE, lw=0.8, zorder=0
            )
            shown = f"{tick:+d}".replace("-", "−") if tick else "0"
            for end in (y - 0.05, bottom + 0.15):
                _write(axes, place(tick), end, shown, ha="center", color=_SOFT, size=8)
    margins = (
        {round(line.margin, 9) for line, _ in rows if line.margin is not None} if block == _POINTS else set()
    )
    if len(margins) == 1:  # one band for all; otherwise each line shows its own margin
        (margin,) = margins
        axes.fill_between(
            [place(-margin), place(margin)], y, bottom, color="#2f62a8", alpha=0.07, lw=0, zorder=-1
        )
    section = None
    for line, words in rows:
        if line.section != section:
            section = line.section
            y += _LINE + 0.1
            _write(axes, _EDGE, y - 0.03, section, color=_SOFT, weight="bold", size=8.5)
            y += 0.06
        y = _claim(axes, line, words, place, y, (left, right), narrow, len(margins) > 1)
    return bottom + 0.2


def _claim(
    axes: Axes,
    line: Line,
    words: Sequence[str],
    place: Any,
    y: float,
    ends: tuple[float, float],
    narrow: bool,
    own_margin: bool,
) -> float:
    """Draw one claim below y; return where it ends."""
    color = LOOKS[line.verdict][0]
    for at, text in enumerate(words):
        _write(axes, _EDGE if narrow else _EDGE + 0.12, y + (at + 0.8) * _LINE, text)
    if narrow:
        middle = y + _LINE * len(words) + 0.14
        for at, text in enumerate(_shown(line, narrow)):
            shade = color if at == 0 else _SOFT
            _write(axes, _EDGE, middle + 0.07 + (at + 0.85) * _LINE, text, size=8.5, color=shade)
    else:
        middle = y + 0.5 * _LINE
        for at, text in enumerate(line.numbers):
            shade = color if at == 0 else _SOFT
            _write(axes, ends[1] + 0.15, y + (at + 0.8) * _LINE, text, size=8.5, color=shade)
    if own_margin and line.margin is not None:
        span = [place(-line.margin), place(line.margin)]
        axes.fill_between(span, middle - 0.07, middle + 0.07, color="#2f62a8", alpha=0.1, lw=0, zorder=-1)
    low, high = place(line.low), place(line.high)
    axes.plot([low, high], [middle] * 2, color=color, lw=1.8, solid_capstyle="butt")
    _mark(axes, place(line.value), middle, line.verdict)
    return y + _tall(line, words, narrow)


def _mark(axes: Axes, x: float, y: float, verdict: Verdict) -> None:
    color, marker, _ = LOOKS[verdict]
    hollow = verdict == "undecided"
    face = "white" if hollow else color
    axes.plot(
        [x],
        [y],
        "o" if hollow else marker,
        ms=6.5,
        color=color,
        mfc=face,
        mew=1.4 if hollow else 0.6,
        zorder=3,
    )


def _write(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, parse_math=False, **how)
