"""What the runs of all measurements share: how rows are described, and which files are written at the end."""

from collections.abc import Mapping
from typing import Any

import polars as pl
from torch import nn

from antiphase.commands.lineup import Lineup
from antiphase.commands.run_folder import finished
from antiphase.data import ImageSet
from antiphase.files import printable, write_json
from antiphase.models.card import card_of
from antiphase.processes import this_process
from antiphase.store import write_frame


def described(
    rows: pl.DataFrame,
    schema: Mapping[str, Any],
    name: str,
    model: nn.Module,
    data: ImageSet | None = None,
    **shared: Any,
) -> pl.DataFrame:
    """Return rows with the columns of a schema: what they share is added, and the true labels of the data."""
    card = card_of(model)
    shared = {"model": name, "attention": card.attention, "seed": card.seed} | shared
    if data is not None:
        labels = pl.DataFrame({"sample": data.ids.numpy(), "label": data.labels.numpy()})
        rows = rows.join(labels, on="sample", maintain_order="left")
    columns = [pl.lit(value, schema[column]).alias(column) for column, value in shared.items()]
    return rows.with_columns(columns).select(*schema).cast(dict[Any, Any](schema))


def write_run(
    lineup: Lineup,
    options: Any,
    summary: Mapping[str, Any],
    frames: Mapping[str, pl.DataFrame | None],
    settings: dict[str, Any],
    warnings: list[str],
    command: str,
    began: float,
    **record: Any,
) -> None:
    """Write the tables of a finished run, ``run.json`` and ``summary.json`` into ``options.out``, in one process.

    A table that is None may lie there from an earlier run, and is removed; ``record`` replaces parts of ``run.json``.
    """
    if not this_process().first:
        return
    out = options.out
    for name, frame in frames.items():
        if frame is None:
            (out / f"{name}.parquet").unlink(missing_ok=True)
        else:
            write_frame(out / f"{name}.parquet", _with_files(frame, lineup.data))
    end = finished(out, began)
    about = lineup.record(options, settings, warnings, command, end["seconds"])
    write_json(out / "run.json", about | end | record)
    write_json(out / "summary.json", summary)


def _with_files(frame: pl.DataFrame, data: Any) -> pl.DataFrame:
    """Return rows with the column ``file`` behind ``sample``, if the samples are files."""
    files = getattr(data, "files", None)
    if files is None or "sample" not in frame.columns:
        return frame
    named = pl.DataFrame({"sample": data.ids.numpy(), "file": list(map(printable, files))})
    before = frame.columns[: frame.columns.index("sample") + 1]
    return frame.join(named, on="sample", how="left", maintain_order="left").select(
        *before, "file", pl.exclude(*before, "file")
    )
