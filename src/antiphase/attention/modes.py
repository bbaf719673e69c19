"""What is asked of a call besides its values: it decides whether our own kernels may answer."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


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
