"""Executors: workers of this machine, jobs handed to submitit."""

import sys

import pytest

from antiphase.errors import UserError
from antiphase.studies.run import parse_settings, run_locally, submit


def test_as_many_jobs_as_workers_are_submitted(tmp_path):
    command = [sys.executable, "-c", f"import os; open({str(tmp_path)!r} + f'/{{os.getpid()}}.ran', 'w')"]
    for job in submit(tmp_path / "slurm", {"timeout_min": 5}, command, 2, cluster="local"):
        job.result()
    assert len(list(tmp_path.glob("*.ran"))) == 2


def test_where_there_is_no_slurm_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun there
    with pytest.raises(UserError, match="--executor slurm: "):
        submit(tmp_path / "slurm", {}, [sys.executable, "-V"], 1)


def test_settings_that_submitit_does_not_know_are_named(tmp_path):
    with pytest.raises(UserError, match="colour"):
        submit(tmp_path / "slurm", {"colour": "red"}, [sys.executable, "-V"], 1, cluster="local")


def test_local_workers_beside_this_one(tmp_path):
    done = []
    command = [sys.executable, "-c", f"import os; open({str(tmp_path)!r} + f'/{{os.getpid()}}.ran', 'w')"]
    run_locally(lambda: done.append("here"), command, 3)
    assert done == ["here"]
    assert len(list(tmp_path.glob("*.ran"))) == 2


def test_a_worker_that_fails_is_not_passed_over(tmp_path):
    with pytest.raises(UserError, match="a worker ended with code 3"):
        run_locally(lambda: None, [sys.executable, "-c", "raise SystemExit(3)"], 2)


def test_an_interruption_here_stops_the_others(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_locally(interrupted, [sys.executable, "-c", "import time; time.sleep(60)"], 2)


def test_settings():
    assert parse_settings(["timeout_min=240", "slurm_partition=gpu"]) == {"timeout_min": 240, "slurm_partition": "gpu"}
    with pytest.raises(UserError, match="expected name=value"):
        parse_settings(["gpu"])
