"""Sheets of images with signed maps over them, small enough to embed several in a page."""

import base64
import io
import math
import re
import textwrap

import matplotlib
import numpy as np
from jaxtyping import UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from PIL import Image

from antiphase.commands.look.figure import paint
from antiphase.report.figure import STYLE
from antiphase.studies.figures import Gallery, Picture

PIXELS = 500_000
"""Largest number of pixels of all images of a page."""
_SIDE, _GAP, _EDGE = 1.45, 0.1, 0.06  # inches
_LINE, _BAR = 0.16, 0.42
_LETTERS = 20  # letters per line of a title
_COLORS = 128  # colours of one image: enough for heat over grey, a third of the file size
_QUALITY = 82
_LOSSLESS = 1.4  # keep images losslessly up to this multiple of their JPEG size


def gallery_figure(gallery: Gallery, pixels: int = PIXELS) -> Figure:
    """Draw a grid of images with maps, each enlarged bilinearly and divided by its largest absolute value.

    Positive values are red, negative values blue; where a map is 0 the image shows in light grey. Images without a map
    keep their colours.

    Args:
        gallery: the gallery of the study; rows may differ in length.
        pixels: number of pixels of all images together.
    """
    columns = max((len(row) for row in gallery.rows), default=1)
    count = sum(map(len, gallery.rows))
    side = int(min(256, math.sqrt(pixels / max(count, 1))))
    lines = [max((len(_title(picture).splitlines()) for picture in row), default=1) for row in gallery.rows]
    maps = any(picture.over is not None for row in gallery.rows for picture in row)
    bar = _BAR if maps else 0.0
    width = _EDGE + max(columns, 2) * (_SIDE + _GAP)
    height = _EDGE + sum(_SIDE + _GAP + _LINE * line for line in lines) + bar
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        top = height
        for row, line in zip(gallery.rows, lines, strict=True):
            top -= _SIDE + _LINE * line + _GAP
            for place, picture in enumerate(row):
                left = _EDGE + place * (_SIDE + _GAP)
                axes = figure.add_axes((left / width, top / height, _SIDE / width, _SIDE / height))
                tall, wide = picture.image.shape[:2]
                # no resampling: the file holds the pixels once, whatever its resolution
                axes.imshow(_pixels(picture, side), extent=(0, wide, 0, tall), interpolation="none")
                axes.set_anchor("N")
                axes.set_axis_off()
                axes.set_title(_title(picture), fontsize=8.5, pad=3, linespacing=1.1, parse_math=False)
        if maps:
            _scale(figure, width, height)
    return figure


def lighter(svg: str) -> str:
    """Shrink the images of an SVG document: those with few colours to a palette, others to JPEG."""

    def again(found: re.Match[str]) -> str:
        picture = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
        jpeg = io.BytesIO()
        picture.save(jpeg, "JPEG", quality=_QUALITY, optimize=True)
        png = _with_palette(picture)
        lossless = len(png) <= _LOSSLESS * len(jpeg.getvalue())
        kind, content = ("png", png) if lossless else ("jpeg", jpeg.getvalue())
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

    return re.sub(r"data:image/png;base64,\s*([A-Za-z0-9+/=\s]+)", again, svg)


def _with_palette(picture: Image.Image) -> bytes:
    """Return a picture of at most 256 colours as PNG."""
    pixels = np.asarray(picture)
    colors, which = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    indexed = Image.fromarray(which.reshape(pixels.shape[:2]).astype(np.uint8))
    indexed.putpalette(colors.tobytes())
    buffer = io.BytesIO()
    indexed.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def few_colors(png: bytes) -> bytes:
    """Return a PNG reduced to 256 colours, a third of its size."""
    picture = Image.open(io.BytesIO(png))
    buffer = io.BytesIO()
    picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        buffer, "PNG", optimize=True, dpi=picture.info["dpi"]
    )
    return buffer.getvalue()


def _pixels(picture: Picture, side: int) -> UInt8[np.ndarray, "height width 3"]:
    """Return the picture with its map, at most ``side`` pixels a side and in few colours."""
    tall, wide = picture.image.shape[:2]
    if picture.over is None:
        shown = Image.fromarray(np.ascontiguousarray(picture.image))
        side = min(side, max(tall, wide))  # never more than the original
    else:
        values = np.nan_to_num(picture.over)
        heat = paint(picture.image / 255.0, values, signed=True, largest=float(np.abs(values).max()))
        shown = Image.fromarray((255 * heat).round().astype(np.uint8))
    scale = side / max(tall, wide)
    small = shown.resize((max(1, round(wide * scale)), max(1, round(tall * scale))), Image.Resampling.LANCZOS)
    few = small.quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    return np.asarray(few.convert("RGB"))


def _scale(figure: Figure, width: float, height: float) -> None:
    axes = figure.add_axes((_EDGE / width, 0.27 / height, 1.5 / width, 0.08 / height))
    bar = figure.colorbar(ScalarMappable(cmap="RdBu_r"), cax=axes, orientation="horizontal")
    bar.set_ticks([0, 0.5, 1], labels=["−", "0", "+"], fontsize=8)
    bar.ax.tick_params(length=0, pad=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    left = (_EDGE + 1.65) / width
    words = "each map scaled to its largest absolute value"
    figure.text(left, 0.31 / height, words, va="center", fontsize=7.5, color="#77797e")


def _title(picture: Picture) -> str:
    lines = textwrap.wrap(picture.title, _LETTERS)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2][: _LETTERS - 1]}…"])
