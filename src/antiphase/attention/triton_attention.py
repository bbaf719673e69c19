"""Differential attention in Triton: both maps are subtracted in registers, and no map is ever stored.

Two fused calls of attention, one for each map, multiply the values twice. Subtracting first leaves one
product with the values: where all keys fit a tile, both maps of width d with values of width 2d cost what
standard attention of width 2d does. Where they do not, the scores are formed twice, which is half as much
again. The memory is that of the inputs and four numbers for each query.

Triton, which torch brings along only with CUDA, is imported when the function is first called.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.attention.maps import combine, softmax_maps

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST, WIDEST_VALUE = 128, 256  # what a tile holds in registers and shared memory


class Blocks(NamedTuple):
    """How a pass is cut up: queries and keys of a tile (powers of 2, at least 16), warps, pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# By the bytes of a number, then those of a query or key at most. Without tensor cores (float32) the sums of
# a product fill the registers sooner.
BLOCKS = {
    2: {64: Blocks(64, 64, 4, 2), 128: Blocks(64, 64, 8, 2), 256: Blocks(32, 32, 8, 2)},
    4: {128: Blocks(32, 32, 4, 2), 256: Blocks(16, 32, 4, 2), 512: Blocks(16, 16, 8, 2)},
}


def triton_differential_attention(
    q1: Float[Tensor, "batch heads queries width"],
    k1: Float[Tensor, "batch heads keys width"],
    q2: Float[Tensor, "batch heads queries width"],
    k2: Float[Tensor, "batch heads keys width"],
    v: Float[Tensor, "batch heads keys value_width"],
    lam: float | Float[Tensor, "..."],
    mask: Tensor | None = None,
    *,
    _tile: tuple[int, int] | None = None,
) -> Float[Tensor, "batch heads queries value_width"]:
    """Return (softmax(q1 k1ᵀ/√width) − λ·softmax(q2 k2ᵀ/√width)) v from one fused kernel.

    Scores, exponentials and sums are float32 whatever the inputs are. The gradient is fused and sums in a
    fixed order, so that it is the same every time; asked for with ``create_graph=True`` it is the eager
    one, which has derivatives of its own. Neither forward mode nor torch.func passes through.

    T. Dao, *FlashAttention-2* (2024), Section 3, has the online sums and the recomputation. As in
    ``differential_attention``, a query that may attend to nothing gets zeros, with zero gradients.

    Args:
        q1: queries of the positive map; all five of one dtype, float32, bfloat16 or float16, with a
            width of 1 to 128 and strides of any kind.
        k1: keys of the positive map.
        q2: queries of the negative map.
        k2: keys of the negative map.
        v: values, of a width of 1 to 256.
        lam: λ, one number or one for each head: shape ``()`` or ``(heads,)``, of any floating dtype.
        mask: broadcastable to ``(batch, heads, queries, keys)``; boolean (True: may be attended to) or
            added to the scores, without a gradient. It is read in place, never expanded.
        _tile: queries and keys of a tile, for tests.

    Raises:
        ImportError: without Triton.
        ValueError: for dtypes, widths, shapes, devices or masks that the kernel does not take.
    """
    _check(q1, k1, q2, k2, v, lam, mask)
    return _Fused.apply(q1, k1, q2, k2, v, lam, mask, _tile)  # pyright: ignore[reportReturnType]


