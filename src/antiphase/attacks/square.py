"""Square: black-box random search over windows of the image."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from antiphase import arguments, streams
from antiphase.attacks import objectives
from antiphase.attacks.catalogue import AttackSpec, Settings
from antiphase.attacks.engine.oracle import PIXELS, QUANTUM, Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Labels, Rows, RunOptions, expected
from antiphase.attacks.objectives import Objective, TargetedObjective
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Keys, Norm, Numbers, Threat, per_row, project

# When few rows are left, the batch is filled to this many images with later queries of each row, see _Square.step; 32
# images were fastest on a CPU (dev/attack-engine.md)
_FILL = {"cpu": 2 * QUANTUM}
_FILL_ELSEWHERE = 64
AUTOATTACK_QUERIES = 5_000
_MOST_AHEAD = 16  # queries of one row: most of those further ahead are discarded
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # iterations of 10,000 after which p is halved
_TILES = 5  # tiles per side of the initial l2 change
_FIXED = 2.0**60  # units of the fixed-point sums, which are at most 4: 2⁶² fits in an int64
_LEAST_UNIT = 1e-6  # a smaller ε is below the rounding error of a pixel

Images = Float[Tensor, "batch channels height width"]
Proposals = Float[Tensor, "batch ahead channels height width"]
Queries = Int64[Tensor, "batch ahead"]  # numbers of queries
Flags = Bool[Tensor, "batch ahead"]  # of queries
Counts = Int64[Tensor, " batch"]


@arguments.validated
def square(
    model: Classifier,
    images: Float[Tensor, "samples channels height width"],
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    queries: arguments.Count = AUTOATTACK_QUERIES,
    p_init: arguments.Share = 0.8,
    restarts: arguments.Count = 1,
    targets: arguments.Count | None = None,
    objective: str | Objective | TargetedObjective = "margin",
    rescale_schedule: bool | None = None,
    eot: arguments.Count = 1,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Change random windows of the image one by one, and keep each change that raises the loss.

    Query 0 is an initial image x₀, each query t > 0 a proposal x̂ that replaces x if its loss is higher:

    - linf: x₀ has vertical stripes one pixel wide at clean ± ε; x̂ is x with a random window set to clean ± ε, with a
      random sign per channel;
    - l1: as l2, with sums of absolute values for lengths, steeper bumps, and the projection onto the ball of length ε
      and the bounds in place of clipping;
    - l2: x₀ is clean plus a grid of 5 × 5 bumps of total length ε; x̂ moves the change from one random window to
      another, adds a bump there, and has length ε before clipping.

    Windows are squares that cover a share p of the image: p_init at first, halved after iterations 10, 50,
    200, 500, 1000, 2000, 4000, 6000 and 8000, with an odd side of at least 3 pixels for l2; in an image too narrow for
    the square, rectangles of the same area. The search stops at the first query that changes the prediction, otherwise
    the image of highest loss is kept. It takes at most ``queries`` forward passes and one to confirm, no gradients, and
    searches in float32 whatever the precision (dev/low-precision.md).

    Source: M. Andriushchenko, F. Croce, N. Flammarion, M. Hein, *Square Attack: a Query-Efficient Black-Box
    Adversarial Attack via Random Search*, ECCV 2020, Algorithms 1 to 3; the defaults are AutoAttack's, whose code draws
    windows once per batch, omits the last position, and in l2 pools the channels.

    Args:
        queries: largest number of queries, at least 1.
        p_init: share of the image covered by the first windows, in (0, 1].
        objective: loss to maximise, as in :func:`apgd`, whose are ``restarts``, ``targets`` (a number) and ``eot`` too.
        rescale_schedule: scale the halvings, given for 10,000 queries, to ``queries``, so that windows become small.
            None does so for fewer than 5,000 queries, AutoAttack's number. :func:`autoattack` never does so.
    """
    threat.require("Square", "linf", "l2", "l1")
    rescaled = queries < AUTOATTACK_QUERIES if rescale_schedule is None else rescale_schedule
    run["precision"] = "float32"
    search = _Square(threat, queries, p_init, restarts, targets, objective, rescaled)
    return run_search(model, images, labels, threat, search, expected(run, eot))


