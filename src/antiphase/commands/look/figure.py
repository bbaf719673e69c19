"""Attention maps of several models on the same images, side by side, as in Figures 2 and 6 of DiffCLIP."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from antiphase.errors import UserError
from antiphase.evaluation.localisation import enlarge
from antiphase.report.figure import STYLE, as_pdf, as_png

MOST_ROWS = 60  # viewers fail to open taller images
_WRITERS = {".png": as_png, ".pdf": as_pdf}
_FROM = 0.4  # of the one-signed scale: its lighter part would not show on a white image
_OPAQUE = 0.85  # of a colour at the end of the scale; nothing at 0
_SHOWN = 384  # pixels a side of what is drawn
_LABEL, _CELL, _BELOW, _TITLE, _SCALE, _WORDS = 1.05, 1.75, 0.2, 0.5, 0.3, 0.45  # inches


@dataclass(frozen=True)
class MapColumn:
    """The maps of one model by one method, of any sign, finite; columns of one method share a scale."""

    model: str
    method: str
    maps: Float[np.ndarray, "texts images rows columns"]
    label: str = ""  # below the model's name where a figure shows several methods; else the method


def look_figure(
    images: Sequence[Float[np.ndarray, "height width 3"]],
    texts: Sequence[str],
    columns: Sequence[MapColumn],
    *,
    masks: Sequence[Bool[np.ndarray, "height width"]] | None = None,
    note: str = "",
    own_scales: bool = False,
) -> Figure:
    """Draw one row for each image and text: the image, then the map of each column over it.

    All maps of a method share one scale, whose end is the largest absolute value in any of them, so that models, images
    and texts can be compared; with ``own_scales`` the scale of each map ends at its own. Each map is enlarged
    bilinearly and laid over the image, more opaque the larger its absolute value: where the map is 0 the image alone is
    visible. Maps of one sign go from yellow to red, signed maps from blue (negative) to red. The largest absolute value
    of each map is printed below it. Masks, one per image, are drawn as outlines; the note is a sentence for the footer.

    Raises:
        UserError: there are more rows than a figure can hold.
    """
    check_rows(len(images), len(texts))
    methods = list(dict.fromkeys(column.method for column in columns))
    maps = {method: [column.maps for column in columns if column.method == method] for method in methods}
    signed = {method: min(values.min() for values in maps[method]) < 0 for method in methods}
    largest = {method: max(float(np.abs(values).max()) for values in maps[method]) for method in methods}
    titles = ["image"]
    for column in columns:
        name = _shortened(column.model, 24, 2)
        titles.append(f"{name}\n{column.label or column.method}" if len(methods) > 1 else name)
    rows, foot = len(images) * len(texts), _WORDS + _SCALE * len(methods)
    width = _LABEL + len(titles) * _CELL
    height = _TITLE + rows * (_CELL + _BELOW) + foot
    plain: dict[str, Any] = {"parse_math": False}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        edges = {"left": _LABEL / width, "right": 1 - 0.08 / width}
        edges |= {"top": 1 - _TITLE / height, "bottom": (foot + _BELOW) / height}
        grid = figure.subplots(rows, len(titles), squeeze=False, gridspec_kw=edges | {"wspace": 0.06})
        for axes, title in zip(grid[0], titles, strict=True):
            axes.set_title(title, fontsize=9, **plain)
        for row, cells in enumerate(grid):
            image, text = divmod(row, len(texts))
            drawn = [images[image]]
            for axes, column in zip(cells[1:], columns, strict=True):
                values = column.maps[text, image]
                most = float(np.abs(values).max())
                end = most if own_scales else largest[column.method]
                drawn.append(paint(images[image], values, signed[column.method], end))
                axes.set_xlabel(f"largest {most:.2g}", fontsize=6.5, labelpad=2, color="#55575c")
            for axes, pixels in zip(cells, drawn, strict=True):
                axes.imshow(pixels, interpolation="nearest", extent=(0, 1, 0, 1))
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set(linewidth=0.6, color="#c4c4c0")
                if masks is not None and not masks[image].all():
                    across, down = ((np.arange(side) + 0.5) / side for side in masks[image].shape[::-1])
                    outline = masks[image].astype(float)
                    axes.contour(across, 1 - down, outline, levels=[0.5], colors="#0b6e4f", linewidths=0.6)
            label = _shortened(texts[text], 13, 6)
            place: Any = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 8}
            cells[0].set_ylabel(label, fontsize=10, **place, **plain)
        for place, method in enumerate(methods, start=1):
            box = (_LABEL / width, (foot - place * _SCALE) / height, _CELL / width, 0.09 / height)
            ends = (-largest[method] if signed[method] else 0.0, largest[method])
            ramp = _laid_over(np.ones((1, 256, 3)), np.linspace(*ends, 256)[None], signed[method], ends[1])
            scale = ScalarMappable(Normalize(*ends), ListedColormap(ramp[0]))
            bar = figure.colorbar(scale, cax=figure.add_axes(box), orientation="horizontal", ticks=ends)
            labels = [f"{end:.2g}" for end in ends]
            if own_scales:
                labels = ["-largest" if signed[method] else "0", "largest"]
            bar.ax.set_xticklabels(labels, fontsize=7)
            if len(methods) > 1:
                bar.ax.text(1.1, 0.5, method, transform=bar.ax.transAxes, va="center", fontsize=7, **plain)
        shared = "One scale for all maps" + (" of a method." if len(methods) > 1 else ".")
        shared = "A scale of its own for each map." if own_scales else shared
        words = " ".join(filter(None, [f"Maps: {', '.join(methods)}.", shared, note]))
        figure.text(
            _LABEL / width,
            0.05 / height,
            textwrap.fill(words, int(18 * (width - _LABEL))),
            fontsize=7,
            **plain,
        )
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
    scale = matplotlib.colormaps["RdBu_r" if signed else "YlOrRd"]
    colours = scale((scaled + 1) / 2 if signed else _FROM + (1 - _FROM) * scaled)[..., :3]
    opacity = _OPAQUE * np.abs(scaled)[..., None].clip(0, 1)
    return (1 - opacity) * below + opacity * colours


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
    return _WRITERS[path.suffix.lower()](figure)
