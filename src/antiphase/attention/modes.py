"""What is asked of a call besides its values: whether our own kernels may answer, and what may be left out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

_callers = 0  # within outputs_only()


@contextmanager
def outputs_only() -> Iterator[None]:
    """Let models leave out what their output does not depend on.

    Within it a vision transformer, which is read at its class token, computes no other token in its last block beyond
    the keys and values that the class token attends to. Logits and gradients are the same, to rounding. A block that
    is watched by hooks, or changed by hand, is computed whole.

    The attacks search within it, and take their verdicts outside of it. Like autocast, it reaches models inside of
    others and other libraries' attacks; unlike autocast, it holds for all threads.
    """
    global _callers
    _callers += 1
    try:
        yield
    finally:
        _callers -= 1


def is_outputs_only() -> bool:
    """Return whether any caller is within :func:`outputs_only`."""
    return _callers > 0


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
