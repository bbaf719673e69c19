"""What all tests share."""

import importlib
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# One thread for each of xdist's workers, and for what they start: said before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ANTIPHASE_EMULATE_BF16", "1")  # tests of bf16 mean it on every processor

# The workers keep what they compile: else each process compiles torch's modules anew, half of the time it starts in.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from antiphase import cli

if os.environ.get("ANTIPHASE_PRETEND_BARE") == "1":
    importlib.import_module("tests.needs")  # hides what a bare machine lacks

# An example takes what time it takes; which are tried changes from run to run, except where hypothesis finds CI set
settings.register_profile("antiphase", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=100)  # `--hypothesis-profile thorough`
settings.load_profile("antiphase")


def pytest_sessionfinish(session):
    """Look at the skipped tests.

    The file that ANTIPHASE_SKIPPED names gets their ids, to run them later with ``pytest @FILE``. With
    ANTIPHASE_REQUIRE_ALL=1 a test that is skipped for want of something installable fails the run.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = {report.nodeid: report.longrepr[2] for report in reporter.stats.get("skipped", [])}
    if "ANTIPHASE_SKIPPED" in os.environ:
        Path(os.environ["ANTIPHASE_SKIPPED"]).write_text("".join(f"{nodeid}\n" for nodeid in skipped))
    if os.environ.get("ANTIPHASE_REQUIRE_ALL") == "1":
        for nodeid, reason in skipped.items():
            if "install" in reason or "could not import" in reason:
                reporter.write(f"\nANTIPHASE_REQUIRE_ALL=1, but {nodeid} is skipped: {reason}", red=True)
                session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder of this run that all of its workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def script(monkeypatch):
    """Load a script of ``benchmarks/`` by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def run_cli(monkeypatch, capsys):
    """Run the command line in this process: (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["antiphase", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run
