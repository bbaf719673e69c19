"""Kernels in C++ for a CPU with AVX-512, built with the machine's own compiler at first use and kept."""

import functools
import logging
import warnings
from typing import Any

import torch

from antiphase.attention.backends.native.build import CannotBuildError, library, missing


@functools.cache
def kernels() -> Any | None:
    """Return the kernels of ``kernels.cpp``, or None where there are none; a process asks once.

    What is kept was built for this torch and this kind of processor; the next process tries again what failed.
    Without a compiler, on another machine or with ``ANTIPHASE_NATIVE=0`` that is said at level INFO; a compiler
    that fails is a warning.
    """
    if why := missing():
        logging.getLogger(__name__).info("no native kernels: %s", why)
        return None
    try:
        torch.ops.load_library(str(library()))
    except (CannotBuildError, OSError) as error:
        warnings.warn(
            f"no native kernels for attention, which is slower without: {error}; ANTIPHASE_NATIVE=0 does "
            "without them in silence",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return torch.ops.antiphase
