"""Files that somebody else may have written: whatever is in them, one line or the right content."""

import hashlib
import os

import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.files import parse_json, read_bytes, read_json, read_json_lines, read_rows

ROWS = pl.DataFrame({"sample": [2, 3], "success": [True, False]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5_000, "5,000 digits"),
        ('{"seed": ' + "1" * 21 + "}", "21 digits"),
        ("", "line 1"),
        ("\xff", "Expecting value"),
    ],
)
def test_json_beyond_its_limits_is_one_line(tmp_path, text, why):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=why) as error:
        read_json(tmp_path / "run.json", fix="run it again")
    assert str(error.value).startswith(f"{tmp_path}/run.json: cannot be read (")
    assert str(error.value).endswith("; run it again")
    assert "\n" not in str(error.value)


def test_json_within_its_limits_is_read():
    assert parse_json(f'{{"seed": {2**64 - 1}, "low": {-(2**63)}}}') == {"seed": 2**64 - 1, "low": -(2**63)}
    assert parse_json("[" * 64 + "]" * 64)


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("[]", dict, "expected an object"),
        ("null", dict[str, str], "expected an object"),
        ('["a", 1]', list[str], r"1: expected"),
        ('{"a": "1"}', dict[str, int], "a '1': expected an integer"),
    ],
)
def test_json_of_another_type_names_the_field(tmp_path, text, kind, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=why):
        read_json(tmp_path / "x.json", kind)


def test_a_line_that_is_no_object_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n\n{"epoch": 2')
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be read"):
        read_json_lines(tmp_path / "metrics.jsonl")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        ("pipe", "is no regular file"),
        (".", "Is a directory"),
        ("none", "No such file"),
        ("\0", "null"),
    ):
        for read in (read_bytes, read_json, read_rows):
            with pytest.raises(UserError, match=f"cannot be read .*{why}"):
                read(tmp_path / path)
    with pytest.raises(UserError, match="is no regular file"):
        read_bytes("/dev/zero")


def test_a_file_above_the_limit_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", most=5) == b"12345"
    with pytest.raises(UserError, match="more than 4 bytes"):
        read_bytes(tmp_path / "file", most=4)


@pytest.mark.parametrize("name", ["lr[0.1]", "a?b", "*", "~", "{1,2}", "caf\udce9"])
def test_rows_are_read_from_the_very_path(tmp_path, name):
    path = tmp_path / name / "rows.parquet"
    path.parent.mkdir()
    with path.open("wb") as file:
        ROWS.write_parquet(file)
    assert read_rows(path).equals(ROWS)


def test_damaged_rows_are_one_line(tmp_path):
    path = tmp_path / "rows.parquet"
    ROWS.write_parquet(path)
    whole = path.read_bytes()
    digest = hashlib.sha256(whole).hexdigest()
    assert read_rows(path, digest=digest[:16]).equals(ROWS)
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        b"PAR1" * 4,
        whole[:-8] + b"\xff\xff\xff\x7f" + whole[-4:],
    ):
        path.write_bytes(damaged)
        for known in ("", digest):
            with pytest.raises(UserError, match=r"rows.parquet: cannot be read \(.*\); run it again$"):
                read_rows(path, "run it again", known)


def test_a_panic_of_polars_is_one_line(tmp_path, monkeypatch):
    def panic(_):
        raise pl.exceptions.PanicException("index out of bounds")

    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(UserError, match=r"cannot be read \(index out of bounds\)"):
        read_rows(tmp_path / "rows.parquet")
