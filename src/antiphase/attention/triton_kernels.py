"""The Triton kernels of :mod:`antiphase.attention.triton_attention`: one forward pass, two backward passes.

Every kernel reads a map a tile at a time and never stores one. Scores are kept in units of log 2, so that
``exp2`` is all the exponentials need. Of a tile that reaches past the last query or key, what lies outside
reads as zero and its bias is −∞; offsets are 64 bits wide, since a large batch has more than 2³¹ numbers.

``strides`` holds those of (batch, head, token) for each tensor a kernel walks, in the order of its
arguments; the last dimension is always contiguous. A mask has four, 0 where it is broadcast.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# pyright: reportArgumentType=false
# What runs here are Triton's values, and its own annotations do not cover their indexing.

import triton
import triton.language as tl


@triton.jit
def _place(blocks, heads):
    """Return (block, batch, head) of this program; one grid axis, the only one that may pass 65535."""
    program = tl.program_id(0)
    row = program // blocks
    return program % blocks, (row // heads).to(tl.int64), (row % heads).to(tl.int64)


@triton.jit
def _tile(pointer, strides, batch, head, tokens, limit, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load the tokens of one head: (tokens, PADDED), zeros outside."""
    columns = tl.arange(0, PADDED)[None, :]
    rows = tokens[:, None]
    offsets = batch * strides[0] + head * strides[1] + rows.to(tl.int64) * strides[2] + columns
    return tl.load(pointer + offsets, mask=(rows < limit) & (columns < WIDTH), other=0.0)


