"""The command line, which saves the training's state after every step and kills its own process at the fifteenth."""

import itertools
import os
import signal
from types import SimpleNamespace

from antiphase import cli
from antiphase.training import loop

if __name__ == "__main__":
    step, taken, clock = loop._step, itertools.count(), itertools.count(step=10)
    loop._step = lambda *given: os.kill(os.getpid(), signal.SIGKILL) if next(taken) == 14 else step(*given)
    loop.time = SimpleNamespace(monotonic=lambda: next(clock))  # so long a step that each is saved
    cli.main()
