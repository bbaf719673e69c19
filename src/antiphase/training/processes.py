"""The processes of a run: one, or those that torchrun started, on a CPU as on GPUs."""

from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

_PATIENCE = timedelta(hours=2)  # the first process measures the held-out sets while the others wait


def start_processes(**options: Any) -> Accelerator:
    """Return the accelerator of a run, without mixed precision: autocast is the caller's.

    Args:
        **options: of accelerate's ``Accelerator``.
    """
    # without cpu=True accelerate takes each of torchrun's processes on a CPU for a run of its own
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        **options,
    )
