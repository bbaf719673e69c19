"""The number format of forward passes."""

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bf16"]
SearchPrecision = Literal["auto", "float32", "bf16"]
EMULATE = "ANTIPHASE_EMULATE_BF16"
"""Environment variable: if it is 1, bf16 is emulated where the hardware lacks it, as ``torch.autocast`` does."""


def multiplies_bf16(device: "torch.device") -> bool:
    """Return whether a device multiplies bf16 matrices in hardware."""
    import torch  # the command line names precisions without it

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        return bool(able.get("amx_bf16") or able.get("avx512_bf16"))
    return False


def autocast(device: "torch.device", precision: Precision) -> contextlib.AbstractContextManager[object]:
    """Return the context of forward passes in a precision, whatever autocast the caller is in.

    A device without bf16 computes ``"bf16"`` in float32; ``ANTIPHASE_EMULATE_BF16=1`` emulates it, 25 times as slow.
    """
    import torch

    if precision == "float32" or not (multiplies_bf16(device) or os.environ.get(EMULATE) == "1"):
        inside = torch.is_autocast_enabled(device.type)
        return torch.autocast(device.type, enabled=False) if inside else contextlib.nullcontext()
    _expect_unfused_norms()
    return torch.autocast(device.type, torch.bfloat16)


@functools.cache
def _expect_unfused_norms() -> None:
    """Let torch say unheard what it says once: nn.RMSNorm is not fused under autocast, which is nobody's mistake."""
    import torch

    with warnings.catch_warnings(action="ignore"):
        torch.rms_norm(torch.ones(1, 1, dtype=torch.bfloat16), (1,), torch.ones(1))


@contextlib.contextmanager
def exact_float32(device: "torch.device") -> Iterator[None]:
    """Compute float32 with all of its bits on a GPU, where torch's default rounds convolutions to TF32 (10 bits)."""
    import torch

    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn  # torch declares no types for its operators
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
