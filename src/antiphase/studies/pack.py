"""Rows that ship: finished measurements of a store as a few small Parquet files, from which everything is drawn again.

A folder has ``cells.parquet``, a row for each cell (trainings, too, for their cost), and the rows of the measurements,
one file for each table, of attacks one for each attack. What is left out: checkpoints, how many passes an attack took,
and what a cell does not name as ``shipped``. Numbers that are not whole are rounded to float32, or to as many bits as
their cell ships; ε stays exact. ``README.md`` says what made the rows.
"""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from antiphase.commands.run_folder import locked
from antiphase.errors import UserError
from antiphase.files import as_json, read_rows, room, write_text
from antiphase.store import as_parquet, write_frame
from antiphase.studies.spec import Cell, closure
from antiphase.studies.store import Reader, core_seconds, described, identity, source_commit

CELLS_FILE = "cells.parquet"
README = "README.md"
_LEFT_OUT = ("forwards", "backwards")
_EXACT = ("eps",)  # compared with ε of the studies
_JSON = ("what", "versions", "warnings")
_SCHEMA: dict[str, Any] = dict.fromkeys(("cell", "file", "table", "label", "what"), pl.String)
_SCHEMA |= {"rows": pl.Int64, "seconds": pl.Float64, "work": pl.Float64, "whole": pl.Boolean}
_SCHEMA |= dict.fromkeys(("finished", "hardware", *_JSON[1:], "study", "command", "commit"), pl.String)
_RESTORE = "restore the file"
_SMALL: dict[str, Any] = {"compression": "zstd", "compression_level": 19, "statistics": False}
_SMALL |= {"row_group_size": 2**24, "data_page_size": 2**26}  # one group, one page: what repeats is stored once


@dataclass(frozen=True)
class Pack:
    """A folder of rows that ship, read like a store; rows of sources before they were ``RENEWED`` count, too."""

    root: Path
    _read: dict[str, Any] = field(default_factory=dict, repr=False)

    def done(self, cell: Any) -> bool:
        """Whether the rows of a measurement are there; a training has none, so it is not."""
        return bool(self._records.get(self._key(cell), {}).get("file"))

    def _key(self, cell: Any) -> str:
        return key if (key := identity(cell)) in self._records else identity(cell, renewed=False)

    def record(self, cell: Any) -> dict[str, Any] | None:
        return self._records.get(self._key(cell))

    def damage(self, cell: Any) -> str | None:
        return None  # the version control of the folder finds it

    def busy(self, cell: Any) -> bool:
        return False

    def rows(self, cell: Any) -> pl.DataFrame | None:
        key = self._key(cell)
        if not (file := self._records.get(key, {}).get("file")):
            return None
        if file not in self._read:
            whole = read_rows(self.root / file, _RESTORE)
            if "cell" not in whole.columns:
                raise UserError(f"{self.root / file}: has no column cell; {_RESTORE}")
            self._read[file] = whole.partition_by("cell", as_dict=True, include_key=False)
        if (key,) not in self._read[file]:
            raise UserError(f"{self.root / file}: has no rows of cell {key}; {_RESTORE}")
        rows, expected = self._read[file][(key,)], self._records[key]["rows"]
        if len(rows) != expected:
            raise UserError(f"{self.root / file}: has {len(rows)} rows of cell {key}, not {expected}; {_RESTORE}")
        return _widened(rows)

    def files_of(self, cells: Sequence[Cell]) -> dict[str, bytes]:
        """Return the files of some cells and of what they need, by name."""
        kept = pl.col("cell").is_in({self._key(cell) for cell in closure(cells)})
        names = (CELLS_FILE, *sorted(set(self.cells.filter(kept)["file"]) - {""}))
        return {name: as_parquet(read_rows(self.root / name, _RESTORE).filter(kept)) for name in names}

    @property
    def cells(self) -> pl.DataFrame:
        """The records of all cells; those that are no measurement have no file."""
        path = self.root / CELLS_FILE
        records = read_rows(path, _RESTORE) if path.exists() else pl.DataFrame(schema=_SCHEMA)
        if dict(records.schema) != _SCHEMA:
            raise UserError(f"{path}: expected the columns {', '.join(_SCHEMA)}; {_RESTORE}")
        return records

    @property
    def _records(self) -> dict[str, dict[str, Any]]:
        if CELLS_FILE not in self._read:
            self._read[CELLS_FILE] = {
                row["cell"]: row | {name: as_json(row[name], self.root / CELLS_FILE, None) for name in _JSON}
                for row in self.cells.iter_rows(named=True)
            }
        return self._read[CELLS_FILE]


