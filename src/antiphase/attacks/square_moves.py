"""Proposals of Square: sizes and positions of its windows, initial images, and proposals for many queries at once.

A proposal depends only on the row's image, its key and the number of the query. All arithmetic is elementwise or in
integers, so that a row is bitwise independent of the rest of its batch.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from antiphase.attacks.engine.rows import per_row
from antiphase.attacks.threat import Norm
from antiphase.streams import sample_keys, uniform

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # iterations of 10,000 after which p is halved
_TILES = 5  # tiles per side of the initial l2 change
_FIXED = 2.0**60  # units of the fixed-point sums, which are at most 4: 2⁶² fits in an int64
_LEAST_UNIT = 1e-6  # a smaller ε is below the rounding error of a pixel


@dataclass(frozen=True)
class Windows:
    """The windows of each level l, which cover a share p_init / 2^l of the image.

    Attributes:
        height, width: size in pixels at each level.
        after: last iteration of each level except the final one.
        bumps: the l2 change of a window, split along its rows and along its columns, padded with zeros.
    """

    height: Int64[Tensor, " levels"]
    width: Int64[Tensor, " levels"]
    after: Int64[Tensor, " halvings"]
    bumps: Float[Tensor, "levels 2 tallest widest"]


def windows(
    p_init: float,
    queries: int,
    rescale: bool,
    norm: Norm,
    clean: Float[Tensor, "batch channels height width"],
) -> Windows:
    """Return the windows for images like ``clean``, with their device and dtype."""
    height, width = clean.shape[2:]
    sizes = [
        window_size(p_init / 2**level, height, width, 1 if norm == "linf" else 3)
        for level in range(len(_HALVINGS) + 1)
    ]
    # iteration i belongs to a later level once ⌊i·10,000 / queries⌋ > b, which is i > ⌈(b + 1)·queries / 10,000⌉ − 1
    after = [-(-(b + 1) * queries // 10_000) - 1 for b in _HALVINGS] if rescale else list(_HALVINGS)
    bumps = torch.zeros(0)
    if norm == "l2":
        bumps = torch.zeros(
            len(sizes), 2, max(h for h, _ in sizes), max(w for _, w in sizes), dtype=torch.float64
        )
        for level, (h, w) in enumerate(sizes):
            bumps[level, 0, :h, :w] = bump(h, w)
            bumps[level, 1, :h, :w] = bump(w, h).T
    return Windows(
        torch.tensor([h for h, _ in sizes], device=clean.device),
        torch.tensor([w for _, w in sizes], device=clean.device),
        torch.tensor(after, device=clean.device),
        bumps.to(clean),
    )


def window_size(share: float, height: int, width: int, least: int) -> tuple[int, int]:
    """Return height and width of the window that covers a share of the image: a square if it fits.

    Otherwise it is a rectangle as wide as the shorter side of the image. Sides are odd if ``least`` is at least 3.

    >>> window_size(0.8, 28, 28, 1), window_size(0.8, 28, 28, 3), window_size(0.8, 40, 10, 1)
    ((25, 25), (25, 25), (32, 10))
    """
    side = max(round(math.sqrt(share * height * width)), least)
    if least > 1 and side % 2 == 0:
        side += 1
    short = min(height, width)
    if side > short:
        side = max(side, round(share * height * width / short))
    return min(side, height), min(side, width)


def bump(height: int, width: int) -> Float64[Tensor, "height width"]:
    """Return a change of length 1: a pyramid in the upper half and its negative in the lower.

    At distance d = max(|i − ⌊h/2⌋|, |j − ⌊w/2⌋|) from the centre of an h × w half, the pyramid is
    Σ_{m=d}^{n} 1/(m + 1)² with n = max(⌊h/2⌋, ⌊w/2⌋), normalised to length 1. A single row has only the lower half.
    """
    halves = [_pyramid(height // 2, width), -_pyramid(height - height // 2, width)]
    whole = torch.cat(halves)
    return whole / whole.square().sum().sqrt()


def _pyramid(height: int, width: int) -> Float64[Tensor, "height width"]:
    down = (torch.arange(height) - height // 2).abs()
    right = (torch.arange(width) - width // 2).abs()
    steps = torch.arange(1, max(height // 2, width // 2) + 2, dtype=torch.float64)
    levels = (1.0 / steps.square()).flip(0).cumsum(0).flip(0)
    values = levels[torch.maximum(down[:, None], right[None, :])]
    return values / values.square().sum().sqrt().clamp_min(1e-12)


def first_linf(
    low: Float[Tensor, "batch channels height width"],
    high: Float[Tensor, "batch channels height width"],
    keys: Int64[Tensor, " batch"],
) -> Float[Tensor, "batch channels height width"]:
    """Return vertical stripes one pixel wide: each column of each channel at its lowest or highest allowed values."""
    channels, _, width = low.shape[1:]
    up = _coins(_of_its_own(keys), channels * width).view(-1, channels, 1, width)
    return torch.where(up, high, low)


def first_l2(
    clean: Float[Tensor, "batch channels height width"],
    eps: Float[Tensor, " batch"],
    keys: Int64[Tensor, " batch"],
    bounds: tuple[float, float],
) -> Float[Tensor, "batch channels height width"]:
    """Return a grid of 5 × 5 bumps of random direction and of random sign in each channel, of total length ε."""
    batch, channels, height, width = clean.shape
    (rows, tall, top), (columns, wide, left) = _tiling(height), _tiling(width)
    tiles = rows * columns
    draws = _coins(_of_its_own(keys), (1 + channels) * tiles).view(batch, 1 + channels, rows, columns)
    across, up = draws[:, :1], draws[:, 1:]
    covered = (slice(None), slice(None), slice(top, top + rows * tall), slice(left, left + columns * wide))

    def pixels(of_tile: Tensor) -> Tensor:
        return of_tile.repeat_interleave(tall, 2).repeat_interleave(wide, 3)

    split_rows, split_columns = (
        shape.to(clean).repeat(rows, columns) for shape in (bump(tall, wide), bump(wide, tall).T)
    )
    change = torch.where(pixels(across), split_columns, split_rows)
    change = torch.where(pixels(up), change, -change) / math.sqrt(channels * tiles)  # a bump has length 1
    x = clean.clone()
    x[covered] = (clean[covered] + per_row(eps, clean) * change).clamp(*bounds)
    return x


def propose_linf(
    x: Float[Tensor, "batch channels height width"],
    low: Float[Tensor, "batch channels height width"],
    high: Float[Tensor, "batch channels height width"],
    keys: Int64[Tensor, " batch"],
    t: Int64[Tensor, "batch ahead"],
    at: Windows,
) -> Float[Tensor, "batch ahead channels height width"]:
    """Return ``x`` with one window of each channel at its lowest or highest allowed values, for each query ``t``."""
    channels, height, width = x.shape[1:]
    _, tall, wide, draws = _draw(keys, t, 2 + channels, at)
    top, left = _place(draws[..., 0], height, tall), _place(draws[..., 1], width, wide)
    mask = _span(height, top, tall)[..., None] & _span(width, left, wide)[..., None, :]
    up = (draws[..., 2:] < 0.5)[..., None, None]
    return torch.where(mask[:, :, None], torch.where(up, high[:, None], low[:, None]), x[:, None])


def propose_l2(
    x: Float[Tensor, "batch channels height width"],
    clean: Float[Tensor, "batch channels height width"],
    eps: Float[Tensor, " batch"],
    keys: Int64[Tensor, " batch"],
    t: Int64[Tensor, "batch ahead"],
    at: Windows,
    bounds: tuple[float, float],
) -> Float[Tensor, "batch ahead channels height width"]:
    """Return ``x`` with the change of window V moved to window W, for each query ``t``.

    With ν = x − clean, in each channel: ν_W ← a·d/‖d‖ with d = ν_W/‖ν_W‖ ± bump, and ν_V ← 0 elsewhere. The
    length a keeps the norm of both windows and adds an equal share of the unused budget:
    a² = ‖ν_{V∪W}‖² + (ε² − ‖ν‖²)/channels.
    """
    batch, channels, height, width = x.shape
    ahead = t.shape[1]
    level, tall, wide, draws = _draw(keys, t, 5 + channels, at)
    top, left = _place(draws[..., 0], height, tall), _place(draws[..., 1], width, wide)
    top_v, left_v = _place(draws[..., 2], height, tall), _place(draws[..., 3], width, wide)
    across, up = (draws[..., 4] < 0.5).long(), (draws[..., 5:] < 0.5)[..., None]

    # Windows are read and written as lists of pixels of equal length: smaller ones repeat
    # their last row and column, which writes a pixel twice with the same value, and must not count twice.
    row, column, once = _inside(tall, wide)
    i, j = top[..., None] + row, left[..., None] + column
    i_v, j_v = top_v[..., None] + row, left_v[..., None] + column
    in_w, in_v = ((a * width + b)[:, :, None].expand(-1, -1, channels, -1) for a, b in ((i, j), (i_v, j_v)))
    shared = (i_v >= top[..., None]) & (i_v < (top + tall)[..., None])
    shared &= (j_v >= left[..., None]) & (j_v < (left + wide)[..., None])

    unit = per_row(eps.clamp_min(_LEAST_UNIT), x)  # of changes, in which ε is nearly always 1
    change = (x - clean) / unit
    allowed = (per_row(eps, x) / unit).square().double()
    unused = (allowed - per_row(_energy(change.flatten(1)), x)).clamp_min(0.0) / channels
    spread = change.flatten(2)[:, None].expand(-1, ahead, -1, -1)
    now = spread.gather(3, in_w)
    energy = _energy(now * once[:, :, None])[..., None]
    moved = _energy(spread.gather(3, in_v) * (once & ~shared)[:, :, None])[..., None]

    shape = at.bumps[level[..., None], across[..., None], row, column][:, :, None]
    shape = torch.where(up, shape, -shape)
    # below 1e-6 of ε a change or a sum that cancels has no meaningful direction
    d = shape + torch.where(energy > 1e-12, now / energy.sqrt().clamp_min(1e-6).to(x.dtype), 0.0)
    length = _energy(d * once[:, :, None])[..., None].sqrt()
    d = torch.where(length > 1e-3, d / length.clamp_min(1e-3).to(x.dtype), shape)
    new = d * (energy + moved + unused).sqrt().to(x.dtype)

    spread = clean.flatten(2)[:, None].expand(-1, ahead, -1, -1)
    new = (spread.gather(3, in_w) + unit * new).clamp(*bounds)
    proposal = x.flatten(2)[:, None].repeat(1, ahead, 1, 1)
    proposal.scatter_(3, in_v, spread.gather(3, in_v)).scatter_(3, in_w, new)
    return proposal.view(batch, ahead, channels, height, width)


def _draw(
    keys: Int64[Tensor, " batch"], t: Int64[Tensor, "batch ahead"], count: int, at: Windows
) -> tuple[
    Int64[Tensor, "batch ahead"],
    Int64[Tensor, "batch ahead"],
    Int64[Tensor, "batch ahead"],
    Float[Tensor, "batch ahead count"],
]:
    """Return each query's level, its window's height and width, and ``count`` numbers in [0, 1)."""
    draws = uniform(keys.repeat_interleave(t.shape[1]), count, (t * count).flatten())
    level = torch.bucketize(t - 1, at.after)  # iterations are counted from the first proposal
    return level, at.height[level], at.width[level], draws.view(*t.shape, count)


def _place(
    draw: Float[Tensor, "*shape"], length: int, size: Int64[Tensor, "*shape"]
) -> Int64[Tensor, "*shape"]:
    """Return the first pixel of a window, uniform over all positions at which it fits."""
    return (draw * (length - size + 1)).long()


def _span(
    length: int, first: Int64[Tensor, "*shape"], size: Int64[Tensor, "*shape"]
) -> Bool[Tensor, "*shape length"]:
    """Return whether each pixel along an axis lies in a window."""
    pixel = torch.arange(length, device=first.device)
    return (pixel >= first[..., None]) & (pixel < (first + size)[..., None])


def _inside(
    tall: Int64[Tensor, "batch ahead"], wide: Int64[Tensor, "batch ahead"]
) -> tuple[
    Int64[Tensor, "batch ahead pixels"],
    Int64[Tensor, "batch ahead pixels"],
    Bool[Tensor, "batch ahead pixels"],
]:
    """List the pixels of each window by row and column from its corner, and whether each occurs for the first time."""
    tallest, widest = torch.stack([tall.amax(), wide.amax()]).tolist()
    pixel = torch.arange(tallest * widest, device=tall.device)
    row, column = pixel // widest, pixel % widest
    once = (row < tall[..., None]) & (column < wide[..., None])
    return torch.minimum(row, tall[..., None] - 1), torch.minimum(column, wide[..., None] - 1), once


def _energy(values: Float[Tensor, "*shape pixels"]) -> Float64[Tensor, "*shape"]:
    """Return the sum of squares, in fixed point: the order in which torch adds depends on the batch."""
    return (values * values * _FIXED).long().sum(-1).double() / _FIXED


def _tiling(length: int) -> tuple[int, int, int]:
    """Return number, size and first pixel of the tiles along an axis."""
    count = min(_TILES, length)
    size = length // count
    return count, size, (length - count * size) // 2


def _of_its_own(keys: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
    """Return separate keys for the initial image, which draws more numbers than a query."""
    return sample_keys(keys, torch.zeros_like(keys))


def _coins(keys: Int64[Tensor, " batch"], count: int) -> Bool[Tensor, "batch count"]:
    return uniform(keys, count) < 0.5