def choose_blocks(width: int, value_width: int, itemsize: int, keys: int, *, over_keys: bool) -> Blocks:
    """Return how to cut up a pass: a pure function, since timing candidates would make runs differ.

    Nobody has timed these: no GPU was at hand. Compiled for compute capabilities 8.0 and 9.0, all leave the
    99 KB of shared memory of the smaller cards enough, and spill few registers or none.

    Args:
        width: of queries and keys.
        value_width: of the values.
        itemsize: bytes of one number of the inputs.
        keys: how many there are. Those that fit a longer tile are taken at once: nothing is computed twice.
        over_keys: whether the pass loops over queries for one block of keys.
    """
    row = max(_padded(width), _padded(value_width) // 2) * itemsize  # bytes of one query or key
    if itemsize == 2 and row <= 128 and keys <= 2 * max(row, 64) and not over_keys:
        return Blocks(32, _padded(keys), 8 if keys > 128 else 4, 2)
    return next(blocks for limit, blocks in BLOCKS[itemsize].items() if row <= limit)


def _padded(size: int) -> int:
    """Return the power of 2 that holds ``size``, 16 or more: Triton multiplies nothing smaller."""
    return max(16, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class _Launch:
    """The arguments that all three kernels share, and how they are cut up."""

    inputs: tuple[Tensor, ...]
    lam: Tensor
    mask: Tensor | None
    tile: tuple[int, int] | None

    def __call__(self, kernel: Any, results: tuple[Tensor, ...], rows: tuple[Tensor, ...]) -> None:
        """Run a kernel that reads and writes ``results`` (batch, heads, tokens, width) and ``rows``."""
        q1, k1, v = self.inputs[0], self.inputs[1], self.inputs[4]
        (batch, heads, queries, width), keys, value_width = q1.shape, k1.shape[2], v.shape[3]
        over_keys = kernel is _kernels().key_gradient_kernel
        blocks = choose_blocks(width, value_width, q1.element_size(), keys, over_keys=over_keys)
        if self.tile is not None:
            blocks = blocks._replace(queries=self.tile[0], keys=self.tile[1])
        count = -(-keys // blocks.keys) if over_keys else -(-queries // blocks.queries)
        if count * batch * heads == 0:
            return
        options = {} if over_keys else {"WHOLE": keys <= blocks.keys}
        mask_strides = (0, 0, 0, 0) if self.mask is None else self.mask.stride()
        # Triton launches on the current device, whatever its tensors are on.
        with torch.cuda.device_of(q1):
            kernel[(count * batch * heads,)](
                *self.inputs,
                self.lam,
                self.mask,
                *results,
                *rows,
                tuple(tensor.stride()[:3] for tensor in (*self.inputs, *results)),
                mask_strides,
                self.lam.stride(0),
                count,
                heads,
                batch * heads * queries,
                queries,
                keys,
                width**-0.5,
                width,
                value_width,
                _padded(width),
                _padded(value_width),
                blocks.queries,
                blocks.keys,
                self.mask is not None and self.mask.dtype != torch.uint8,
                **options,
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )


class _Fused(torch.autograd.Function):
    """Keeps the inputs and the norms of both maps' rows; the gradient computes the rest again."""

    @staticmethod
    def forward(
        ctx: Any,
        q1: Tensor,
        k1: Tensor,
        q2: Tensor,
        k2: Tensor,
        v: Tensor,
        lam: float | Tensor,
        mask: Tensor | None,
        tile: tuple[int, int] | None,
    ) -> Tensor:
        launch = _launch((q1, k1, q2, k2, v), lam, mask, tile)
        readable = launch.inputs[4]
        out = readable.new_empty(*q1.shape[:3], v.shape[3])
        norms = out.new_empty(4, *q1.shape[:3], dtype=torch.float32)
        launch(_kernels().forward_kernel, (out,), (norms,))
        ctx.save_for_backward(q1, k1, q2, k2, v, mask, norms, lam if isinstance(lam, Tensor) else None)
        ctx.lam, ctx.tile = None if isinstance(lam, Tensor) else lam, tile
        return out.to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, mask, norms, kept = ctx.saved_tensors
        (grad,), lam = grads, ctx.lam if kept is None else kept
        if torch.is_grad_enabled():  # create_graph: the kernel's gradient has no gradient, eager's has
            return *_eager_gradients(ctx.needs_input_grad[:6], (*inputs, lam), mask, grad), None, None
        launch = _launch(tuple(inputs), lam, mask, ctx.tile)
        readable = [tensor.new_empty(tensor.shape) for tensor in launch.inputs]
        deltas = norms.new_empty(2, *norms.shape[1:])
        upstream = _readable(grad).to(launch.inputs[4].dtype)
        launch(_kernels().query_gradient_kernel, (upstream, readable[0], readable[2]), (norms, deltas))
        launch(_kernels().key_gradient_kernel, (upstream, *readable[1::2], readable[4]), (norms, deltas))
        to_lam = None
        if ctx.needs_input_grad[5]:
            to_lam = -(deltas[1].sum((0, 2)) if lam.ndim else deltas[1].sum()).to(lam)
        return *(g.to(x.dtype) for g, x in zip(readable, inputs, strict=True)), to_lam, None, None


def _eager_gradients(
    needed: tuple[bool, ...], inputs: tuple[Any, ...], mask: Tensor | None, grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the eager path, with a graph of their own."""
    # Views, so that an input that comes from another one (or is it) does not count the other's share too.
    views = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
    q1, k1, q2, k2, v, lam = views
    maps = combine(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), lam)
    out = maps.to(v.dtype) @ v
    chosen = [view for view, wanted in zip(views, needed, strict=True) if wanted]
    found = iter(torch.autograd.grad(out, chosen, grad, create_graph=True))
    return [next(found) if wanted else None for wanted in needed]


def _launch(
    inputs: tuple[Tensor, ...], lam: float | Tensor, mask: Tensor | None, tile: tuple[int, int] | None
) -> _Launch:
    q1, k1 = inputs[:2]
    # Triton's interpreter has no bfloat16: there the rounding is that of the inputs and the results.
    dtype = torch.float32 if q1.dtype == torch.bfloat16 and _interpreted() else q1.dtype
    if isinstance(lam, Tensor):
        lam = lam.detach().to(q1.device, torch.float32)
    else:
        lam = torch.full((), lam, device=q1.device, dtype=torch.float32)  # filled there: nothing waits
    if mask is not None:
        once = mask[tuple(slice(1) if stride == 0 else slice(None) for stride in mask.stride())]
        # Rounded as eager rounds it: what float32 can hold may be −∞ in float16, and the row dead.
        once = once.view(torch.uint8) if mask.dtype == torch.bool else once.to(q1.dtype).to(dtype)
        mask = once.expand(*q1.shape[:3], k1.shape[2])
    inputs = tuple(_readable(x.detach()).to(dtype) for x in inputs)
    return _Launch(inputs, lam.expand(q1.shape[1]), mask, tile)


def _readable(tensor: Tensor) -> Tensor:
    """Return the tensor with neighbours in memory along its last dimension."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _kernels() -> Any:
    try:
        import antiphase.attention.triton_kernels as kernels
    except ImportError as error:
        raise ImportError("backend 'triton' needs Triton (pip install triton): take 'eager'") from error
    return kernels


def _interpreted() -> bool:
    from triton.runtime import JITFunction

    return not isinstance(_kernels().forward_kernel, JITFunction)


def _check(
    q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: float | Tensor, mask: Tensor | None
) -> None:
    inputs = (q1, k1, q2, k2, v)
    if any(x.dtype != q1.dtype for x in inputs) or q1.dtype not in DTYPES:
        found = ", ".join(str(x.dtype).removeprefix("torch.") for x in inputs)
        raise ValueError(
            f"backend 'triton' takes q1, k1, q2, k2, v of one dtype, float32, bfloat16 or float16, not {found}: "
            "backend 'eager' takes others"
        )
    shapes = [tuple(x.shape) for x in inputs]
    if any(len(shape) != 4 for shape in shapes) or not (
        shapes[0] == shapes[2]
        and shapes[1] == shapes[3]
        and shapes[0][:2] == shapes[1][:2]
        and shapes[0][3] == shapes[1][3]
        and shapes[1][:3] == shapes[4][:3]
    ):
        raise ValueError(
            f"q1, k1, q2, k2, v of shapes {', '.join(map(str, shapes))}: expected (batch, heads, tokens, width), "
            "q1 like q2 and k1 like k2, and a value for each key"
        )
    if not (1 <= q1.shape[3] <= WIDEST and 1 <= v.shape[3] <= WIDEST_VALUE):
        raise ValueError(
            f"heads of width {q1.shape[3]} with values of width {v.shape[3]}: backend 'triton' takes 1 to {WIDEST} "
            f"and 1 to {WIDEST_VALUE}; backend 'eager' takes others"
        )
    if isinstance(lam, Tensor) and not (lam.is_floating_point() and lam.shape in ((), (q1.shape[1],))):
        raise ValueError(
            f"lam of shape {tuple(lam.shape)} and {lam.dtype}: expected floating numbers, () or one for each "
            f"of {q1.shape[1]} heads"
        )
    if mask is not None:
        _check_mask(mask, (*q1.shape[:3], k1.shape[2]))
    if any(x.device != q1.device for x in inputs) or (mask is not None and mask.device != q1.device):
        raise ValueError("q1, k1, q2, k2, v and mask lie on several devices: backend 'triton' needs one")
    if not (q1.is_cuda or _interpreted()):
        raise ValueError(
            f"backend 'triton' runs on a GPU, and the tensors are on {q1.device}: take backend 'eager', or start "
            "Python with TRITON_INTERPRET=1 to run the kernel slowly on the CPU"
        )


def _check_mask(mask: Tensor, maps: tuple[int, ...]) -> None:
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            f"mask of {mask.dtype}: expected boolean (True: may be attended to) or floating numbers"
        )
    if mask.requires_grad:
        raise ValueError("backend 'triton' gives a mask no gradient: detach it, or take backend 'eager'")
    sizes = zip(reversed(mask.shape), reversed(maps), strict=False)
    if mask.ndim > 4 or any(own not in (1, size) for own, size in sizes):
        raise ValueError(f"mask of shape {tuple(mask.shape)}: expected one that broadcasts to {maps}")
