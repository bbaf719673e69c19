"""Results of ``antiphase look``: maps, the images under them, and the figure."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.old import Kind
from antiphase.commands.result import Result, listed
from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.reading import as_json, read_json
from antiphase.report.runs.look import figure_bytes, looked_figure
from antiphase.report.table import Field, Table
from antiphase.runs.look import Looked, MapColumn
from antiphase.statistics.intervals import jackknife, paired_difference

_PLACE = ["method", "image", "text"]


def looked_result(found: Looked) -> Result:
    """Return what was found as a result: ``maps.json``, ``maps.parquet`` and the images in ``shown.npz``."""
    stored = io.BytesIO()
    images = {f"image{at}": np.round(255 * image).astype(np.uint8) for at, image in enumerate(found.shown)}
    arrays: dict[str, Any] = images | {f"mask{at}": mask for at, mask in enumerate(found.masks)}
    np.savez_compressed(stored, **arrays)
    rows = pl.DataFrame(found.stored["maps"], infer_schema_length=None)
    if metrics := found.stored["metrics"]:
        rows = rows.join(pl.DataFrame(metrics), on=["model", *_PLACE], maintain_order="left")
    table = io.BytesIO()
    rows.write_parquet(table)
    maps = json.dumps(found.stored, ensure_ascii=False).encode()
    return Result(
        "look", {"maps.json": maps, "maps.parquet": table.getvalue(), "shown.npz": stored.getvalue()}
    )


def _read(folder: Path) -> Looked:
    stored = read_json(folder / "maps.json")
    with np.load(folder / "shown.npz") as held:
        images = [held[name].astype(np.float64) / 255 for name in held.files if name.startswith("image")]
        masks = [held[name] for name in held.files if name.startswith("mask")]
    shape = (len(stored["texts"]), len(images))
    columns: dict[tuple[str, str], list[list[list[float]]]] = {}
    for entry in stored["maps"]:
        columns.setdefault((entry["model"], entry["method"]), []).append(entry["map"])
    maps = [(key, np.array(its)) for key, its in columns.items()]
    drawn = [MapColumn(*key, its.reshape(*shape, *its.shape[1:])) for key, its in maps]
    return Looked(images, drawn, masks, stored)


def _line(result: Result) -> str:
    stored = as_json(result.files["maps.json"], "maps.json")
    count = len(stored["images"])
    texts = ", ".join(stored["texts"][:3])
    return f"{listed(stored['models'])} on {count} image{'s' * (count > 1)} for {texts}"


def _sheets(folder: Path) -> list[Table]:
    metrics = read_json(folder / "maps.json")["metrics"]
    rows = tuple(
        (
            Field(row["model"], kind="name"),
            Field(row["method"]),
            Field(row["text"]),
            Field(str(row["image"])),
            Field("hit" if row["pointing_game"] else "miss"),
            Field(f"{row['average_precision']:.2f}"),
        )
        for row in metrics
    )
    columns = ("model", "method", "text", "image", "pointing game", "average precision")
    return (
        [Table("masks", "Maps against masks", columns, rows, pl.DataFrame(metrics).write_csv())]
        if rows
        else []
    )


def _figure(folder: Path) -> Figure:
    return looked_figure(_read(folder))


def _differences(one: Result, two: Result) -> pl.DataFrame:
    """Return the differences of both rates over the images, for each pair of models, method and text."""
    frames = [each.frame() for each in (one, two)]
    if any("pointing_game" not in frame.columns for frame in frames):
        raise UserError("compare: maps are compared by how they fit masks; expected look with mask= in both")
    names = [frame["model"].unique(maintain_order=True).to_list() for frame in frames]
    if len(names[0]) != len(names[1]):
        raise UserError(
            f"compare: {len(names[0])} models and {len(names[1])}; expected as many in both results"
        )
    images = [as_json(each.files["maps.json"], "maps.json")["images"] for each in (one, two)]
    found = []
    for model, against in zip(*names, strict=True):
        mine, theirs = frames[0].filter(model=model), frames[1].filter(model=against)
        both = mine.join(theirs, on=_PLACE, suffix="_against", maintain_order="left")
        if images[0] != images[1] or not len(both) == len(mine) == len(theirs):
            raise UserError("compare: different images, texts or methods; expected the same in both")
        for (method, text), block in both.group_by("method", "text", maintain_order=True):
            hits, others = (block[name].to_numpy() for name in ("pointing_game", "pointing_game_against"))
            apart = (block["average_precision"] - block["average_precision_against"]).to_numpy()
            for metric, estimate in (
                ("pointing_game", paired_difference(hits, others)),
                ("average_precision", jackknife(apart[:, None], lambda means: means[..., 0])),
            ):
                numbers = (estimate.value, estimate.low, estimate.high, estimate.n)
                found.append((model, against, method, text, metric, *numbers))
    columns = ["model", "against", "method", "text", "metric", "difference", "low", "high", "n"]
    return pl.DataFrame(found, columns, orient="row")


def _report(folder: Path) -> None:
    with replacing(folder / "look.png") as temporary:
        temporary.write_bytes(figure_bytes(_figure(folder), folder / "look.png"))


KIND = Kind(
    "maps", ("maps.json", "maps.parquet", "shown.npz"), _line, _sheets, _figure, _differences, _report
)
