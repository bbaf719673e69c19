"""The processes of a run (one, or those of torchrun), what is divided among them, and experiment trackers."""

import atexit
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import InitProcessGroupKwargs, LoggerType
from torch import Tensor, nn

from antiphase.errors import UserError, first_line, shown
from antiphase.processes import rank_and_count

Tracker = str | GeneralTracker
Send = Callable[[dict[str, Any], int], None]  # numbers and their step, to the trackers
_PATIENCE = timedelta(hours=2)  # the others wait while the main process evaluates
_PACKAGES = {"comet_ml": "comet-ml"}  # where pip knows it by another name


def start_processes(**options: Any) -> Accelerator:
    """Return the accelerator of a run, without mixed precision, since callers use autocast themselves."""
    rank_and_count()
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


def sum_gradients(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """Sum the gradients over the processes, in one exchange instead of hundreds."""
    if accelerator.num_processes == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat: Any = accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def shard(model: nn.Module, blocks: list[nn.Module], accelerator: Accelerator) -> None:
    """Divide weights, gradients and optimizer state among the processes, in place, each part on its device.

    A block's weights are put together while it computes; what is in no block stays together throughout a step. All
    must happen in the model's own ``forward``. Each parameter is replaced by a new one, whose gradient is the mean
    over the processes. accelerate divides models on GPUs only, by the same function of PyTorch.

    Source: PyTorch, ``torch.distributed.fsdp.fully_shard``.
    """
    from torch.distributed.device_mesh import init_device_mesh  # not needed by most runs
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each process has a part of a tensor."""
    return hasattr(tensor, "full_tensor")


def divided(tensor: Tensor, like: Any) -> Tensor:
    """Return this process's part of a tensor if ``like`` is divided and of its shape, else the tensor."""
    if not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse trackers that are unknown or not installed."""
    available = {str(one.value) for one in get_available_trackers()}
    known = [str(one.value) for one in LoggerType if one is not LoggerType.ALL]
    for name in trackers:
        if isinstance(name, str) and name not in known:
            raise UserError(f"track {shown(name)}: expected one of {', '.join(known)}")
        if isinstance(name, str) and name not in available:
            raise UserError(f"track {name!r}: is not installed; run pip install {_PACKAGES.get(name, name)}")


def log_options(trackers: Sequence[Tracker], out: Path) -> dict[str, Any]:
    """Return the options of the accelerator that logs to trackers; files of tensorboard lie under ``out``."""
    return {"log_with": list(trackers), "project_dir": str(out)} if trackers else {}


def start_tracking(accelerator: Accelerator, trackers: Sequence[Tracker], recipe: dict[str, Any]) -> Send:
    """Start the trackers of a run and return what sends numbers and their step to them.

    Single numbers, words and truth values of the recipe are sent once. A list, such as λ by layer, is sent as one
    number for each element: ``lambda/0``, ``lambda/1`` and so on.

    Raises:
        UserError: a tracker cannot be started, for example for want of a login.
    """
    if not trackers:
        return lambda numbers, step: None
    config = {key: value for key, value in recipe.items() if isinstance(value, bool | int | float | str)}
    try:
        accelerator.init_trackers("antiphase", config)
    except Exception as error:  # each package has its own
        names = ", ".join(str(getattr(one, "name", one)) for one in trackers)
        raise UserError(
            f"track {names}: cannot be started ({first_line(error)}); set it up or leave out --track"
        ) from None
    return lambda numbers, step: accelerator.log(scalars(numbers), step)


def scalars(numbers: dict[str, Any]) -> dict[str, float]:
    """Return one named number for each element of a list.

    >>> scalars({"loss": 1, "lambda": [0.5, 0.25], "none": []})
    {'loss': 1.0, 'lambda/0': 0.5, 'lambda/1': 0.25}
    """
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list):
            flat |= {f"{name}/{index}": float(one) for index, one in enumerate(value)}
        else:
            flat[name] = float(value)
    return flat
