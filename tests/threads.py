"""Threads in the place of the processes of torchrun."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from antiphase.processes import Process


@dataclass(frozen=True)
class _Thread(Process):
    barrier: threading.Barrier | None = None

    def wait(self):
        self.barrier.wait(60)


def in_threads(count, run):
    """Return what ``run`` returns in each of several threads, given its share of the work."""
    barrier = threading.Barrier(count)

    def one(rank):
        try:
            return run(_Thread(rank, count, barrier))
        except BaseException:
            barrier.abort()  # the others would wait for this one
            raise

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
