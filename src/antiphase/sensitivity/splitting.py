"""Split the call of an attention module into the parts of its layer, and check them against its output."""

import torch
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.sensitivity.adapters import Adapter, find_adapter, guessed
from antiphase.sensitivity.finding import find_attention, found_layer
from antiphase.sensitivity.layers import Call, Layer

# relative tolerance; other libraries compute parts in float32 even for float64 weights
_AGREEMENT = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}

HOW = (
    "write an adapter and call antiphase.sensitivity.register(its class, adapter), or register(its class, None) "
    "to ignore it; antiphase sense MODEL --write-adapter FILE writes a skeleton"
)


def take_apart(call: Call, check: bool = True) -> Layer:
    """Split a call into the parts of its layer, and check that they reproduce the module's output."""
    adapter = find_adapter(call.module)
    if adapter is None or isinstance(adapter, str):
        raise unknown_attention(call.name, call.module)
    try:
        return _split(adapter, call, check)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if adapter is not guessed or isinstance(error, torch.OutOfMemoryError):
            raise
        if not (reason := find_attention(call)):
            return _split(found_layer, call, check)
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): has q_proj, k_proj and v_proj, but does not work like "
            f"attention of transformers, and {reason}; {HOW}"
        ) from error


def _split(adapter: Adapter, call: Call, check: bool) -> Layer:
    layer = adapter(call.module, call)
    combined = layer.maps.combined  # cached in the branches, with the requested graph
    if check:
        _check(call, layer, combined)
    return layer


@torch.no_grad()
def _check(call: Call, layer: Layer, combined: Tensor) -> None:
    """Refuse a layer that does not reproduce the call's output.

    The error is relative to the attention's share of the output, since the module may include a residual path or
    a parallel MLP.
    """
    mine, without = layer.finish(combined), layer.finish(torch.zeros_like(combined))
    if getattr(call.module, "batch_first", True) is False:
        mine, without = (
            mine.transpose(0, 1),
            without.transpose(0, 1),
        )  # nn.MultiheadAttention: the tokens come first
    own = (call.output - without.nan_to_num()).abs().max()
    rounding = 4 * torch.finfo(call.output.dtype).eps * call.output.abs().max()
    error, allowed = (mine - call.output).abs().max(), _AGREEMENT[call.output.dtype]
    if not error <= allowed * own + rounding:
        raise UserError(
            f"{call.name} ({type(call.module).__name__}): its maps do not reproduce its output, relative error "
            f"{float(error / own):.1e} of the attention's share; expected at most {allowed:.0e}; {HOW}"
        )


def unknown_attention(name: str, module: nn.Module) -> UserError:
    """Return the error for a module without an adapter."""
    kind = type(module)
    return UserError(f"{name}: attention module {kind.__module__}.{kind.__qualname__} has no adapter; {HOW}")


def no_self_attention(name: str, module: nn.Module) -> UserError:
    """Return the error for attention to other tokens than its own, such as attention pooling."""
    return UserError(
        f"{name} ({type(module).__name__}): cross-attention is not supported; expected self-attention"
    )


def not_told(call: Call, reason: str) -> UserError:
    """Return the error for a module that computes softmax maps in a way that was not recognised."""
    kind = type(call.module)
    return UserError(
        f"{call.name}: {kind.__module__}.{kind.__qualname__} computes softmax maps, but not as standard or "
        f"differential attention with one λ for each head: {reason}; if it is attention, {HOW}"
    )
