"""Modes of a call: whether custom kernels can be used, and whether unused outputs can be skipped."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

_lock = threading.Lock()
_callers = 0  # number of callers within outputs_only()
_only_outputs = False  # _callers > 0; a bool, so that torch.compile guards on nothing else


@contextmanager
def outputs_only() -> Iterator[None]:
    """Let models skip computations that do not affect their output, in all threads.

    The last block of a vision transformer, if it has no hooks or patched modules, computes only the class token, and
    the keys and values it attends to. Logits and gradients are equal up to rounding. The backward pass of a
    checkpointed model must run within it too.
    """

    def enter(count: int) -> None:
        global _callers, _only_outputs
        with _lock:
            _callers += count
            _only_outputs = _callers > 0

    enter(1)
    try:
        yield
    finally:
        enter(-1)


def is_outputs_only() -> bool:
    """Return whether :func:`outputs_only` is active in any thread."""
    return _only_outputs


def plain_forward() -> bool:
    """Return whether the forward pass needs plain operations: forward mode, torch.func or torch.compile."""
    plain = torch.compiler.is_compiling() or forward_ad._current_level >= 0
    return plain or torch._C._are_functorch_transforms_active()


def plain_backward(grad: Tensor) -> bool:
    """Return whether a backward pass is differentiated itself (``create_graph``) or batched."""
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    # is_grads_batched, which torch.func does not report
    return "Batched" in str(torch._C._dispatch_keys(grad))
