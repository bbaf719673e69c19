"""Ordered map over several threads, a few items ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

WORKERS = min(16, os.cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int = WORKERS
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, while up to ``ahead`` items are computed in threads.

    >>> list(in_threads(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(min(WORKERS, ahead))
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
