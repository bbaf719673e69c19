"""What ``antiphase look`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError
from antiphase.runs.loading import find_device, load_models

if TYPE_CHECKING:
    import numpy as np
    import torch
    from rich.table import Table
    from torch import Tensor, nn

    from antiphase.report.runs.look import MapColumn

_AT_ONCE = 8  # images through a model; affects no map
_SHOWN = 384  # pixels a side of the image that is drawn


def run_look(
    models: Sequence[str], images: Sequence[Path], texts: Sequence[str], out: Path, quiet: bool, device: str, *,
    methods: Sequence[str], layer: int | None, masks: Sequence[Path], prompt: str, random_weights: bool,
) -> None:  # fmt: skip
    """Load models and images, draw the maps, write figure and JSON; nothing is written unless all goes well."""
    from antiphase.files import replacing, write_json
    from antiphase.progress import progress_bar
    from antiphase.report.runs.look import check_rows, check_suffix, figure_bytes, look_figure
    from antiphase.sensitivity.relevance import METHODS, NoSecondMap

    check_suffix(out)
    check_rows(len(images), len(texts))
    if out.resolve() in [path.resolve() for path in (*images, *masks)]:
        raise UserError(f"{out}: is one of the images; expected another file for the figure")
    _check_words(texts, prompt, methods, METHODS, layer)
    from antiphase.data.decoding import decode_whole

    pictures = [decode_whole(path) for path in images]
    objects = _read_masks(masks, images, pictures)
    loaded = _load(models, random_weights, find_device(device))
    names = _names(loaded)
    prompts = [prompt.replace("{}", text) for text in texts]
    columns: list[MapColumn] = []
    left_out: list[dict[str, str]] = []
    with progress_bar("maps", len(methods) * len(loaded), not quiet) as advance:
        for method in methods:
            for name, model in zip(names, loaded, strict=True):
                try:
                    columns.append(_column(name, model, pictures, prompts, method, layer))
                except NoSecondMap as error:
                    left_out.append({"model": name, "method": method, "why": str(error)})
                advance(1)
    if not columns:
        raise UserError(f"method {', '.join(methods)}: {left_out[0]['why']}; expected another method")
    rows = _measure(columns, texts, objects) if objects else []
    blind = [METHODS[method].label for method in methods if not METHODS[method].asks]
    note = f"The same for every text: {', '.join(blind)}." if blind and len(texts) > 1 else ""
    shown = [_pixels(picture, _square_of(loaded[0], _SHOWN)).permute(1, 2, 0).numpy() for picture in pictures]
    drawn = [_labelled(column, METHODS[column.method].label) for column in columns]
    figure = look_figure(shown, texts, drawn, masks=objects or None, note=note)
    stored = {
        "command": shlex.join(["antiphase", *sys.argv[1:]]),
        "models": [_described(name, model) for name, model in zip(names, loaded, strict=True)],
        "images": [str(path) for path in images],
        "texts": list(texts),
        "prompt": prompt,
        "methods": list(methods),
        "layer": -1 if layer is None else layer,
        "left_out": left_out,
        "maps": [entry for column in columns for entry in _entries(column, texts)],
        "metrics": rows,
    }
    data = figure_bytes(figure, out)
    with replacing(out) as temporary:
        temporary.write_bytes(data)
        write_json(out.with_suffix(".json"), stored)
    for one in left_out:
        print(f"{one['model']}: no column for {one['method']} ({one['why']})", file=sys.stderr)
    if rows:
        from rich.console import Console

        Console().print(_table(rows))
    print(f"figure: {out}   maps: {out.with_suffix('.json')}")


def _check_words(
    texts: Sequence[str], prompt: str, methods: Sequence[str], known: dict[str, Any], layer: int | None
) -> None:
    for text in texts:
        if not text.strip():
            raise UserError(f"text {text!r}: expected words, such as mug")
    if "{}" not in prompt:
        raise UserError(f"prompt {prompt!r}: expected {{}} in the place of the text")
    for method in methods:
        if method not in known:
            raise UserError(f"method {method!r}: expected one of {', '.join(known)}")
    if layer is not None and all(known[method].asks for method in methods):
        raise UserError(
            f"layer {layer}: only attention, positive and negative are of one layer; add a --method"
        )


def _read_masks(
    paths: Sequence[Path], images: Sequence[Path], pictures: Sequence["Tensor"]
) -> list["np.ndarray"]:
    """Return the object in the centre square of each image, which is what a model is shown of it."""
    from antiphase.data.decoding import decode_whole

    if paths and len(paths) != len(images):
        raise UserError(f"{len(paths)} masks for {len(images)} images: expected one each, in their order")
    found = []
    for path, image, picture in zip(paths, images, pictures, strict=False):
        mask = decode_whole(path)
        if mask.shape != picture.shape:
            have, want = tuple(mask.shape[:0:-1]), tuple(picture.shape[:0:-1])
            raise UserError(f"mask {path}: {have} pixels, but {image} has {want}; expected the same")
        height, width = mask.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        seen = (mask[:, top : top + side, left : left + side].float().mean(0) > 127).numpy()
        if not seen.any():
            raise UserError(f"mask {path}: nothing white in its centre square; expected the object in white")
        found.append(seen)
    return found


def _load(specs: Sequence[str], random_weights: bool, device: "torch.device") -> list["nn.Module"]:
    from antiphase.models.zeroshot import is_dual_encoder

    loaded = load_models(specs, device, random_weights)
    for spec, model in zip(specs, loaded, strict=True):
        if not is_dual_encoder(model):
            raise UserError(f"{spec}: look needs a CLIP, a model with encode_image and encode_text")
    return loaded


def _names(models: Sequence[Any]) -> list[str]:
    """Return the models' names, or their specifications where two have the same name."""
    names = [model.card.name for model in models]
    return [
        model.card.spec if names.count(name) > 1 else name for name, model in zip(names, models, strict=True)
    ]


