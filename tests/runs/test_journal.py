"""A cell's folder with files in it that do not belong there, or are damaged."""

import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.runs.journal import Journal

SCHEMA = {"sample": pl.Int64, "success": pl.Boolean}
ROWS = pl.DataFrame({"sample": [2, 3], "success": [True, False]})


def _kept(folder):
    journal = Journal(folder, SCHEMA)
    journal.append(ROWS)
    journal.flush()
    return journal


@pytest.mark.parametrize("name", ["0-first.parquet", "notes.parquet", "0-000001 (copy).parquet", "-.parquet"])
def test_a_foreign_file_is_neither_read_nor_deleted(tmp_path, name):
    _kept(tmp_path)
    (tmp_path / name).write_text("not ours")
    journal = Journal(tmp_path, SCHEMA)
    assert journal.next == 2
    assert journal.rows().equals(ROWS)
    journal.compact(ROWS)
    assert name in {path.name for path in tmp_path.iterdir()}
    assert len(list(tmp_path.glob("0-000002-*.parquet"))) == len(list(tmp_path.iterdir())) - 1 == 1


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.rename({"success": "fell"}),
        ROWS.drop("success"),
        ROWS.with_columns(more=1),
        ROWS.cast({"sample": pl.String}),
        ROWS.cast({"sample": pl.Float64}),
    ],
)
def test_rows_of_other_columns_or_types_are_refused_by_name(tmp_path, rows):
    journal = _kept(tmp_path)
    rows.write_parquet(tmp_path / "0-000007.parquet")
    with pytest.raises(
        UserError, match=r"0-000007.parquet: has rows of .*expected sample Int64, success Bool"
    ):
        journal.rows()


@pytest.mark.parametrize("content", [b"", b"{", b'"text"', b"[1]", b"\xff\xfe", b"{}"])
def test_damaged_warnings_are_named(tmp_path, content):
    (tmp_path / "warnings-0.json").write_bytes(content)
    with pytest.raises(UserError, match=r"warnings-0.json: .*; delete .* and its images are attacked again"):
        Journal(tmp_path, SCHEMA).warnings()
