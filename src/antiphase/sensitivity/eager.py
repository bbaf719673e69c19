"""Attention in a form that can be differentiated forwards and twice, in anybody's model."""

import functools
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


@functools.cache
def prepare_forward_mode() -> None:
    """Load what forward mode needs, once: torch would warn of torch.jit.script, which it calls itself there."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


@contextmanager
def gradients(*, enabled: bool) -> Iterator[None]:
    """Record gradients or not while the context lasts, outside the caller's inference mode.

    Generators must not yield within it: the caller would be left with its mode.
    """
    with torch.inference_mode(mode=False), torch.set_grad_enabled(enabled):
        yield


def leaf(x: Tensor) -> Tensor:
    """Return x as the leaf of a new graph, whatever mode it was made in."""
    with gradients(enabled=True):
        return (x.clone() if x.is_inference() else x).detach().requires_grad_()


@contextmanager
def eager_attention() -> Iterator[None]:
    """Have torch's attention computed by plain products while the context lasts.

    The fused kernels have neither forward-mode derivatives nor second ones, and ``nn.MultiheadAttention``
    leaves for a fast path of its own where no gradient is asked for. The caller's inference mode, in which
    nothing can be differentiated, is off while the context lasts.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), gradients(enabled=torch.is_grad_enabled()):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
