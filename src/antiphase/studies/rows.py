"""The stored rows of one study, for export."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from polars import selectors

from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.studies.collect import study_rows
from antiphase.studies.options import RowsOptions
from antiphase.studies.selection import reading, select


def chosen_rows(options: RowsOptions) -> dict[str, pl.DataFrame]:
    """Return the rows of a study, by table.

    Raises:
        UserError: the name is not that of one study, or it has no such rows.
    """
    options = reading(options)
    name, table = options.name, options.table
    chosen = select(options.study)
    if len(chosen.studies) > 1:
        raise UserError(f"{name!r} is several studies: name one; antiphase study list shows them")
    rows = study_rows(chosen.cells, chosen.store)
    if not rows:
        raise UserError(
            f"{name}: no rows in {options.study.place} under profile {options.profile}; "
            f"{options.study.next_command('run')} makes them"
        )
    if table is not None and table not in rows:
        raise UserError(f"table {table!r}: expected one of {', '.join(rows)}")
    if table is None and len(rows) > 1 and options.out is not None:
        raise UserError(f"{name} has several tables: name one with --table: {', '.join(rows)}")
    return {key: frame for key, frame in rows.items() if table in (None, key)}


def shown_rows(frame: pl.DataFrame, width: int) -> str:
    """Return the first and last rows with all columns, in tables of at most ``width`` characters if they can be.

    What is the same in every row is named once.
    """
    same = [name for name in frame.columns if len(frame) > 1 and frame[name].n_unique() == 1]
    said = ", ".join(f"{name} {frame[name][0]}" for name in same)
    blocks: list[list[str]] = [[]]
    for name in frame.columns:
        if name in same:
            continue
        if blocks[-1] and len(_table(frame, [*blocks[-1], name]).splitlines()[0]) > width:
            blocks.append([])
        blocks[-1].append(name)
    head = [f"the same in every row: {said}"] if same else []
    return "\n".join([*head, *(_table(frame, block) for block in blocks)])


def _table(frame: pl.DataFrame, columns: list[str]) -> str:
    with pl.Config(
        tbl_cols=-1, tbl_width_chars=1000, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True
    ):
        return str(frame.select(columns))


def plain_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows for JSON; what is not a finite number is null, and binary columns are left out."""
    return json.loads(frame.drop(selectors.binary()).write_json())


def write_rows(frame: pl.DataFrame, out: Path) -> None:
    """Write rows as CSV or Parquet.

    Raises:
        UserError: another suffix, or a column that a CSV cannot hold.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise UserError(f"{out}: expected a name that ends in .csv or .parquet")
    nested = [column for column, kind in frame.schema.items() if kind.is_nested() or kind == pl.Binary]
    if out.suffix == ".csv" and nested:
        raise UserError(
            f"{out}: column {nested[0]} does not fit a CSV; expected a name that ends in .parquet"
        )
    with replacing(out) as temporary, temporary.open("wb") as file:
        (frame.write_csv if out.suffix == ".csv" else frame.write_parquet)(file)
