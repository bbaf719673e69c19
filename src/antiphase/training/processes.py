"""The processes of a run: one, or those that torchrun started, on a CPU as on GPUs."""

import atexit
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

_PATIENCE = timedelta(hours=2)  # the first process measures the held-out sets while the others wait


def start_processes(**options: Any) -> Accelerator:
    """Return the accelerator of a run, without mixed precision: autocast is the caller's.

    Args:
        **options: of accelerate's ``Accelerator``.
    """
    end_group_at_exit()
    # without cpu=True accelerate takes each of torchrun's processes on a CPU for a run of its own
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        **options,
    )


@cache
def end_group_at_exit() -> None:
    """Have the process group of torchrun's processes ended before the interpreter is, where Gloo made it.

    Its threads may still hold tensors of Python when the last statement has run; one that comes for the interpreter's
    lock after that aborts the process, whose work was done. NCCL's own end waits for processes that may have failed.
    """
    atexit.register(_end_group)


def _end_group() -> None:
    if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
        dist.destroy_process_group()
