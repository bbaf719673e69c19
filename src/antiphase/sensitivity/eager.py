"""Run any model's attention so that forward-mode and second derivatives exist."""

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
    """Import torch's forward-mode formulas once, without the FutureWarning that this import emits."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


@contextmanager
def gradients(*, enabled: bool) -> Iterator[None]:
    """Enable or disable gradients, and leave the caller's inference mode.

    A generator must not yield within it, because its caller would inherit the mode.
    """
    with torch.inference_mode(mode=False), torch.set_grad_enabled(enabled):
        yield


def leaf(x: Tensor) -> Tensor:
    """Return x as the leaf of a new graph, also if it was created in inference mode."""
    with gradients(enabled=True):
        return (x.clone() if x.is_inference() else x).detach().requires_grad_()


@contextmanager
def eager_attention() -> Iterator[None]:
    """Make torch compute attention with plain matrix products, and leave the caller's inference mode.

    The fused kernels have neither forward-mode nor second derivatives, and without gradients
    ``nn.MultiheadAttention`` would take its own fast path.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), gradients(enabled=torch.is_grad_enabled()):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
