"""Attention maps of several models on the same images, side by side, as in Figures 2 and 6 of DiffCLIP."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from antiphase.errors import UserError
from antiphase.evaluation.localisation import enlarge
from antiphase.report.style.figures import STYLE, as_pdf, as_png
from antiphase.runs.look import Looked, MapColumn
from antiphase.sensitivity.relevance import METHODS

MOST_ROWS = 60  # viewers fail to open taller images
_WRITERS = {".png": as_png, ".pdf": as_pdf}
_ONE_SIGN, _SIGNED = "magma_r", "RdBu_r"  # both light at 0, so that the image shows
_DEEPEST = 0.82  # of the one-signed scale, which ends in black: keep the image visible
_DARKEST = 0.7  # brightness of the grey image: colours must show on black too
_SHOWN = 384  # pixels a side of what is drawn

# in inches
_LABEL, _CELL, _GAP, _BELOW, _EDGE = 1.05, 1.7, 0.1, 0.19, 0.08
_TITLE_LINE, _FOOT_LINE, _BAR = 0.155, 0.13, 0.32
_LETTERS = 18  # of the footer that an inch holds


def look_figure(
    images: Sequence[Float[np.ndarray, "height width 3"]],
    texts: Sequence[str],
    columns: Sequence[MapColumn],
    *,
    masks: Sequence[Bool[np.ndarray, "height width"]] | None = None,
    note: str = "",
) -> Figure:
    """Draw one row for each image and text: the image, then the map of each column over it.

    Each map is enlarged bilinearly, divided by its largest absolute value (printed below it) and multiplied as a colour
    on the image in light grey, so that the image alone is visible where the map is 0. Maps of one sign use a
    perceptually uniform scale from light to dark, signed maps a scale from blue through white to red.

    Args:
        images: square images in [0, 1].
        texts: the queries.
        columns: at least one column of maps.
        masks: object masks, one per image, drawn as outlines.
        note: a sentence for the footer.

    Raises:
        UserError: There are more rows than a figure can hold.
    """
    check_rows(len(images), len(texts))
    methods = list(dict.fromkeys(column.method for column in columns))
    signed = {c.method for c in columns if c.maps.min() < 0}
    titles = [_title(column, len(methods) > 1) for column in columns]
    sentences = [f"Maps: {', '.join(methods)}.", "Each map is scaled to its largest absolute value.", note]
    words = textwrap.fill(
        " ".join(filter(None, sentences)), int((1 + len(columns)) * (_CELL + _GAP) * _LETTERS)
    )
    page = _Page(len(images) * len(texts), 1 + len(columns), _lines(*titles), _lines(words))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(page.width, page.height))
        FigureCanvasAgg(figure)
        for row in range(page.rows):
            image, text = divmod(row, len(texts))
            outline = None if masks is None else masks[image]
            axes = _cell(figure, page, row, 0, images[image], outline)
            axes.set_ylabel(
                _shortened(texts[text], 13, 6), rotation=0, ha="right", va="center", labelpad=8, fontsize=10,
                parse_math=False,
            )  # fmt: skip
            for place, column in enumerate(columns):
                own = column.maps[text, image]
                painted = paint(images[image], own, column.method in signed)
                axes = _cell(figure, page, row, 1 + place, painted, outline)
                axes.set_xlabel(f"largest {np.abs(own).max():.2g}", fontsize=6.5, labelpad=2, color="#77797e")
        for place, title in enumerate(["image", *titles]):
            left, bottom, width, height = page.place(0, place)
            figure.text(
                left + width / 2, bottom + height + 0.06 / page.height, title, ha="center", va="bottom",
                fontsize=9, linespacing=1.15, parse_math=False,
            )  # fmt: skip
        shapes = [one for one in (False, True) if any((c.method in signed) is one for c in columns)]
        _footer(figure, page, shapes, words)
    return figure


def looked_figure(found: Looked) -> Figure:
    """Draw what ``antiphase look`` found: methods under their names in words, objects as outlines."""
    methods, texts = found.stored["methods"], found.stored["texts"]
    blind = [METHODS[method].label for method in methods if not METHODS[method].asks]
    note = f"The same for every text: {', '.join(blind)}." if blind and len(texts) > 1 else ""
    drawn = [replace(column, method=METHODS[column.method].label) for column in found.columns]
    return look_figure(found.shown, texts, drawn, masks=found.masks or None, note=note)


def paint(
    image: Float[np.ndarray, "height width 3"], values: Float[np.ndarray, "rows columns"], signed: bool
) -> Float[np.ndarray, "shown shown 3"]:
    """Return a map over its image, in [0, 1]; see :func:`look_figure`."""
    luma = image @ np.array([0.299, 0.587, 0.114])
    grey = _DARKEST + (1 - _DARKEST) * enlarge(luma, _SHOWN, _SHOWN)
    return grey.clip(0, 1)[..., None] * _colours(
        enlarge(values, _SHOWN, _SHOWN), np.abs(values).max(), signed
    )


def _colours(values: np.ndarray, largest: float, signed: bool) -> np.ndarray:
    scaled = values / largest if largest > 0 else values
    scale = matplotlib.colormaps[_SIGNED if signed else _ONE_SIGN]
    return scale((scaled + 1) / 2 if signed else _DEEPEST * scaled)[..., :3]


@dataclass(frozen=True)
class _Page:
    """Where everything stands."""

    rows: int
    columns: int
    title_lines: int
    foot_lines: int

    @property
    def width(self) -> float:
        return _LABEL + self.columns * (_CELL + _GAP) + _EDGE

    @property
    def height(self) -> float:
        return self.title + self.rows * (_CELL + _BELOW) + _BAR + self.foot

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


def _footer(figure: Figure, page: _Page, shapes: Sequence[bool], words: str) -> None:
    """Draw a bar for each colour map in use, and say how maps are scaled."""
    length, high, left, bottom = 1.0, 0.09, _LABEL, page.foot + 0.05
    for signed in shapes:
        ends = ("−largest", "largest") if signed else ("0", "largest")
        left += 0.5 if signed else 0.12
        axes = figure.add_axes(
            (left / page.width, bottom / page.height, length / page.width, high / page.height)
        )
        ramp = np.linspace(-1.0 if signed else 0.0, 1.0, 256)[None]
        axes.imshow(_colours(ramp, 1.0, signed), aspect="auto")
        axes.set_axis_off()
        for at, side, text in zip((left - 0.05, left + length + 0.05), ("right", "left"), ends, strict=True):
            middle = (bottom + high / 2) / page.height
            figure.text(at / page.width, middle, text, ha=side, va="center", fontsize=7)
        left += length + 0.7
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
    """Check that a figure would not be too tall.

    Raises:
        UserError: more rows than a figure can hold.
    """
    if images * texts > MOST_ROWS:
        raise UserError(
            f"{images} images and {texts} texts make {images * texts} rows: expected at most {MOST_ROWS}; draw "
            "several figures"
        )


def check_suffix(path: Path) -> None:
    """Check that a figure can be written to the path.

    Raises:
        UserError: The suffix is not .png or .pdf, or the path is a folder.
    """
    if path.suffix.lower() not in _WRITERS:
        raise UserError(f"{path}: expected a file that ends in {' or '.join(_WRITERS)}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected a file for the figure")


def figure_bytes(figure: Figure, path: Path) -> bytes:
    """Return a figure as PNG at 200 dots per inch or as PDF with embedded fonts, by the suffix of the file."""
    check_suffix(path)
    with matplotlib.rc_context(
        {"pdf.fonttype": 42}
    ):  # TrueType: text can be searched, and publishers ask for it
        return _WRITERS[path.suffix.lower()](figure)