def add_to_pack(
    pack: Pack, study: str, command: str, cells: Sequence[Cell], source: Reader, *, small: bool = True
) -> int:
    """Add the finished cells of a study to a folder and return how many were new; those that are there stay.

    The same cells give the same bytes in any order, also after a kill. Unless ``small``, rows are kept whole.
    """
    try:
        with room(pack.root), locked(pack.root):
            return _add(pack, study, command, cells, source, small)
    finally:
        with contextlib.suppress(OSError):  # it holds something
            pack.root.rmdir()


def _add(pack: Pack, study: str, command: str, cells: Sequence[Cell], source: Reader, small: bool) -> int:
    pack._read.clear()
    known, measured = set(pack.cells["cell"]), set(map(identity, cells))
    records, rows = [], {}
    for cell in closure(cells):
        record = source.record(cell) or {}
        key = record.get("cell", identity(cell))  # rows that ship may be of a source before it was ``RENEWED``
        if key in known or not record:
            continue
        frame = source.rows(cell) if source.done(cell) else None
        if frame is None and identity(cell) in measured:
            continue  # not finished, or damaged
        file = ""
        if frame is not None:
            attacks = frame["attack"].unique().to_list() if "attack" in frame.columns else []
            file = "-".join([cell.table, *(attacks if len(attacks) == 1 else [])]) + ".parquet"
            if small:
                frame = _rounded(cell.shipped(frame.drop(_LEFT_OUT, strict=False)), cell.shipped_bits)
            rows.setdefault(file, []).append(frame.with_columns(cell=pl.lit(key)))
        about = {"table": cell.table, "label": cell.label, "rows": 0 if frame is None else len(frame)}
        about |= {"study": study, "command": command, "commit": source_commit()}
        about |= {name: value for name, value in record.items() if name in _SCHEMA and name != "label"}
        about |= {"cell": key, "file": file, "what": described(cell, key == identity(cell))}
        records.append(about | {name: json.dumps(about[name], sort_keys=True, ensure_ascii=False) for name in _JSON})
    for file, frames in rows.items():
        before = [_widened(read_rows(pack.root / file, _RESTORE))] if (pack.root / file).exists() else []
        before = [one.filter(pl.col("cell").is_in(sorted(known))) for one in before]  # a kill may have left others
        _write(pl.concat([*before, *map(_widened, frames)], how="diagonal_relaxed"), pack.root / file, small)
    whole = pl.concat([pack.cells, pl.DataFrame(records, _SCHEMA)]).sort("file", "cell")
    if records:
        write_frame(pack.root / CELLS_FILE, whole, **_SMALL)
        pack._read.clear()
    if records or (known and not (pack.root / README).exists()):
        write_text(pack.root / README, _readme(whole))
    return len(records)


def _rounded(rows: pl.DataFrame, bits: int) -> pl.DataFrame:
    """Round numbers to their first significant bits: with 12, the relative error is below 1/4,096."""

    def to_bits(column: pl.Series) -> pl.Series:
        mantissa, exponent = np.frexp(column.to_numpy())
        rounded = pl.Series(np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits))
        return rounded.cast(column.dtype).zip_with(column.is_not_null(), column).alias(column.name)

    names = [name for name in rows.select(pl.selectors.float()).columns if name not in _EXACT]
    return rows.with_columns(to_bits(rows[name]) for name in names)


def _write(rows: pl.DataFrame, path: Path, small: bool) -> None:
    """Write rows sorted so that what is alike lies together, images, then cells; in the smallest types if asked."""
    order = [name for name in ("sample", "cell") if name in rows.columns]
    rows = rows.select(sorted(rows.columns)).sort(order, maintain_order=True)
    if not small:
        return write_frame(path, rows)
    rows = rows.with_columns(
        column.shrink_dtype() if column.dtype.is_integer() else column.cast(pl.Float32)
        for column in rows
        if column.dtype.is_integer() or (column.dtype == pl.Float64 and column.name not in _EXACT)
    )
    write_frame(path, rows, **_SMALL)


def _widened(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.selectors.integer().cast(pl.Int64), pl.selectors.float().cast(pl.Float64))


def _readme(cells: pl.DataFrame) -> str:
    lines = [Path(__file__).with_name("rows_readme.md").read_text(encoding="utf-8").rstrip()]
    keys = ["study", "table", "command", "commit", "hardware"]
    for key, group in cells.sort(*keys, "cell").group_by(keys, maintain_order=True):
        study, table, command, commit, hardware = map(str, key)
        minutes = sum(core_seconds(record) for record in group.iter_rows(named=True)) / 60
        numbers = (f"{len(group):,}", f"{group['rows'].sum():,}", f"{minutes:,.1f}")
        lines.append(f"| {' | '.join([study, table, *numbers, f'`{command}`', commit or '–', hardware])} |")
    return "\n".join(lines) + "\n"
