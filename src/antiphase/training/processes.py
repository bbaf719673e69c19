"""Set up the processes of a run: a single one, or those started by torchrun, on CPU or GPU."""

import atexit
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn

from antiphase.torchrun import rank_and_count

_PATIENCE = timedelta(hours=2)  # the others wait while the main process evaluates


def start_processes(**options: Any) -> Accelerator:
    """Return the accelerator of a run, without mixed precision, since callers use autocast themselves.

    Args:
        **options: options of accelerate's ``Accelerator``.
    """
    rank_and_count()
    end_group_at_exit()
    # without cpu=True, accelerate treats each torchrun process on a CPU as a separate run
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        **options,
    )


def sum_gradients(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """Sum the gradients over the processes, in one exchange instead of hundreds."""
    if accelerator.num_processes == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat: Any = accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


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
