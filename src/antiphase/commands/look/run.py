"""Maps of where models look in images for texts: computed, drawn and compared."""

import io
import itertools
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from torch import Tensor

from antiphase import files, terminal
from antiphase.commands import lineup, loading, run_folder
from antiphase.commands.look import LookOptions
from antiphase.commands.result import Result, in_files, listed
from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.report.figure import new_figure, saved, shortened
from antiphase.report.page import TITLE, Headline, Plot, Section, write_page
from antiphase.sensitivity.relevance import METHODS, NoSecondMap, enlarge

_AT_ONCE = 8  # images through a model; affects no map
_NO_IMAGE = "give the file of an image, such as a PNG or a JPEG"
_SHOWN = 384  # pixels a side of the image that is drawn
_READING = (
    "Each row is an image and a text, each column a model; colour shows where its map is large. Relevance is for the "
    "text, after Chefer et al. (ICCV 2021); attention is of the class token to the patches."
)


class LookResult(Result):
    """Where models look in images for texts."""

    main_table = "maps"
    needs = ("maps.json", "maps.parquet", "shown.npz", "run.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.read_json("maps.json")

    def headlines(self) -> list[Headline]:
        """Say how alike the maps of two models by the first method are."""
        rows, texts = self.frame(), ", ".join(self.summary["texts"][:3])
        blocks = rows.filter(method=rows["method"][0]).partition_by("model", maintain_order=True)[:2]
        names = [shortened(block["model"][0], 18) for block in blocks]
        label, count = METHODS[rows["method"][0]].label, len(self.summary["images"])
        title = f"{label} of {listed(self.summary['models'])}, for {texts}"
        if len(blocks) > 1:
            alike = [_correlation(*pair) for pair in zip(*(block["map"].to_list() for block in blocks), strict=True)]
            title = f"{label} of {' and '.join(names)}: mean correlation {np.mean(alike):.2f}, for {texts}"
        return [Headline(shortened(title[0].upper() + title[1:], TITLE), _READING, f"images: {count}")]

    def sections(self) -> list[Section]:
        return [Section("maps", "Maps", plots=[Plot("maps", self.figure(), "")])]

    def figure(self) -> Figure:
        texts = self.summary["texts"]
        with np.load(io.BytesIO(self.files["shown.npz"])) as arrays:
            images = [arrays[name].astype(np.float64) / 255 for name in arrays if name.startswith("image")]
        kinds = {model["name"]: model["attention"] for model in self.summary["models"]}
        columns = []
        for (model, name), rows in itertools.groupby(self.summary["maps"], lambda row: (row["model"], row["method"])):
            values = [row["map"] for row in rows]
            arrays = np.array(values).reshape(len(texts), len(images), *np.shape(values[0]))
            method = METHODS[name]
            columns.append(MapColumn(model, method.label, arrays, method.label_for(kinds[model])))
        blind = [METHODS[name].label for name in self.summary["methods"] if not METHODS[name].asks]
        note = f"The same for every text: {', '.join(blind)}." if blind and len(texts) > 1 else ""
        return look_figure(images, texts, columns, note=note, own_scales=self.summary.get("scale") == "each")

    def write(self, path: Path) -> Path:
        """Write the figure, and the maps and a page next to it, all or none, and return the path of the page."""
        content, page = saved(self.figure(), path.suffix.lower()[1:]), path.with_suffix(".html")
        with files.replacing(path) as temporary:
            temporary.write_bytes(content)
            files.write_json(path.with_suffix(".json"), self.summary)
            write_page(page, self.record, self.headlines(), self.drawn)
        return page


def run(options: LookOptions, command: str = "") -> dict[str, Any]:
    """Compute the maps, write the figure and, next to it, the maps; return what was measured."""
    result = look(options, command)
    page = result.write(options.out)
    for column in result.summary["left_out"]:
        terminal.say(f"{column['model']}: no column for {column['method']} ({column['why']})", err=True)
    for part in result.console():
        terminal.console().print(part)
    written = {"figure": str(options.out), "maps": str(page.with_suffix(".json")), "page": str(page)}
    terminal.say("   ".join(f"{name}: {path}" for name, path in written.items()))
    return {key: value for key, value in result.summary.items() if key != "maps"} | written


def look(options: LookOptions, command: str = "") -> LookResult:
    """Load models and images and compute the maps; nothing is written."""
    images, texts, methods = options.images, options.text, options.method
    began = time.monotonic()
    _check(options)
    pictures = [decode_whole(path, fix=_NO_IMAGE) for path in images]
    specs, device = [*options.model, *options.against], loading.find_device(options.device)
    loaded: list[Any] = loading.load_models(specs, device, options.random_weights, resize=options.resize)
    for spec, model in zip(specs, loaded, strict=True):
        if not is_dual_encoder(model):
            raise UserError(f"{spec}: look needs a CLIP, a model with encode_image and encode_text")
    models = dict(zip(lineup.short_names([model.card for model in loaded]), loaded, strict=True))
    prompts = [options.prompt.replace("{}", text) for text in texts]
    layer = -1 if options.layer is None else options.layer
    maps, left_out = [], []
    with terminal.progress_bar("maps", len(methods) * len(models), not options.quiet) as advance:
        for method, (name, model) in itertools.product(methods, models.items()):
            about = {"model": name, "method": method}
            advance(1)
            try:
                column = _maps(model, pictures, prompts, method, layer)
            except NoSecondMap as error:
                left_out.append(about | {"why": str(error)})
                continue
            for (text, of_text), image in itertools.product(zip(texts, column, strict=True), range(len(images))):
                place = about | {"image": image, "text": text}
                maps.append(place | {"map": [[float(f"{value:.6g}") for value in line] for line in of_text[image]]})
    if not maps:
        raise UserError(f"method {', '.join(methods)}: {left_out[0]['why']}; expected another method")
    keys = ("spec", "attention", "seed")
    about = [{"name": name} | {key: getattr(model.card, key) for key in keys} for name, model in models.items()]
    stored = {"command": command, "options": options.record(), "models": about, "images": list(map(str, images))}
    stored |= {"texts": list(texts), "prompt": options.prompt, "methods": list(methods), "layer": layer}
    stored |= {"scale": options.scale, "left_out": left_out, "maps": maps}
    square = loaded[0].square.at(_SHOWN)  # the same part of the image in view, at another size
    arrays = {f"image{index}": square(picture).permute(1, 2, 0).numpy() for index, picture in enumerate(pictures)}
    rows = pl.DataFrame(maps, infer_schema_length=None)
    shown = io.BytesIO()
    np.savez_compressed(shown, **arrays)
    first, *more = (path.name for path in images)
    settings = {key: stored[key] for key in ("methods", "layer", "prompt", "scale")} | options.chosen("resize")
    record = {"command": command, "options": stored["options"], "settings": settings}
    record |= {"models": {name: model.card.spec for name, model in models.items()}}
    record |= {"data": f"{first} and {len(more)} more" if more else first}
    record |= {"data_fingerprint": files.digest(*[picture.numpy().tobytes() for picture in pictures]), "n": len(images)}
    record |= run_folder.finished(options.out, began) | lineup.environment_record(device) | {"warnings": []}
    return LookResult("look", in_files({"maps": stored, "run": record}, maps=rows) | {"shown.npz": shown.getvalue()})


def _check(options: LookOptions) -> None:
    if options.out.suffix.lower() not in _ENDINGS:
        raise UserError(f"{options.out}: expected a file that ends in {' or '.join(_ENDINGS)}")
    if options.out.is_dir():
        raise UserError(f"{options.out}: is a folder; expected a file for the figure")
    if (rows := len(options.images) * len(options.text)) > MOST_ROWS:
        counts = f"{len(options.images)} images and {len(options.text)} texts make {rows} rows"
        raise UserError(f"{counts}: expected at most {MOST_ROWS}; draw several figures")
    if options.out.resolve() in [path.resolve() for path in options.images]:
        raise UserError(f"{options.out}: is one of the images; expected another file for the figure")
    for text in options.text:
        if not text.strip():
            raise UserError(f"text {text!r}: expected words, such as mug")
    if "{}" not in options.prompt:
        raise UserError(f"prompt {options.prompt!r}: expected {{}} in the place of the text")
    for method in options.method:
        if method not in METHODS:
            raise UserError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if options.layer is not None and all(METHODS[method].asks for method in options.method):
        why = "only attention, positive and negative are of one layer; add a --method"
        raise UserError(f"layer {options.layer}: {why}")


def _maps(
    model: Any, pictures: Sequence[Tensor], prompts: Sequence[str], method: str, layer: int
) -> Float[np.ndarray, "texts images rows columns"]:
    parts = []
    for start in range(0, len(pictures), _AT_ONCE):
        seen = [model.square(picture).float() / 255 for picture in pictures[start : start + _AT_ONCE]]
        images = torch.stack(seen).to(model.logit_scale.device)
        parts.append(METHODS[method].maps(model, images, prompts, layer).float().cpu())
    return torch.cat(parts, 1).numpy()


def _correlation(*maps: Any) -> float:
    """Return Pearson's correlation of two maps, enlarged to a common grid; NaN if one is constant."""
    side = max(map(len, maps))
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef([enlarge(np.array(grid), side, side).ravel() for grid in maps])[0, 1])


