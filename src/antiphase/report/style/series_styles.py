"""Styles of the series in a study's figures, distinguishable with colour blindness and in greyscale."""

import colorsys
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from matplotlib.colors import to_hex, to_rgb

_FIXED = {
    "ViT": "#0072B2",
    "DiffViT": "#D55E00",
    "CLIP": "#0072B2",
    "DiffCLIP": "#D55E00",
    "DiffCLIP*": "#CC79A7",
    "DiffCLIP†": "#E69F00",
}
# Okabe and Ito's palette
_FURTHER = ("#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#000000", "#0072B2", "#D55E00")
_MARKERS = "osD^vPX<>"
_DASHES = ((), (5.0, 1.6), (6.0, 1.4, 1.4, 1.4), (9.0, 2.5), (4.0, 1.2, 1.2, 1.2, 1.2, 1.2))
_HATCHES = ("", "///", "xx", "---", "\\\\\\", "||")
_LIGHT = 0.3  # relative luminance above which lines on white are too pale


@dataclass(frozen=True)
class Style:
    """Colour, marker, dashes and hatch of one series.

    Attributes:
        color: colour of lines and fills.
        edge: colour of whiskers and outlines: the same hue, dark enough on white.
        marker: matplotlib marker.
        dashes: lengths of dashes and gaps in points; empty for a solid line.
        hatch: matplotlib hatch of bars.
    """

    color: str
    edge: str
    marker: str
    dashes: tuple[float, ...]
    hatch: str

    @property
    def pale(self) -> bool:
        """Whether a line of this colour needs a darker rim."""
        return self.edge != self.color


def series_styles(panels: Sequence[Sequence[str]]) -> dict[str, Style]:
    """Assign styles to the series of a figure; the models of the two papers have the same colour in every figure.

    ``"DiffViT, 4/255"`` has the hue of ``"DiffViT"``. Series in the same panel differ in markers and hatches, those of
    the same hue also in dashes.

    Args:
        panels: names of the series in each panel; a single group if panels share a legend.

    >>> [style.color for style in series_styles([["ViT", "DiffViT", "other"]]).values()]
    ['#0072B2', '#D55E00', '#009E73']
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel))
    known = {name: color for name in names if (color := _known(name))}
    free = [color for color in _FURTHER if color not in known.values()] or list(_FURTHER)
    others = [name for name in names if name not in known]
    colors = known | {name: free[place % len(free)] for place, name in enumerate(others)}
    met = {name: {other for panel in panels if name in panel for other in panel} - {name} for name in names}
    marks: dict[str, int] = {}
    dashes: dict[str, int] = {}
    for name in names:
        marks[name] = _least({marks[other] for other in met[name] if other in marks})
        rivals = {other for other in met[name] if colors[other] == colors[name]}
        dashes[name] = _least({dashes[other] for other in rivals if other in dashes})
    return {
        name: Style(
            colors[name],
            _darkened(colors[name]),
            _MARKERS[marks[name] % len(_MARKERS)],
            _DASHES[dashes[name] % len(_DASHES)],
            _HATCHES[marks[name] % len(_HATCHES)],
        )
        for name in names
    }


def _least(taken: Set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _known(name: str) -> str | None:
    """Return the fixed colour of a series whose name starts with a known model."""
    stem = re.match(r"(?:Diff)?(?:ViT|CLIP)[*†]?(?![\w*†-])", name)
    return _FIXED.get(stem[0]) if stem else None


def _darkened(color: str) -> str:
    red, green, blue = to_rgb(color)
    if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < _LIGHT:
        return color
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return to_hex(colorsys.hls_to_rgb(hue, 0.62 * light, saturation))
