"""The processes of a run: torchrun's or a single one, what they share, how they end together, and their memory."""

import atexit
import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from antiphase.errors import UserError, shown

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

_LONGEST = 9  # digits
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_LARGEST = (1 << 31) - 1  # bytes; an int


def rank_and_count() -> tuple[int, int]:
    """Return which of how many processes this one is; if there are several, it ends when torchrun does."""
    count = _number("WORLD_SIZE", 1, 10**_LONGEST, usual=1)
    rank, _ = (_number(name, 0, count - 1) for name in ("RANK", "LOCAL_RANK"))
    if count > 1:
        for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            if name not in os.environ:
                raise UserError(f"WORLD_SIZE {count} without {name}: start with torchrun, or unset it")
        _number("MASTER_PORT", 1, 65_535)
        _end_with_torchrun()
    return rank, count


def _number(name: str, low: int, high: int, usual: int = 0) -> int:
    text = os.environ.get(name, str(usual))
    number = int(text) if text.isdecimal() and len(text) <= _LONGEST else -1
    if str(number) != text or not low <= number <= high:
        bounds = f"an integer from {low} to {high}" if low < high else f"{low}"
        fix = "as torchrun sets it; correct or unset it"
        raise UserError(f"{name} {shown(text)} in the environment: expected {bounds}, {fix}")
    return number


@cache
def _end_with_torchrun() -> None:
    """End this process as soon as torchrun has ended: it would wait for the others for days."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # started by hand, perhaps by a shell that need not stay
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        with contextlib.suppress(OSError):
            os.write(2, b"antiphase: torchrun has ended, and this process with it; resume with the same command\n")
        os._exit(1)

    threading.Thread(target=watch, name="torchrun", daemon=True).start()
    # torchrun listens before it starts any process
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            socket.create_connection((host, port), timeout=60).close()
        except OSError:
            raise UserError(f"torchrun on {host}:{port} has ended; start it again") from None


Item = TypeVar("Item")


@dataclass(frozen=True)
class Process:
    """Process ``rank`` of ``count``."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, items: list[Item]) -> list[Item]:
        return items[self.rank :: self.count]

    def wait(self) -> None:
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()


def this_process() -> Process:
    """Return this process among those that torchrun or ``accelerate launch`` started, else the only one."""
    if rank_and_count()[1] == 1:
        return Process()
    import torch
    from accelerate import PartialState

    end_group_at_exit()
    # a process that has less to do waits for the others, however long
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
    return Process(state.process_index, state.num_processes)


_PATIENCE = timedelta(hours=2)  # the others wait while the main process evaluates


def start_processes(**options: Any) -> "Accelerator":
    """Return the accelerator of a run, without mixed precision, since callers use autocast themselves."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    rank_and_count()
    end_group_at_exit()
    options |= {"mixed_precision": "no", "kwargs_handlers": [InitProcessGroupKwargs(timeout=_PATIENCE)]}
    # without cpu=True, accelerate treats each torchrun process on a CPU as a separate run
    return Accelerator(cpu=not torch.cuda.is_available(), **options)


def sum_gradients(parameters: "Iterable[nn.Parameter]", accelerator: "Accelerator") -> None:
    """Sum the gradients over the processes, in one exchange instead of hundreds."""
    if accelerator.num_processes == 1:
        return
    import torch

    gradients = [p.grad for p in parameters if p.grad is not None]
    flat: Any = accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


@cache
def end_group_at_exit() -> None:
    """Destroy a Gloo process group at exit, whose threads may abort an interpreter that shuts down."""

    def end_group() -> None:
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            dist.destroy_process_group()

    atexit.register(end_group)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next pass, up to a quarter of a large model's forward pass on a CPU."""
    if sys.platform != "linux" or any(name in os.environ for name in _OF_THE_USER):
        return
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # musl has none
        mallopt(_TRIM_THRESHOLD, _LARGEST)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
