"""The directory of a run: whose it is, whether it can be written, and what a failure leaves behind."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from antiphase.commands.run_folder import LOCK, MARKER, check_holder, run_folder
from antiphase.errors import UserError


def test_a_run_takes_its_own_directory_again(tmp_path):
    for text in ("first", "second"):
        with run_folder(tmp_path / "a" / "run", "audit"):
            (tmp_path / "a" / "run" / "rows").write_text(text)
    assert (tmp_path / "a" / "run" / "rows").read_text() == "second"


def test_another_commands_directory_is_refused_and_left_as_it_was(tmp_path):
    with run_folder(tmp_path, "audit"):
        (tmp_path / "rows").write_text("mine")
    with pytest.raises(UserError, match="holds a run of antiphase audit; give antiphase export another"):
        run_folder(tmp_path, "export").__enter__()
    assert {path.name for path in tmp_path.iterdir()} == {MARKER, "rows"}


def test_files_of_ones_own_are_not_overwritten(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with (
        pytest.raises(UserError, match=r"holds report\.html, of no run; give another directory"),
        run_folder(tmp_path, "audit"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    (tmp_path / "run.json").write_text("{}")  # a run that was copied without its hidden files
    with run_folder(tmp_path, "audit"):
        pass


def test_a_store_of_studies_is_known_by_its_log(tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "log.jsonl").touch()
    check_holder(tmp_path, "study run")
    with pytest.raises(UserError, match="holds a run of antiphase study run;"):
        check_holder(tmp_path, "audit")


def test_a_run_that_fails_before_it_wrote_anything_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="no such model"), run_folder(tmp_path / "a" / "run", "audit"):
        raise UserError("no such model")
    assert not list(tmp_path.iterdir())
    (tmp_path / "kept").write_text("")
    with pytest.raises(UserError, match="no such model"), run_folder(tmp_path, "audit"):
        raise UserError("no such model")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_training_that_fails_before_it_saved_anything_may_be_corrected(tmp_path):
    def fails(out):
        with run_folder(out, "train"):
            (out / "recipe.json").write_text("{}")
            raise UserError("no shard matches")

    with pytest.raises(UserError, match="no shard matches"):
        fails(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "recipe.json").write_text("of an earlier run")
    with pytest.raises(UserError, match="no shard matches"):
        fails(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.json"}


def test_a_run_that_fails_later_keeps_what_it_wrote(tmp_path):
    def fill():
        with run_folder(tmp_path / "run", "audit"):
            (tmp_path / "run" / "rows").write_text("some")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="the disk is full"):
        fill()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {MARKER, "rows"}


def test_a_directory_that_is_deleted_during_a_run_is_an_error(tmp_path):
    with (
        pytest.raises(UserError, match="was deleted while the run wrote into it"),
        run_folder(tmp_path / "out", "audit"),
    ):
        shutil.rmtree(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_loop_of_links_is_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="cannot be written"):
        run_folder(tmp_path / "loop" / "run", "audit").__enter__()
    assert os.listdir(tmp_path) == ["loop"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_no_file_is_named_and_left_as_it_was(tmp_path, monkeypatch, code):
    def refuse(*_args, **_options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("antiphase.files.tempfile.mkdtemp", refuse)
    with pytest.raises(UserError, match=os.strerror(code)):
        run_folder(tmp_path / "run", "audit").__enter__()
    assert not list(tmp_path.iterdir())


def _names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_second_process_is_refused_and_named_the_first(tmp_path):
    with run_folder(tmp_path / "run", "audit"):
        with pytest.raises(UserError, match=rf"run': process {os.getpid()} on .* is writing it; wait"):
            run_folder(tmp_path / "run", "audit").__enter__()
        assert _names(tmp_path / "run") == {MARKER, LOCK}
        with run_folder(tmp_path / "other", "audit"):
            pass
    assert _names(tmp_path / "run") == {MARKER}
    with run_folder(tmp_path / "run", "audit"):
        pass


@pytest.mark.parametrize("text", ["", "process 1 on elsewhere", "\xff"])
def test_the_lock_of_a_killed_process_does_not_block(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    with run_folder(tmp_path, "audit"):
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on ")
    assert _names(tmp_path) == {MARKER}


def test_a_killed_process_releases_its_lock(tmp_path):
    code = "import os, sys; from pathlib import Path; from antiphase.commands.run_folder import run_folder; "
    code += "held = run_folder(Path(sys.argv[1]), 'audit'); held.__enter__(); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert LOCK in _names(tmp_path)
    with run_folder(tmp_path, "audit"):
        pass


def test_only_the_first_process_of_torchrun_locks(tmp_path, monkeypatch):
    with run_folder(tmp_path, "train"):
        monkeypatch.setenv("RANK", "1")
        with run_folder(tmp_path, "train"):
            pass
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(UserError, match="is writing it"):
            run_folder(tmp_path, "train").__enter__()


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("antiphase.commands.run_folder.fcntl.flock", refuse)
    with run_folder(tmp_path, "audit"):
        pass
    assert _names(tmp_path) == {MARKER}
