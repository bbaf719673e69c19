"""Workers of this machine."""

import sys

import pytest

from antiphase.errors import UserError
from antiphase.studies.run import run_locally


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