@dataclass
class _Square:
    """Square; the current image of a row is ``best``; for linf it has the ``low``est and ``high``est image allowed."""

    threat: Threat
    queries: int
    p_init: float
    restarts: int
    targets: int | None
    objective: str | Objective | TargetedObjective
    rescale_schedule: bool

    def __post_init__(self) -> None:
        self.name = "square-t" if self.targets else "square"
        self.loss = objectives.resolve(self.objective, self.targets)
        self.windows: Windows | None = None  # known once the images' shape is

    def start(self, rows: Rows) -> None:
        clean, eps, bounds = rows["clean"], rows["eps"], self.threat.bounds
        if self.windows is None:
            self.windows = windows(self.p_init, self.queries, self.rescale_schedule, self.threat.norm, clean)
        if self.threat.norm == "linf":
            radius, (channels, _, width) = per_row(eps, clean), clean.shape[1:]
            rows["low"], rows["high"] = (clean - radius).clamp(*bounds), (clean + radius).clamp(*bounds)
            up = _coins(rows["key"], channels * width).view(-1, channels, 1, width)  # stripes one pixel wide
            rows["best"] = torch.where(up, rows["high"], rows["low"])
        else:
            rows["best"] = first_bumps(clean, eps, rows["key"], self.threat)

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Evaluate several queries of each row at once if few rows are left, and accept the first improvement.

        Queries after an accepted one are discarded and drawn again from the new image: the result is that of one query
        at a time. A proposal that changes no pixel is counted without a pass.
        """
        fill = _FILL.get(oracle.device.type, _FILL_ELSEWHERE)
        fill = min(fill, max(QUANTUM, PIXELS // rows["clean"][0].numel()))
        ahead = max(1, min(-(-fill // max(1, len(rows))), _MOST_AHEAD, self.queries))
        t = rows["t"][:, None] + torch.arange(ahead, device=rows["t"].device)
        x = self._propose(rows, t)
        changes = (x != rows["best"][:, None]).flatten(2).any(2) | (t == 0)
        until = (self.queries - rows["t"]).clamp(max=ahead)
        evaluated, until = _full_batches(changes & (t < self.queries), rows["t"], until)
        # −∞ and False for queries that are not evaluated
        loss = torch.full(evaluated.shape, -torch.inf, dtype=x.dtype, device=x.device)
        adversarial = torch.zeros_like(evaluated)
        if len(row := evaluated.nonzero()[:, 0]):
            context = (rows["context"][row],) if "context" in rows else ()
            label, logits = rows["label"][row], oracle.logits(x[evaluated], *context)
            loss[evaluated] = objectives.one_each(self.loss(logits, label, rows["target"][row]), logits)
            adversarial[evaluated] = logits.argmax(1) != label
        # prefer adversarial images, then the higher loss
        broken = rows["found"][:, None]
        better = (adversarial & ~broken) | ((loss > rows["loss"][:, None]) & (adversarial >= broken))
        moved, first = better.any(1), better.int().argmax(1)
        queries = torch.where(moved, first + 1, until)
        row = torch.arange(len(rows), device=first.device)
        rows.keep_best(x[row, first], loss[row, first], adversarial[row, first])
        rows["forwards"] = rows["forwards"] + queries * oracle.passes
        rows["t"] = rows["t"] + queries
        rows["done"] = rows["t"] == self.queries

    def _propose(self, rows: Rows, t: Queries) -> Proposals:
        assert self.windows is not None
        if self.threat.norm == "linf":
            x = propose_linf(rows, t, self.windows)
        else:
            x = propose_bumps(rows, t, self.windows, self.threat)
        fresh = (t[:, 0] == 0).nonzero().flatten()
        x[fresh, 0] = rows["best"][fresh]  # query 0 is the first image itself
        return x


def _full_batches(queries: Flags, t: Counts, until: Counts) -> tuple[Flags, Counts]:
    """Return the queries that fill whole quanta, the least advanced rows first, and how many of a row they decide."""
    order = t.argsort(stable=True)
    rank = torch.empty_like(queries, dtype=torch.int64)
    rank[order] = queries[order].flatten().cumsum(0).view_as(rank)
    total = int(queries.sum())
    late = queries & (rank > (total - total % QUANTUM or total))
    return queries & ~late, torch.where(late.any(1), late.int().argmax(1), until)


def _implied(settings: Settings) -> Settings:
    """Store with the rows that the schedule is rescaled: rows made before it was have other settings."""
    few = settings.get("queries", AUTOATTACK_QUERIES) < AUTOATTACK_QUERIES
    rescaled = settings.get("rescale_schedule")
    return {"rescale_schedule": True} if rescaled or (rescaled is None and few) else {}


SQUARE = AttackSpec(square, "Square", black_box=True, implied=_implied, unset=lambda _: {"rescale_schedule": False})


class Windows(NamedTuple):
    """The windows of each level l, which cover a share p_init / 2^l of the image."""

    height: Int64[Tensor, " levels"]
    width: Int64[Tensor, " levels"]
    after: Int64[Tensor, " halvings"]  # last iteration of each level except the final one
    # the change in l2 or l1, split along rows and columns, zeros around
    bumps: Float[Tensor, "levels 2 tallest widest"]


def windows(p_init: float, queries: int, rescale: bool, norm: Norm, clean: Images) -> Windows:
    """Return the windows for images like ``clean``, with their device and dtype."""
    height, width = clean.shape[2:]
    least, levels = 1 if norm == "linf" else 3, range(len(_HALVINGS) + 1)
    sizes = [window_size(p_init / 2**level, height, width, least) for level in levels]
    # iteration i belongs to a later level once ⌊i·10,000 / queries⌋ > b, which is i > ⌈(b + 1)·queries / 10,000⌉ − 1
    after = [-(-(b + 1) * queries // 10_000) - 1 for b in _HALVINGS] if rescale else list(_HALVINGS)
    tall, wide = torch.tensor(sizes, device=clean.device).unbind(1)
    bumps = torch.zeros(0)
    if norm != "linf":
        bumps = torch.zeros(len(sizes), 2, int(tall.max()), int(wide.max()), dtype=torch.float64)
        for level, (h, w) in enumerate(sizes):
            bumps[level, 0, :h, :w] = bump(h, w, norm)
            bumps[level, 1, :h, :w] = bump(w, h, norm).T
    return Windows(tall, wide, torch.tensor(after, device=clean.device), bumps.to(clean))


def window_size(share: float, height: int, width: int, least: int) -> tuple[int, int]:
    """Return height and width of the window that covers a share of the image; sides are odd if ``least`` is 3."""
    side = max(round(math.sqrt(share * height * width)), least)
    side += least > 1 and side % 2 == 0
    short = min(height, width)
    if side > short:
        side = max(side, round(share * height * width / short))
    return min(side, height), min(side, width)


def bump(height: int, width: int, norm: Norm = "l2") -> Float64[Tensor, "height width"]:
    """Return a change of length 1 in l2 or l1: a pyramid in the upper half and its negative in the lower.

    At distance d = max(|i − ⌊h/2⌋|, |j − ⌊w/2⌋|) from the centre of an h × w half, the pyramid is
    Σ_{m=d}^{n} 1/(m + 1)², in l1 1/(m + 1)⁴, with n = max(⌊h/2⌋, ⌊w/2⌋), of length 1. Of one row it is the lower half.
    """
    whole = torch.cat([_pyramid(height // 2, width, norm), -_pyramid(height - height // 2, width, norm)])
    return whole / (whole.square().sum().sqrt() if norm == "l2" else whole.abs().sum())


def _pyramid(height: int, width: int, norm: Norm) -> Float64[Tensor, "height width"]:
    down = (torch.arange(height) - height // 2).abs()
    right = (torch.arange(width) - width // 2).abs()
    steps = torch.arange(1, max(height // 2, width // 2) + 2, dtype=torch.float64)
    levels = (1.0 / steps ** (2 if norm == "l2" else 4)).flip(0).cumsum(0).flip(0)
    values = levels[torch.maximum(down[:, None], right[None, :])]
    return values / (values.square().sum().sqrt() if norm == "l2" else values.sum()).clamp_min(1e-12)


def first_bumps(clean: Images, eps: Numbers, keys: Keys, threat: Threat) -> Images:
    """Return a grid of 5 × 5 bumps of random direction and of random sign in each channel, of total length ε."""
    batch, channels, height, width = clean.shape
    (rows, tall, top), (columns, wide, left) = _tiling(height), _tiling(width)
    tiles = rows * columns
    draws = _coins(keys, (1 + channels) * tiles).view(batch, 1 + channels, rows, columns)
    across, up = draws[:, :1], draws[:, 1:]
    covered = (slice(None), slice(None), slice(top, top + rows * tall), slice(left, left + columns * wide))
    across, up = (one.repeat_interleave(tall, 2).repeat_interleave(wide, 3) for one in (across, up))
    shapes = bump(tall, wide, threat.norm), bump(wide, tall, threat.norm).T
    split_rows, split_columns = (shape.to(clean).repeat(rows, columns) for shape in shapes)
    change = torch.where(across, split_columns, split_rows)
    change = torch.where(up, change, -change)  # a bump has length 1
    x = clean.clone()
    if threat.norm == "l1":
        x[covered] += change
        return project(x, clean, eps, "l1", threat.bounds)
    change = change / math.sqrt(channels * tiles)
    x[covered] = (clean[covered] + per_row(eps, clean) * change).clamp(*threat.bounds)
    return x


def propose_linf(rows: Rows, t: Queries, windows: Windows) -> Proposals:
    """Return images with one window of each channel at its lowest or highest allowed values, for each query ``t``."""
    x, low, high = (rows[name][:, None] for name in ("best", "low", "high"))
    channels, height, width = x.shape[2:]
    _, tall, wide, draws = _draw(rows["key"], t, 2 + channels, windows)
    mask, _, _ = _window(draws[..., 0], draws[..., 1], tall, wide, height, width)
    up = (draws[..., 2:] < 0.5)[..., None, None]
    return torch.where(mask, torch.where(up, high, low), x)


def propose_bumps(rows: Rows, t: Queries, windows: Windows, threat: Threat) -> Proposals:
    """Return the images x with the change of window V moved to window W, for each query ``t``.

    With ν = x − clean, in each channel: ν_W ← a·d/‖d‖ with d = ν_W/‖ν_W‖ ± bump, and ν_V ← 0 elsewhere. The
    length a keeps the norm of both windows and adds an equal share of the unused budget:
    a² = ‖ν_{V∪W}‖² + (ε² − ‖ν‖²)/channels. In l1, a = channels·‖ν_{V∪W}‖₁ + ε − ‖ν‖₁ before the projection.
    """
    x, clean, eps, norm = rows["best"][:, None], rows["clean"][:, None], rows["eps"], threat.norm
    channels, height, width = x.shape[2:]
    level, tall, wide, draws = _draw(rows["key"], t, 5 + channels, windows)
    in_w, row, column = _window(draws[..., 0], draws[..., 1], tall, wide, height, width)
    in_v, _, _ = _window(draws[..., 2], draws[..., 3], tall, wide, height, width)
    across, up = (draws[..., 4, None, None] < 0.5).long(), (draws[..., 5:] < 0.5)[..., None, None]
    shape = windows.bumps[level[..., None, None], across, row, column][:, :, None]
    shape = torch.where(up, shape, -shape)

    unit = per_row(eps.clamp_min(_LEAST_UNIT), x)  # of changes, in which ε is nearly always 1
    change = (x - clean) / unit
    allowed = (per_row(eps, x) / unit).square().double()  # 1, but for an ε below the least unit
    unused = (allowed - per_row(_energy(change.flatten(1), norm), x)).clamp_min(0.0) / channels
    energy = _energy((change * in_w).flatten(3), norm)[..., None, None]
    moved = _energy((change * (in_v & ~in_w)).flatten(3), norm)[..., None, None]
    # below 1e-6 of ε a change or a sum that cancels has no meaningful direction
    d = shape + torch.where(energy > 1e-12, change / _length(energy, norm).clamp_min(1e-6).to(x.dtype), 0.0)
    length = _length(_energy((d * in_w).flatten(3), norm)[..., None, None], norm)
    d = torch.where(length > 1e-3, d / length.clamp_min(1e-3).to(x.dtype), shape)
    total = energy + moved + unused
    new = clean + unit * (d * _length(total if norm == "l2" else channels * total, norm).to(x.dtype))
    new = new.clamp(*threat.bounds) if norm == "l2" else new
    proposal = torch.where(in_w, new, torch.where(in_v, clean, x))
    if norm == "l2":
        return proposal
    clean, eps = clean.expand_as(proposal).flatten(0, 1), eps.repeat_interleave(t.shape[1], 0)
    return project(proposal.flatten(0, 1), clean, eps, "l1", threat.bounds).view_as(proposal)


def _draw(keys: Keys, t: Queries, count: int, windows: Windows) -> tuple[Queries, Queries, Queries, Tensor]:
    """Return each query's level, its window's height and width, and ``count`` numbers in [0, 1)."""
    draws = streams.uniform(keys.repeat_interleave(t.shape[1]), count, (t * count).flatten())
    level = torch.bucketize(t - 1, windows.after)  # iterations are counted from the first proposal
    return level, windows.height[level], windows.width[level], draws.view(*t.shape, count)


def _window(
    down: Tensor, right: Tensor, tall: Tensor, wide: Tensor, height: int, width: int
) -> tuple[Bool[Tensor, "batch ahead 1 height width"], Tensor, Tensor]:
    """Return the pixels of windows, uniform over all positions at which they fit; and every pixel's row and column.

    Rows and columns are counted from the window's first, 0 outside of it.
    """
    places = []
    for draw, length, size in ((down, height, tall), (right, width, wide)):
        first = (draw * (length - size + 1)).long()
        place = torch.arange(length, device=first.device) - first[..., None]
        places.append(torch.where(place < size[..., None], place, -1))
    row, column = places[0][..., None], places[1][..., None, :]
    return ((row >= 0) & (column >= 0))[:, :, None], row.clamp_min(0), column.clamp_min(0)


def _length(energy: Tensor, norm: Norm) -> Tensor:
    return energy.sqrt() if norm == "l2" else energy


def _energy(values: Float[Tensor, "*shape pixels"], norm: Norm) -> Float64[Tensor, "*shape"]:
    """Return the sum of squares, in l1 of sizes, in fixed point: the order in which torch adds depends on the batch."""
    return ((values * values if norm == "l2" else values.abs()) * _FIXED).long().sum(-1).double() / _FIXED


def _tiling(length: int) -> tuple[int, int, int]:
    """Return number, size and first pixel of the tiles along an axis."""
    count = min(_TILES, length)
    size = length // count
    return count, size, (length - count * size) // 2


def _coins(keys: Keys, count: int) -> Bool[Tensor, "batch count"]:
    """Toss coins for the initial image: of other keys, since it draws more numbers than a query."""
    return streams.uniform(streams.sample_keys(keys, torch.zeros_like(keys)), count) < 0.5
