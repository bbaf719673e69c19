"""Attention maps of several models on the same images, side by side, as in Figures 2 and 6 of DiffCLIP."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.errors import UserError
from antiphase.evaluation.localisation import enlarge
from antiphase.report.figure import STYLE, as_pdf, as_png

MOST_ROWS = 60  # viewers fail to open taller images
_WRITERS = {".png": as_png, ".pdf": as_pdf}
_ONE_SIGN, _SIGNED = "YlOrRd", "RdBu_r"
_FROM = 0.4  # of the one-signed scale: its lighter part would not show on a white image
_OPAQUE = 0.85  # of a colour at the end of the scale; nothing at 0
_SHOWN = 384  # pixels a side of what is drawn

# in inches
_LABEL, _CELL, _GAP, _BELOW, _EDGE = 1.05, 1.7, 0.1, 0.19, 0.08
_TITLE_LINE, _FOOT_LINE, _BAR = 0.155, 0.13, 0.26
_LETTERS = 18  # of the footer that an inch holds


@dataclass(frozen=True)
class MapColumn:
    """The maps of one model by one method, of any sign, finite; columns of one method share a scale."""

    model: str
    method: str  # said below the model's name where a figure shows several
    maps: Float[np.ndarray, "texts images rows columns"]


def look_figure(
    images: Sequence[Float[np.ndarray, "height width 3"]],
    texts: Sequence[str],
    columns: Sequence[MapColumn],
    *,
    masks: Sequence[Bool[np.ndarray, "height width"]] | None = None,
    note: str = "",
) -> Figure:
    """Draw one row for each image and text: the image, then the map of each column over it.

    All maps of a method share one scale, whose end is the largest absolute value in any of them, so that models, images
    and texts can be compared. Each map is enlarged bilinearly and laid over the image, more opaque the larger its
    absolute value: where the map is 0 the image alone is visible. Maps of one sign go from yellow to red, signed
    maps from blue (negative) to red. The largest absolute value of each map is printed below it. Masks, one per image,
    are drawn as outlines; the note is a sentence for the footer.

    Raises:
        UserError: there are more rows than a figure can hold.
    """
    check_rows(len(images), len(texts))
    methods = list(dict.fromkeys(column.method for column in columns))
    signed = {c.method for c in columns if c.maps.min() < 0}
    titles = [_title(column, len(methods) > 1) for column in columns]
    largest = {m: max(float(np.abs(c.maps).max()) for c in columns if c.method == m) for m in methods}
    shared = "One scale for all maps" + (" of a method." if len(methods) > 1 else ".")
    sentences = [f"Maps: {', '.join(methods)}.", shared, note]
    words = textwrap.fill(
        " ".join(filter(None, sentences)), int((1 + len(columns)) * (_CELL + _GAP) * _LETTERS)
    )
    page = _Page(len(images) * len(texts), 1 + len(columns), _lines(*titles), _lines(words), len(methods))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(page.width, page.height))
        FigureCanvasAgg(figure)
        for row in range(page.rows):
            image, text = divmod(row, len(texts))
            outline = None if masks is None else masks[image]
            axes = _cell(figure, page, row, 0, images[image], outline)
            axes.set_ylabel(
                _shortened(texts[text], 13, 6),
                rotation=0,
                ha="right",
                va="center",
                labelpad=8,
                fontsize=10,
                parse_math=False,
            )
            for place, column in enumerate(columns):
                own = column.maps[text, image]
                painted = paint(images[image], own, column.method in signed, largest[column.method])
                axes = _cell(figure, page, row, 1 + place, painted, outline)
                axes.set_xlabel(f"largest {np.abs(own).max():.2g}", fontsize=6.5, labelpad=2, color="#77797e")
        for place, title in enumerate(["image", *titles]):
            left, bottom, width, height = page.place(0, place)
            figure.text(
                left + width / 2,
                bottom + height + 0.06 / page.height,
                title,
                ha="center",
                va="bottom",
                fontsize=9,
                linespacing=1.15,
                parse_math=False,
            )
        _footer(figure, page, [(method, method in signed, largest[method]) for method in methods], words)
    return figure


def paint(
    image: Float[np.ndarray, "height width 3"],
    values: Float[np.ndarray, "rows columns"],
    signed: bool,
    largest: float,
) -> Float[np.ndarray, "shown shown 3"]:
    """Return a map over its image, in [0, 1]; see :func:`look_figure`.

    The scale ends at ``largest``; a signed one begins at ``-largest``.
    """
    below = np.stack([enlarge(image[..., channel], _SHOWN, _SHOWN) for channel in range(3)], -1)
    return _laid_over(below, enlarge(values, _SHOWN, _SHOWN), signed, largest).clip(0, 1)


def _laid_over(below: np.ndarray, values: np.ndarray, signed: bool, largest: float) -> np.ndarray:
    scaled = values / largest if largest > 0 else np.zeros_like(values)
    scale = matplotlib.colormaps[_SIGNED if signed else _ONE_SIGN]
    colours = scale((scaled + 1) / 2 if signed else _FROM + (1 - _FROM) * scaled)[..., :3]
    opacity = _OPAQUE * np.abs(scaled)[..., None].clip(0, 1)
    return (1 - opacity) * below + opacity * colours


@dataclass(frozen=True)
class _Page:
    """The layout of a page."""

    rows: int
    columns: int
    title_lines: int
    foot_lines: int
    bars: int

    @property
    def width(self) -> float:
        return _LABEL + self.columns * (_CELL + _GAP) + _EDGE

    @property
    def height(self) -> float:
        return self.title + self.rows * (_CELL + _BELOW) + self.bars * _BAR + self.foot

    @property
    def title(self) -> float:
        return self.title_lines * _TITLE_LINE + 0.16

    @property
    def foot(self) -> float:
        return self.foot_lines * _FOOT_LINE + 0.1

    def place(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of a cell as shares of the figure."""
        left = _LABEL + column * (_CELL + _GAP)
        bottom = self.height - self.title - row * (_CELL + _BELOW) - _CELL
        return left / self.width, bottom / self.height, _CELL / self.width, _CELL / self.height


