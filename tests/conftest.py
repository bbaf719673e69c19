"""What all tests share."""

import os
import sys

import pytest
from hypothesis import settings

# One thread for each of xdist's workers, and for what they start: said before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from antiphase import cli

# An example takes what time it takes; which are tried changes from run to run, except where hypothesis finds CI set
settings.register_profile("antiphase", deadline=None)
settings.load_profile("antiphase")


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
