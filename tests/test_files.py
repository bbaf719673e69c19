"""Files that are whole or absent."""

import hashlib
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import time

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.errors import UserError
from antiphase.files import (
    PRIVATE,
    digest,
    parse_json,
    read_bytes,
    read_json,
    read_json_lines,
    read_rows,
    replacing,
    write_json,
    write_text,
)


@pytest.fixture
def umask():
    """Return a function that sets the process's umask until the test ends."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def _fail_halfway(path, error):
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


def test_replacing_writes_whole_files_in_new_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.bin"
    with replacing(path) as temporary:
        assert temporary.parent.parent == path.parent  # the rename must not cross file systems
        temporary.write_bytes(b"\x00\xff")
        assert not path.exists()
    assert path.read_bytes() == b"\x00\xff"
    assert _names(path.parent) == ["file.bin"]


def test_replacing_takes_the_place_of_the_old_file_at_the_end_only(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(str(path)) as temporary:
        temporary.write_text("new and longer")
        assert path.read_text() == "old"
    assert path.read_text() == "new and longer"
    assert _names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_and_no_temporary(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error):
        _fail_halfway(path, error)
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_an_exception_leaves_nothing_where_there_was_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        _fail_halfway(tmp_path / "file", RuntimeError)
    assert _names(tmp_path) == []


def test_a_rename_that_fails_leaves_no_temporary(tmp_path):
    def write():
        with replacing(tmp_path / "folder") as temporary:
            temporary.write_text("text")
            (tmp_path / "folder" / "inside").mkdir(parents=True)

    with pytest.raises(OSError, match="folder"):
        write()
    assert _names(tmp_path) == ["folder"]


def test_a_directory_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder: is a directory"), replacing(tmp_path / "folder"):
        pass
    assert _names(tmp_path) == ["folder"]


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"{name}: is no regular file; expected"), replacing(tmp_path / name):
            pass
    assert _names(tmp_path) == ["link", "pipe"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, umask, mask, mode):
    umask(mask)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("text")
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert os.umask(mask) == mask  # it was read, not changed


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"  # the one that ended last
    assert _names(tmp_path) == ["file"]


def _left_behind(folder, machine, process, age=0):
    private = folder / f"{PRIVATE}{machine}-{process}-abc"
    private.mkdir()
    (private / ".tmpXYZ").write_bytes(b"weights")
    os.utime(private, (time.time() - age,) * 2)
    return private


def _killed_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("machine", [platform.node(), "other-machine"])
def test_the_next_write_deletes_what_killed_processes_left(tmp_path, machine):
    _left_behind(tmp_path, machine, _killed_process(), age=0 if machine == platform.node() else 90_000)
    write_text(tmp_path / "file", "text")
    assert _names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("machine", "process"), [(platform.node(), os.getppid()), ("other-machine", 1), (platform.node(), "x")]
)
def test_what_running_processes_write_is_kept(tmp_path, machine, process):
    private = _left_behind(tmp_path, machine, process)
    write_text(tmp_path / "file", "text")
    assert private.is_dir()


def test_a_killed_write_leaves_nothing_once_the_next_process_wrote(tmp_path):
    killed = f"""
import os
from pathlib import Path
from antiphase.files import replacing
with replacing({str(tmp_path / "weights")!r}) as temporary:
    (temporary.parent / ".tmpABC").write_text("as safetensors does")
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    assert len(_names(tmp_path)) == 1
    write_text(tmp_path / "weights", "text")
    assert _names(tmp_path) == ["weights"]


def test_text_is_written_in_utf_8(tmp_path):
    write_text(tmp_path / "file", "λ ≤ ε\n")
    assert (tmp_path / "file").read_bytes() == "λ ≤ ε\n".encode()


def test_json_comes_back_and_stays_readable(tmp_path):
    value = {"version": 1, "models": [{"name": "λ", "lambda": [0.1, 1e-30]}], "none": None}
    write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "λ" in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_refuses_what_is_not_a_number_and_keeps_the_old_file(tmp_path, number):
    write_json(tmp_path / "file.json", [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"value": [number]})
    assert json.loads((tmp_path / "file.json").read_text()) == [1]
    assert _names(tmp_path) == ["file.json"]


def test_digest_by_hand():
    framed = (2).to_bytes(8, "little") + b"ab" + (2).to_bytes(8, "little") + "λ".encode()
    assert digest("ab", "λ") == hashlib.sha256(framed).hexdigest()
    assert digest(b"ab", "λ") == digest("ab", "λ")


@settings(max_examples=40)
@given(st.text(min_size=3, max_size=6), st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_one_text_cut_in_two_ways_has_two_digests(text, cuts, others):
    def parts(places):
        return [text[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(text)])]

    assert (digest(*parts(cuts)) == digest(*parts(others))) == (parts(cuts) == parts(others))


def test_text_that_utf8_cannot_hold_is_escaped_and_json_reads_it_back(tmp_path):
    name = os.fsdecode(b"\xff.png")
    write_json(tmp_path / "a.json", {"command": name})
    assert json.loads((tmp_path / "a.json").read_text()) == {"command": name}


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
    for damaged in (whole[: len(whole) // 2], b"", b"PAR1" * 4, whole[:-8] + b"\xff\xff\xff\x7f" + whole[-4:]):
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
