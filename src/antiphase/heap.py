"""Tuning of the C library's allocator."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_LARGEST = (1 << 31) - 1  # bytes; an int


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next pass; only for commands, which own their process.

    By default glibc returns large blocks to the system, and the page faults of the next pass take up to a quarter of a
    forward pass of a large model on a CPU (dev/attention-backends.md). Without glibc, or if the user has set its
    thresholds in the environment, this does nothing.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _OF_THE_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_TRIM_THRESHOLD, _LARGEST)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
