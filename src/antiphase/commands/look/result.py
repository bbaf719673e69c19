"""The result of ``antiphase look``: maps, the images under them, and the figure."""

import io
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from antiphase.commands.look.figure import MapColumn, figure_bytes, look_figure
from antiphase.commands.result import Result, listed
from antiphase.errors import UserError
from antiphase.files import replacing, write_json
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.report.words import ends
from antiphase.sensitivity.relevance import METHODS
from antiphase.statistics.intervals import clipped, jackknife, paired_difference, proportion

_PLACE = ["method", "image", "text"]


class LookResult(Result):
    """Where models look in images for texts."""

    main_table = "maps"
    needs = ("maps.json", "maps.parquet", "shown.npz")

    @classmethod
    def of(
        cls,
        stored: dict[str, Any],
        shown: Sequence[Float[np.ndarray, "height width 3"]],
        masks: Sequence[Bool[np.ndarray, "height width"]],
    ) -> "LookResult":
        """Return a result of maps and metrics, square images in [0, 1] and, if there are some, the objects in them."""
        arrays: dict[str, Any] = {
            f"image{index}": np.round(255 * image).astype(np.uint8) for index, image in enumerate(shown)
        }
        arrays |= {f"mask{index}": mask for index, mask in enumerate(masks)}
        rows = pl.DataFrame(stored["maps"], infer_schema_length=None)
        if metrics := stored["metrics"]:
            rows = rows.join(pl.DataFrame(metrics), on=["model", *_PLACE], maintain_order="left")
        table, pictures = io.BytesIO(), io.BytesIO()
        rows.write_parquet(table)
        np.savez_compressed(pictures, **arrays)
        maps = json.dumps(stored, ensure_ascii=False).encode()
        files = {"maps.json": maps, "maps.parquet": table.getvalue(), "shown.npz": pictures.getvalue()}
        return cls("look", files)

    @cached_property
    def stored(self) -> dict[str, Any]:
        """Models, images, texts, maps and metrics."""
        return self.read_json("maps.json")

    def headlines(self) -> list[Headline]:
        count, texts = len(self.stored["images"]), ", ".join(self.stored["texts"][:3])
        names = listed(self.stored["models"])
        return [Headline(f"{names} on {count} image{'s' * (count > 1)} for {texts}")]

    def sections(self) -> list[Section]:
        metrics = self.stored["metrics"]
        tables = [_mask_table(pl.DataFrame(metrics))] if metrics else []
        return [Section("maps", "Maps", plots=[Plot("maps", self.figure(), "")], tables=tables)]

    def all_tables(self) -> list[Table]:
        return list(self.drawn[0].tables)

    def figure(self) -> Figure:
        """Draw the maps: methods under their names in words, objects as outlines."""
        methods, texts = self.stored["methods"], self.stored["texts"]
        with np.load(io.BytesIO(self.files["shown.npz"])) as arrays:
            images = [arrays[name].astype(np.float64) / 255 for name in arrays if name.startswith("image")]
            masks = [arrays[name] for name in arrays if name.startswith("mask")]
        maps: dict[tuple[str, str], list[Any]] = {}
        for row in self.stored["maps"]:
            maps.setdefault((row["model"], row["method"]), []).append(row["map"])
        columns = []
        for (model, method), values in maps.items():
            array = np.array(values)
            array = array.reshape(len(texts), len(images), *array.shape[1:])
            columns.append(MapColumn(model, METHODS[method].label, array))
        blind = [METHODS[method].label for method in methods if not METHODS[method].asks]
        note = f"The same for every text: {', '.join(blind)}." if blind and len(texts) > 1 else ""
        return look_figure(images, texts, columns, masks=masks or None, note=note)

    def write(self, path: Path) -> Path:
        """Write the figure and the maps next to it, both or none, and return the path of the maps."""
        content, maps = figure_bytes(self.figure(), path), path.with_suffix(".json")
        with replacing(path) as temporary:
            temporary.write_bytes(content)
            write_json(maps, self.stored)
        return maps

    def write_report(self, folder: Path) -> Path:
        path = folder / "look.png"
        with replacing(path) as temporary:
            temporary.write_bytes(figure_bytes(self.figure(), path))
        return path

    def differences(self, other: "LookResult") -> pl.DataFrame:
        """Return the differences of both rates over the images, for each pair of models, method and text."""
        frames = [self.frame(), other.frame()]
        if any("pointing_game" not in frame.columns for frame in frames):
            raise UserError(
                "compare: maps are compared by how they fit masks; expected look with mask= in both"
            )
        names = [frame["model"].unique(maintain_order=True).to_list() for frame in frames]
        if len(names[0]) != len(names[1]):
            raise UserError(
                f"compare: {len(names[0])} models and {len(names[1])}; expected as many in both results"
            )
        rows = []
        for model, against in zip(*names, strict=True):
            mine, theirs = frames[0].filter(model=model), frames[1].filter(model=against)
            both = mine.join(theirs, on=_PLACE, suffix="_against", maintain_order="left")
            same_images = self.stored["images"] == other.stored["images"]
            if not same_images or not len(both) == len(mine) == len(theirs):
                raise UserError("compare: different images, texts or methods; expected the same in both")
            for (method, text), block in both.group_by("method", "text", maintain_order=True):
                hits, others = (block[name].to_numpy() for name in ("pointing_game", "pointing_game_against"))
                apart = (block["average_precision"] - block["average_precision_against"]).to_numpy()
                for metric, estimate in (
                    ("pointing_game", paired_difference(hits, others)),
                    ("average_precision", jackknife(apart[:, None], lambda means: means[..., 0])),
                ):
                    numbers = (estimate.value, estimate.low, estimate.high, estimate.n)
                    rows.append((model, against, method, text, metric, *numbers))
        columns = ["model", "against", "method", "text", "metric", "difference", "low", "high", "n"]
        return pl.DataFrame(rows, columns, orient="row")


def _mask_table(metrics: pl.DataFrame) -> Table:
    """Tabulate the rates over the images: a line for each model, method and text."""
    rows = []
    for key, block in metrics.group_by("model", "method", "text", maintain_order=True):
        hits = proportion(int(block["pointing_game"].sum()), len(block))
        values = block["average_precision"].to_numpy()[:, None]
        mean = jackknife(values, lambda means: means[..., 0])
        mean = clipped(mean, 0.0, 1.0) if np.isfinite(mean.high) else mean
        rates = (
            Field(f"{rate.value:.2f}", (ends(rate.low, rate.high, "{:.2f}".format, " to "),))
            for rate in (hits, mean)
        )
        rows.append((*(Field(str(word), kind="name") for word in key), Field(str(len(block))), *rates))
    columns = ("model", "method", "text", "images", "pointing game", "average precision")
    title = "Maps against masks, 95 % intervals over the images"
    return Table("masks", title, columns, tuple(rows), metrics.write_csv())
