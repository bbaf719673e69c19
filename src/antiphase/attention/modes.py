"""What is asked of a call besides its values: whether our own kernels may answer, and what may be left out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

_lock = threading.Lock()
_callers = 0  # within outputs_only()
_only_outputs = False  # whether any is: by this alone compiled code is to be chosen


@contextmanager
def outputs_only() -> Iterator[None]:
    """Let models leave out what their output does not depend on.

    Within it a vision transformer, which is read at its class token, computes no other token in its last block beyond
    the keys and values that the class token attends to. Logits and gradients are the same, to rounding. What is
    watched by hooks, or changed by hand, sees all tokens.

    The attacks search within it, and take their verdicts as their caller would: outside of it, unless the caller is
    within. Like autocast, it reaches models inside of others and other libraries' attacks; unlike autocast, it holds
    for all threads, and a checkpointed model has to go backward within it too.
    """
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def is_outputs_only() -> bool:
    """Return whether any caller is within :func:`outputs_only`."""
    return _only_outputs


def _enter(count: int) -> None:
    global _callers, _only_outputs
    with _lock:
        _callers += count
        _only_outputs = _callers > 0


def plain_forward() -> bool:
    """Return whether only plain operations will do: forward mode, torch.func, or a compiler that reads them."""
    return (
        torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


def plain_backward(grad: Tensor) -> bool:
    """Return whether a backward pass is itself to be differentiated (``create_graph``) or batched."""
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    # is_grads_batched, which torch.func knows nothing of
    return "Batched" in str(torch._C._dispatch_keys(grad))