MOST_ROWS = 60  # viewers fail to open taller images
_ENDINGS = (".png", ".pdf")
_FROM = 0.4  # of the one-signed scale: its lighter part would not show on a white image
_OPAQUE = 0.85  # of a colour at the end of the scale; nothing at 0
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
    note: str = "",
    own_scales: bool = False,
) -> Figure:
    """Draw one row for each image and text: the image, then the map of each column over it.

    All maps of a method share one scale, whose end is the largest absolute value in any of them, so that models, images
    and texts can be compared; with ``own_scales`` the scale of each map ends at its own. Each map is enlarged
    bilinearly and laid over the image, more opaque the larger its absolute value: where the map is 0 the image alone is
    visible. Maps of one sign go from yellow to red, signed maps from blue (negative) to red. The largest absolute value
    of each map is printed below it; the note is a sentence for the footer.
    """
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
    with new_figure(width, height, layout=None) as figure:
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
            place: Any = {"rotation": 0, "ha": "right", "va": "center", "labelpad": 8}
            cells[0].set_ylabel(_shortened(texts[text], 13, 6), fontsize=10, **place, **plain)
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
        words = textwrap.fill(words, int(18 * (width - _LABEL)))
        figure.text(_LABEL / width, 0.05 / height, words, fontsize=7, **plain)
    return figure


def paint(
    image: Float[np.ndarray, "height width 3"], values: Float[np.ndarray, "rows columns"], signed: bool, largest: float
) -> Float[np.ndarray, "shown shown 3"]:
    """Return a map over its image, in [0, 1]; see :func:`look_figure`."""
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
