"""A cell's folder with files in it that do not belong there, or are damaged."""

import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.store import Journal

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
    with pytest.raises(UserError, match=r"0-000007.parquet: has rows of .*expected {'sample': Int64, 'success': Bool"):
        journal.rows()


@pytest.mark.parametrize("content", [b"", b"{", b'"text"', b"[1]", b"\xff\xfe", b"{}"])
def test_damaged_warnings_are_named(tmp_path, content):
    (tmp_path / "warnings-0.json").write_bytes(content)
    with pytest.raises(UserError, match=r"warnings-0.json: .*; delete .* and its images are attacked again"):
        Journal(tmp_path, SCHEMA).warnings()


@pytest.mark.parametrize("position", [4, 0.3, 0.5, 0.7, -6])
def test_a_flipped_bit_is_noticed(tmp_path, position):
    journal = _kept(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[int(position * len(content)) if isinstance(position, float) else position] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"0-000001-.*: cannot be read \(it is damaged: .*; delete it and"):
        journal.rows()


def test_rows_of_before_there_were_digests_are_read_and_replaced(tmp_path):
    ROWS.write_parquet(tmp_path / "0-000003.parquet")
    journal = Journal(tmp_path, SCHEMA)
    assert journal.rows().equals(ROWS)
    assert journal.next == 4
    journal.compact(ROWS)
    assert [path.name[:9] for path in tmp_path.iterdir()] == ["0-000004-"]
    assert Journal(tmp_path, SCHEMA).rows().equals(ROWS)


@pytest.mark.parametrize("name", ["lr[0.1]", "~", "a?b*", "caf\udce9"])
def test_a_folder_of_any_name_holds_rows(tmp_path, name):
    assert _kept(tmp_path / name).rows().equals(ROWS)
