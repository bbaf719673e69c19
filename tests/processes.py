"""Python in processes of its own, forked from one that has imported torch, which would take seconds each time.

``python("-m", "antiphase", "--help")`` runs what that command line would, and what runs can be killed.
"""

import contextlib
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path

# not polars: a process must not be forked from one with threads
_PRELOADED = ["torch._dynamo", "torchvision", "accelerate", "sklearn.linear_model", "antiphase.cli"]
KILLS_ITSELF = Path(__file__).parent / "training" / "kills_itself.py"
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(_PRELOADED)


class Python:
    """Python with these arguments (``-m MODULE``, ``-c CODE`` or a file first), from the start of ``with`` on."""

    def __init__(self, *arguments, **environment):
        self._request = (list(map(str, arguments)), {**os.environ, **environment})

    def __enter__(self):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self._log = Path(file.name)
        given = {"arguments": self._request[0], "environment": self._request[1], "log": str(self._log)}
        # a standard function: the other process cannot import tests
        self._process = _forking.Process(target=runpy.run_path, args=(__file__, {"given": given}, "<forked>"))
        self._process.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self._log.unlink()

    @property
    def runs(self):
        """Whether it has not come to its end."""
        return self._process.is_alive()

    @property
    def printed(self):
        """What it has printed, errors too."""
        return self._log.read_text()

    def kill(self):
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.join()

    def wait(self, seconds=300):
        """Return its exit code (``-signal.SIGKILL`` if it was killed)."""
        self._process.join(seconds)
        assert not self.runs, f"not at its end after {seconds} s: {self.printed[-2000:]}"
        return self._process.exitcode


def python(*arguments, **environment):
    """Run Python to its end, which must be a good one, and return what it printed."""
    return together(1, *arguments, **environment)


def together(count, *arguments, **environment):
    """Run as many processes of a group as torchrun does, and return what they printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if count > 1 else {}
    with contextlib.ExitStack() as stack:
        ranks = [{"RANK": str(rank), "WORLD_SIZE": str(count)} if count > 1 else {} for rank in range(count)]
        local = [{f"LOCAL_{name}": value for name, value in rank.items()} for rank in ranks]
        started = [
            stack.enter_context(Python(*arguments, **environment, **group, **one, **other))
            for one, other in zip(ranks, local, strict=True)
        ]
        for process in started:
            assert process.wait() == 0, process.printed[-2000:]
        return "".join(process.printed for process in started)


def _begin(arguments, environment, log):
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(line_buffering=True)
    first, *rest = arguments
    try:
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "-c", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            runpy.run_path(first, run_name="__main__")
    finally:
        import atexit

        atexit._run_exitfuncs()  # multiprocessing leaves them out


if __name__ == "<forked>":
    _begin(**given)  # pyright: ignore[reportUndefinedVariable]