def _cell(
    figure: Figure, page: _Page, row: int, column: int, pixels: np.ndarray, mask: np.ndarray | None
) -> Axes:
    axes = figure.add_axes(page.place(row, column))
    axes.imshow(pixels, interpolation="nearest", extent=(0, 1, 0, 1))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(linewidth=0.6, color="#c4c4c0")
    if mask is not None and not mask.all():
        height, width = mask.shape
        across, down = (np.arange(width) + 0.5) / width, 1 - (np.arange(height) + 0.5) / height
        axes.contour(across, down, mask.astype(float), levels=[0.5], colors="#0b6e4f", linewidths=0.6)
    return axes


def _footer(figure: Figure, page: _Page, scales: Sequence[tuple[str, bool, float]], words: str) -> None:
    """Draw the scale of each method, one below the other, and say what is drawn."""
    length, high, left = 1.0, 0.09, _LABEL + 0.5
    for at, (method, signed, largest) in enumerate(scales):
        bottom = page.foot + 0.05 + (len(scales) - 1 - at) * _BAR
        axes = figure.add_axes(
            (left / page.width, bottom / page.height, length / page.width, high / page.height)
        )
        ramp = np.linspace(-largest if signed else 0.0, largest, 256)[None]
        axes.imshow(_laid_over(np.ones((1, 256, 3)), ramp, signed, largest), aspect="auto")
        axes.set_axis_off()
        end = f"{largest:.2g}"
        ends = (f"−{end}" if signed else "0", f"{end}   {method}" if len(scales) > 1 else end)
        for x, side, text in zip((left - 0.05, left + length + 0.05), ("right", "left"), ends, strict=True):
            middle = (bottom + high / 2) / page.height
            figure.text(x / page.width, middle, text, ha=side, va="center", fontsize=7, parse_math=False)
    figure.text(_LABEL / page.width, page.foot / page.height, words, fontsize=7, va="top", parse_math=False)


def _lines(*texts: str) -> int:
    return 1 + max(text.count("\n") for text in texts)


def _title(column: MapColumn, several: bool) -> str:
    name = _shortened(column.model, 24, 2)
    return f"{name}\n{column.method}" if several else name


def _shortened(text: str, width: int, lines: int) -> str:
    """Break a text into lines; what does not fit ends in an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" …"))


def check_rows(images: int, texts: int) -> None:
    """Refuse a figure that would be too tall."""
    if images * texts > MOST_ROWS:
        raise UserError(
            f"{images} images and {texts} texts make {images * texts} rows: expected at most {MOST_ROWS}; draw "
            "several figures"
        )


def check_suffix(path: Path) -> None:
    """Refuse a path that is no .png or .pdf, or a folder."""
    if path.suffix.lower() not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {' or '.join(_WRITERS)}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file for the figure")


def figure_bytes(figure: Figure, path: Path) -> bytes:
    """Return a figure as PNG at 200 dots per inch or as PDF with embedded fonts, by the suffix of the file."""
    check_suffix(path)
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType: text can be searched, as publishers ask
        return _WRITERS[path.suffix.lower()](figure)
