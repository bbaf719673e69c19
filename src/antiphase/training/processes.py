"""Set up the processes of a run: a single one, or those started by torchrun, on CPU or GPU."""

import atexit
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

_PATIENCE = timedelta(hours=2)  # the others wait while the main process evaluates


def start_processes(**options: Any) -> Accelerator:
    """Return the accelerator of a run, without mixed precision, since callers use autocast themselves.

    Args:
        **options: options of accelerate's ``Accelerator``.
    """
    end_group_at_exit()
    # without cpu=True, accelerate treats each torchrun process on a CPU as a separate run
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        **options,
    )


@cache
def end_group_at_exit() -> None:
    """Destroy a Gloo process group at exit, before the interpreter shuts down.

    Otherwise a Gloo thread that still holds Python tensors may take the interpreter's lock during shutdown and abort
    the process. NCCL groups are left alone, because destroying them waits for processes that may have failed.
    """
    atexit.register(_end_group)


def _end_group() -> None:
    if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
        dist.destroy_process_group()
