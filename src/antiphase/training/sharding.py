"""Weights, gradients and optimizer state divided among processes (FSDP), for models that do not fit one device."""

from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn


def shard(model: nn.Module, blocks: list[nn.Module], accelerator: Accelerator) -> None:
    """Divide a model among the processes, in place, and move each one's part to its device.

    A block's weights are put together while it computes; what is in no block stays together throughout a step. All
    must happen in the model's own ``forward``. Each parameter is replaced by a new one, whose gradient is the mean
    over the processes.

    accelerate divides models on GPUs only, by the same function of PyTorch.

    Source: PyTorch, ``torch.distributed.fsdp.fully_shard``.

    Args:
        model: on any device.
        blocks: some of its modules, none within another.
        accelerator: accelerator of the run.
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

    there = tensor.to(like.device)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