@triton.jit
def _put(pointer, values, strides, batch, head, tokens, limit, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Store the tokens of one head, in the precision of the memory."""
    columns = tl.arange(0, PADDED)[None, :]
    rows = tokens[:, None]
    offsets = batch * strides[0] + head * strides[1] + rows.to(tl.int64) * strides[2] + columns
    tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=(rows < limit) & (columns < WIDTH))


@triton.jit
def _bias(mask, strides, batch, head, rows, columns, queries, keys, ADDITIVE: tl.constexpr):
    """Return what is added to the scores of (rows, columns), two arrays that broadcast to the tile.

    In the backward pass over keys the tile is transposed: its queries are then a row, its keys a column.
    """
    # No early return: the compiler would read on, and a mask that is not there has no type.
    if mask is None:
        bias = tl.where(columns < keys, 0.0, float("-inf"))
    else:
        inside = (rows < queries) & (columns < keys)
        offsets = batch * strides[0] + head * strides[1]
        offsets += rows.to(tl.int64) * strides[2] + columns.to(tl.int64) * strides[3]
        if ADDITIVE:
            given = tl.load(mask + offsets, mask=inside, other=float("-inf")).to(tl.float32)
            # The lowest float32 often stands for −∞, but a row of it is a free row, not a dead one: in units
            # of log 2 it would overflow.
            bias = tl.where(given == float("-inf"), given, tl.maximum(given, -2.3e38) * 1.4426950408889634)
        else:
            bias = tl.where(tl.load(mask + offsets, mask=inside, other=0) != 0, 0.0, float("-inf"))
    return bias


@triton.jit
def _scores(left, right, bias, scale):
    return tl.dot(left, tl.trans(right), input_precision="ieee") * (scale * 1.4426950408889634) + bias


@triton.jit
def _look(
    queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys, scale,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ADDITIVE: tl.constexpr,
):  # fmt: skip
    """Return (keys of both maps, scores of both maps) of a tile of queries and keys."""
    bias = _bias(mask, mask_strides, batch, head, rows[:, None], columns[None, :], queries, keys, ADDITIVE)
    keys1 = _tile(k1, strides[1], batch, head, columns, keys, WIDTH, PADDED)
    keys2 = _tile(k2, strides[3], batch, head, columns, keys, WIDTH, PADDED)
    return keys1, keys2, _scores(queries1, keys1, bias, scale), _scores(queries2, keys2, bias, scale)


@triton.jit
def _accumulate(scores, highest, total):
    """Add a tile of scores to the online softmax: (new maximum, new sum of exponentials) of each row."""
    maximum = tl.maximum(highest, tl.max(scores, 1))
    origin = _origin(maximum)
    total = total * tl.exp2(highest - origin) + tl.sum(tl.exp2(scores - origin[:, None]), 1)
    return maximum, total


@triton.jit
def _origin(highest):
    """Return what scores are measured from; a row without an open key has the maximum −∞, and −∞ − (−∞) is NaN."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def _share(total):
    """Return 1 / Σ exp, and 0 for a row without an open key, whose map and derivatives are then all 0."""
    return tl.where(total > 0.0, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)


@triton.jit
def _norms(pointer, plane, inside):
    """Load (origin of map 1, origin of map 2, share of map 1, share of map 2) of some queries.

    Not their logarithm in one number: beside an origin as far out as a mask can push it, log Σ exp is lost.
    """
    origin1 = tl.load(pointer, mask=inside, other=0.0)
    origin2 = tl.load(pointer + plane, mask=inside, other=0.0)
    share1 = tl.load(pointer + 2 * plane, mask=inside, other=0.0)
    share2 = tl.load(pointer + 3 * plane, mask=inside, other=0.0)
    return origin1, origin2, share1, share2


@triton.jit
def forward_kernel(
    q1, k1, q2, k2, v, lam, mask, out, norms, strides, mask_strides, lam_stride, blocks, heads, plane, queries,
    keys, scale, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ADDITIVE: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """One block of queries: the norms of both maps, then (A1 − λ·A2) times the values, a product of one."""
    block, batch, head = _place(blocks, heads)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    queries1 = _tile(q1, strides[0], batch, head, rows, queries, WIDTH, PADDED)
    queries2 = _tile(q2, strides[2], batch, head, rows, queries, WIDTH, PADDED)
    weight = tl.load(lam + head * lam_stride)
    highest1 = tl.full([QUERIES], float("-inf"), tl.float32)
    highest2 = tl.full([QUERIES], float("-inf"), tl.float32)
    total1 = tl.full([QUERIES], 0.0, tl.float32)
    total2 = tl.full([QUERIES], 0.0, tl.float32)
    if WHOLE:  # the scores stay in registers: nothing is computed twice
        columns = tl.arange(0, KEYS)
        _, _, scores1, scores2 = _look(
            queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
            scale, WIDTH, PADDED, ADDITIVE,
        )  # fmt: skip
        highest1, total1 = _accumulate(scores1, highest1, total1)
        highest2, total2 = _accumulate(scores2, highest2, total2)
        origin1, origin2 = _origin(highest1), _origin(highest2)
        share1, share2 = _share(total1), _share(total2)
        maps = tl.exp2(scores1 - origin1[:, None]) * share1[:, None]
        maps -= tl.exp2(scores2 - origin2[:, None]) * (weight * share2)[:, None]
        values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
        result = tl.dot(maps.to(values.dtype), values, input_precision="ieee")
    else:
        for start in range(0, keys, KEYS):
            columns = start + tl.arange(0, KEYS)
            _, _, scores1, scores2 = _look(
                queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
                scale, WIDTH, PADDED, ADDITIVE,
            )  # fmt: skip
            highest1, total1 = _accumulate(scores1, highest1, total1)
            highest2, total2 = _accumulate(scores2, highest2, total2)
        origin1, origin2 = _origin(highest1), _origin(highest2)
        share1, share2 = _share(total1), _share(total2)
        result = tl.full([QUERIES, VALUE_PADDED], 0.0, tl.float32)
        for start in range(0, keys, KEYS):
            columns = start + tl.arange(0, KEYS)
            _, _, scores1, scores2 = _look(
                queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
                scale, WIDTH, PADDED, ADDITIVE,
            )  # fmt: skip
            maps = tl.exp2(scores1 - origin1[:, None]) * share1[:, None]
            maps -= tl.exp2(scores2 - origin2[:, None]) * (weight * share2)[:, None]
            values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
            result = tl.dot(maps.to(values.dtype), values, result, input_precision="ieee")
    _put(out, result, strides[5], batch, head, rows, queries, VALUE_WIDTH, VALUE_PADDED)
    place = norms + (batch * heads + head) * queries + rows
    tl.store(place, origin1, mask=rows < queries)
    tl.store(place + plane, origin2, mask=rows < queries)
    tl.store(place + 2 * plane, share1, mask=rows < queries)
    tl.store(place + 3 * plane, share2, mask=rows < queries)


@triton.jit
def query_gradient_kernel(
    q1, k1, q2, k2, v, lam, mask, grad, dq1, dq2, norms, delta, strides, mask_strides, lam_stride, blocks,
    heads, plane, queries, keys, scale, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ADDITIVE: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """One block of queries: δ_b = Σ_j A_b∘G with G = grad·vᵀ, then the gradients of both queries.

    dS1 = A1∘(G − δ1) and dS2 = −λ·A2∘(G − δ2); the loss moves with λ by −Σ δ2.
    """
    block, batch, head = _place(blocks, heads)
    rows = block * QUERIES + tl.arange(0, QUERIES)
    queries1 = _tile(q1, strides[0], batch, head, rows, queries, WIDTH, PADDED)
    queries2 = _tile(q2, strides[2], batch, head, rows, queries, WIDTH, PADDED)
    grads = _tile(grad, strides[5], batch, head, rows, queries, VALUE_WIDTH, VALUE_PADDED)
    weight = tl.load(lam + head * lam_stride)
    place = (batch * heads + head) * queries + rows
    origin1, origin2, share1, share2 = _norms(norms + place, plane, rows < queries)
    if WHOLE:
        columns = tl.arange(0, KEYS)
        keys1, keys2, scores1, scores2 = _look(
            queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
            scale, WIDTH, PADDED, ADDITIVE,
        )  # fmt: skip
        values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
        pull = tl.dot(grads, tl.trans(values), input_precision="ieee")
        map1 = tl.exp2(scores1 - origin1[:, None]) * share1[:, None]
        map2 = tl.exp2(scores2 - origin2[:, None]) * share2[:, None]
        delta1, delta2 = tl.sum(map1 * pull, 1), tl.sum(map2 * pull, 1)
        pull1 = (map1 * (pull - delta1[:, None])).to(keys1.dtype)
        pull2 = (map2 * (pull - delta2[:, None])).to(keys2.dtype)
        result1 = tl.dot(pull1, keys1, input_precision="ieee")
        result2 = tl.dot(pull2, keys2, input_precision="ieee")
    else:
        delta1 = tl.full([QUERIES], 0.0, tl.float32)
        delta2 = tl.full([QUERIES], 0.0, tl.float32)
        for start in range(0, keys, KEYS):
            columns = start + tl.arange(0, KEYS)
            _, _, scores1, scores2 = _look(
                queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
                scale, WIDTH, PADDED, ADDITIVE,
            )  # fmt: skip
            values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
            pull = tl.dot(grads, tl.trans(values), input_precision="ieee")
            map1 = tl.exp2(scores1 - origin1[:, None]) * share1[:, None]
            delta1 += tl.sum(map1 * pull, 1)
            map2 = tl.exp2(scores2 - origin2[:, None]) * share2[:, None]
            delta2 += tl.sum(map2 * pull, 1)
        result1 = tl.full([QUERIES, PADDED], 0.0, tl.float32)
        result2 = tl.full([QUERIES, PADDED], 0.0, tl.float32)
        for start in range(0, keys, KEYS):
            columns = start + tl.arange(0, KEYS)
            keys1, keys2, scores1, scores2 = _look(
                queries1, queries2, k1, k2, mask, strides, mask_strides, batch, head, rows, columns, queries, keys,
                scale, WIDTH, PADDED, ADDITIVE,
            )  # fmt: skip
            values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
            pull = tl.dot(grads, tl.trans(values), input_precision="ieee")
            map1 = tl.exp2(scores1 - origin1[:, None]) * share1[:, None]
            result1 = tl.dot(
                (map1 * (pull - delta1[:, None])).to(keys1.dtype), keys1, result1, input_precision="ieee"
            )
            map2 = tl.exp2(scores2 - origin2[:, None]) * share2[:, None]
            result2 = tl.dot(
                (map2 * (pull - delta2[:, None])).to(keys2.dtype), keys2, result2, input_precision="ieee"
            )
    _put(dq1, result1 * scale, strides[6], batch, head, rows, queries, WIDTH, PADDED)
    _put(dq2, result2 * (-weight * scale), strides[7], batch, head, rows, queries, WIDTH, PADDED)
    tl.store(delta + place, delta1, mask=rows < queries)
    tl.store(delta + place + plane, delta2, mask=rows < queries)


@triton.jit
def key_gradient_kernel(
    q1, k1, q2, k2, v, lam, mask, grad, dk1, dk2, dv, norms, delta, strides, mask_strides, lam_stride, blocks,
    heads, plane, queries, keys, scale, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, ADDITIVE: tl.constexpr,
):  # fmt: skip
    """One block of keys: the gradients of both keys and the values, a sum over all queries in order.

    The maps are formed transposed (keys by queries), as the left factors of all three products. A block of
    keys belongs to one program: no two programs add to one number, so that the sum is the same every time.
    """
    block, batch, head = _place(blocks, heads)
    columns = block * KEYS + tl.arange(0, KEYS)
    keys1 = _tile(k1, strides[1], batch, head, columns, keys, WIDTH, PADDED)
    keys2 = _tile(k2, strides[3], batch, head, columns, keys, WIDTH, PADDED)
    values = _tile(v, strides[4], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
    weight = tl.load(lam + head * lam_stride)
    result1 = tl.full([KEYS, PADDED], 0.0, tl.float32)
    result2 = tl.full([KEYS, PADDED], 0.0, tl.float32)
    result = tl.full([KEYS, VALUE_PADDED], 0.0, tl.float32)
    for start in range(0, queries, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        place = (batch * heads + head) * queries + rows
        inside = rows < queries
        origin1, origin2, share1, share2 = _norms(norms + place, plane, inside)
        delta1 = tl.load(delta + place, mask=inside, other=0.0)
        delta2 = tl.load(delta + place + plane, mask=inside, other=0.0)
        bias = _bias(
            mask, mask_strides, batch, head, rows[None, :], columns[:, None], queries, keys, ADDITIVE
        )
        queries1 = _tile(q1, strides[0], batch, head, rows, queries, WIDTH, PADDED)
        queries2 = _tile(q2, strides[2], batch, head, rows, queries, WIDTH, PADDED)
        grads = _tile(grad, strides[5], batch, head, rows, queries, VALUE_WIDTH, VALUE_PADDED)
        pull = tl.dot(values, tl.trans(grads), input_precision="ieee")
        map1 = tl.exp2(_scores(keys1, queries1, bias, scale) - origin1[None, :]) * share1[None, :]
        result1 = tl.dot(
            (map1 * (pull - delta1[None, :])).to(queries1.dtype), queries1, result1, input_precision="ieee"
        )
        map2 = tl.exp2(_scores(keys2, queries2, bias, scale) - origin2[None, :]) * share2[None, :]
        result2 = tl.dot(
            (map2 * (pull - delta2[None, :])).to(queries2.dtype), queries2, result2, input_precision="ieee"
        )
        maps = (map1 - weight * map2).to(grads.dtype)
        result = tl.dot(maps, grads, result, input_precision="ieee")
    _put(dk1, result1 * scale, strides[6], batch, head, columns, keys, WIDTH, PADDED)
    _put(dk2, result2 * (-weight * scale), strides[7], batch, head, columns, keys, WIDTH, PADDED)
    _put(dv, result, strides[8], batch, head, columns, keys, VALUE_WIDTH, VALUE_PADDED)
