"""The result of ``antiphase look``: maps, the images under them, and the figure."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from antiphase.commands.look.figure import MapColumn, figure_bytes, look_figure
from antiphase.commands.result import Result, listed
from antiphase.errors import UserError
from antiphase.files import replacing, write_json
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table, estimate_field
from antiphase.sensitivity.relevance import METHODS
from antiphase.statistics.intervals import Estimate, clipped, jackknife, paired_difference, proportion

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
        names, texts = listed(self.stored["models"]), ", ".join(self.stored["texts"][:3])
        return [Headline(f"{names} on images: {len(self.stored['images'])}, for {texts}")]

    def sections(self) -> list[Section]:
        return [Section("maps", "Maps", plots=[Plot("maps", self.figure(), "")], tables=self.all_tables())]

    def all_tables(self) -> list[Table]:
        metrics = self.stored["metrics"]
        return [_mask_table(pl.DataFrame(metrics))] if metrics else []

    def figure(self) -> Figure:
        """Draw the maps: methods under their names in words, objects as outlines."""
        methods, texts = self.stored["methods"], self.stored["texts"]
        with np.load(io.BytesIO(self.files["shown.npz"])) as arrays:
            images = [arrays[name].astype(np.float64) / 255 for name in arrays if name.startswith("image")]
            masks = [arrays[name] for name in arrays if name.startswith("mask")]
        maps: dict[tuple[str, str], list[Any]] = {}
        for row in self.stored["maps"]:
            maps.setdefault((row["model"], row["method"]), []).append(row["map"])
        columns = [
            MapColumn(
                model,
                METHODS[method].label,
                np.array(values).reshape(len(texts), len(images), *np.shape(values[0])),
            )
            for (model, method), values in maps.items()
        ]
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

    def differences(self, other: Self) -> pl.DataFrame:
        """Return the differences of both rates over the images, for each pair of models, method and text."""
        frames = [self.frame(), other.frame()]
        if any("pointing_game" not in frame.columns for frame in frames):
            raise UserError(
                "compare: maps are compared by how they fit masks; expected look with mask= in both"
            )
        mine, theirs = (frame["model"].unique(maintain_order=True).to_list() for frame in frames)
        if len(mine) != len(theirs):
            raise UserError(
                f"compare: {len(mine)} models and {len(theirs)}; expected as many in both results"
            )
        against = pl.DataFrame({"model": mine, "against": theirs})
        others = frames[1].rename({"model": "against"})
        both = frames[0].join(against, on="model", maintain_order="left")
        both = both.join(others, on=["against", *_PLACE], suffix="_against", maintain_order="left")
        apart = any(self.stored[name] != other.stored[name] for name in ("images", "texts", "methods"))
        if apart or both["average_precision_against"].has_nulls():
            raise UserError("compare: different images, texts or methods; expected the same in both")
        rows = []
        for key, block in both.group_by("model", "against", "method", "text", maintain_order=True):
            hits = (block[name].to_numpy() for name in ("pointing_game", "pointing_game_against"))
            precision = block["average_precision"] - block["average_precision_against"]
            for metric, estimate in (
                ("pointing_game", paired_difference(*hits)),
                ("average_precision", _mean(precision)),
            ):
                rows.append((*key, metric, *asdict(estimate).values()))
        columns = ["model", "against", "method", "text", "metric", "difference", "low", "high", "n"]
        return pl.DataFrame(rows, columns, orient="row")


def _mean(values: pl.Series) -> Estimate:
    return jackknife(values.to_numpy()[:, None], lambda means: means[..., 0])


def _mask_table(metrics: pl.DataFrame) -> Table:
    """Tabulate the rates over the images: a line for each model, method and text."""
    rows = []
    for key, block in metrics.group_by("model", "method", "text", maintain_order=True):
        hits = proportion(int(block["pointing_game"].sum()), len(block))
        mean = _mean(block["average_precision"])
        mean = clipped(mean, 0.0, 1.0) if np.isfinite(mean.high) else mean
        rates = (estimate_field(rate.value, rate.low, rate.high, "{:.2f}".format) for rate in (hits, mean))
        rows.append((*(Field(str(word), kind="name") for word in key), Field(str(len(block))), *rates))
    columns = ("model", "method", "text", "images", "pointing game", "average precision")
    title = "Maps against masks, 95 % intervals over the images"
    return Table("masks", title, columns, tuple(rows), metrics.write_csv())