def _square_of(model: Any, size: int | None = None) -> Any:
    """Return what brings an image to the model's size, or to another with the same part of it in view."""
    from antiphase.data.decoding import Square

    return Square(size or model.square.size, model.square.interpolation)


def _pixels(picture: "Tensor", square: Any) -> "Tensor":
    return square(picture).float() / 255


def _column(
    name: str,
    model: Any,
    pictures: Sequence["Tensor"],
    prompts: Sequence[str],
    method: str,
    layer: int | None,
) -> "MapColumn":
    import torch

    from antiphase.report.runs.look import MapColumn
    from antiphase.sensitivity.relevance import METHODS

    square, device = _square_of(model), model.logit_scale.device
    parts = []
    for start in range(0, len(pictures), _AT_ONCE):
        images = torch.stack([_pixels(one, square) for one in pictures[start : start + _AT_ONCE]]).to(device)
        parts.append(
            METHODS[method].maps(model, images, prompts, -1 if layer is None else layer).float().cpu()
        )
    return MapColumn(name, method, torch.cat(parts, 1).numpy())


def _labelled(column: "MapColumn", label: str) -> "MapColumn":
    from dataclasses import replace

    return replace(column, method=label)


def _described(name: str, model: Any) -> dict[str, Any]:
    return {"name": name, "spec": model.card.spec, "attention": model.card.attention, "seed": model.card.seed}


def _entries(column: "MapColumn", texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each map, its values to six significant digits."""
    return [
        {"model": column.model, "method": column.method, "image": image, "text": text}
        | {"map": [[float(f"{value:.6g}") for value in line] for line in values]}
        for text, maps in zip(texts, column.maps, strict=True)
        for image, values in enumerate(maps)
    ]


def _measure(
    columns: Sequence["MapColumn"], texts: Sequence[str], masks: list["np.ndarray"]
) -> list[dict[str, Any]]:
    """Return a row for each model, method, text and image."""
    from antiphase.evaluation.localisation import mask_average_precision, pointing_game

    return [
        {"model": column.model, "method": column.method, "image": image, "text": text}
        | {"pointing_game": bool(hit), "average_precision": float(f"{precision:.6g}")}
        for column in columns
        for text, maps in zip(texts, column.maps, strict=True)
        for image, (hit, precision) in enumerate(
            zip(pointing_game(maps, masks), mask_average_precision(maps, masks), strict=True)
        )
    ]


def _table(rows: Sequence[dict[str, Any]]) -> "Table":
    """Return the rates over the images, with 95 % intervals, one line for each model, method and text."""
    import numpy as np
    from rich.table import Table

    from antiphase.evaluation.statistics import jackknife, proportion

    table = Table(title="maps against masks, 95 % intervals over the images")
    for heading in ("model", "method", "text", "images", "pointing game", "mask average precision"):
        table.add_column(heading, overflow="fold")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["method"], row["text"]), []).append(row)
    for key, group in groups.items():
        hits = proportion(sum(row["pointing_game"] for row in group), len(group))
        values = np.array([[row["average_precision"]] for row in group])
        mean = jackknife(values, lambda means: means[..., 0])
        spread = f" [{max(mean.low, 0):.2f}, {min(mean.high, 1):.2f}]" if mean.n > 1 else ""
        table.add_row(
            *key,
            str(len(group)),
            f"{hits.value:.2f} [{hits.low:.2f}, {hits.high:.2f}]",
            f"{mean.value:.2f}{spread}",
        )
    return table
