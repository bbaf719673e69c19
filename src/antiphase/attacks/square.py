"""Square: black-box random search over windows of the image."""

import math
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from antiphase.arguments import Count, Share, validated
from antiphase.attacks import objectives
from antiphase.attacks.engine.options import RunOptions
from antiphase.attacks.engine.oracle import PIXELS, QUANTUM, Classifier, Oracle
from antiphase.attacks.engine.rows import Rows, per_row
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.objectives import Objective, TargetedObjective
from antiphase.attacks.result import AttackResult
from antiphase.attacks.spec import AttackSpec, Settings
from antiphase.attacks.square_moves import Windows, first_l2, first_linf, propose_l2, propose_linf, windows
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

# When few rows are left, the batch is filled to this many images with later queries of each row, see _Square.step. On
# a CPU in float32, 32 images were fastest (dev/attack-engine.md). In bf16 larger batches are better: rows that wait for
# float32 leave room, and the float32 passes should fill a batch too.
_FILL = {("cpu", "float32"): 2 * QUANTUM, ("cpu", "bf16"): 8 * QUANTUM}
_FILL_ELSEWHERE = 64
AUTOATTACK_QUERIES = 5_000
_MOST_AHEAD = 16  # queries of one row: most of those further ahead are discarded
# In bf16, a proposal is repeated in float32 unless its loss is lower by more than _REACH times the rounding error of
# gains, which is estimated from about the last _MEMORY accepted proposals. Proposals are repeated _TOGETHER at a time
# (dev/low-precision.md).
_REACH = 0.5
_MEMORY = 8
_TOGETHER = 64


@validated
def square(
    model: Classifier,
    images: Float[Tensor, "samples channels height width"],
    labels: Integer[Tensor, " samples"] | None,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    queries: Count = AUTOATTACK_QUERIES,
    p_init: Share = 0.8,
    restarts: Count = 1,
    targets: Count | None = None,
    objective: str | Objective | TargetedObjective = "margin",
    rescale_schedule: bool | None = None,
    budgets: Float[Tensor, " samples"] | None = None,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Change random windows of the image one by one, and keep each change that raises the loss.

    Query 0 is an initial image x₀, each query t > 0 a proposal x̂ that replaces x if its loss is higher:

    - linf: x₀ has vertical stripes one pixel wide at clean ± ε; x̂ is x with a random window set to clean ± ε, with a
      random sign per channel;
    - l2: x₀ is clean plus a grid of 5 × 5 bumps of total length ε; x̂ moves the change from one random window to
      another, adds a bump there, and has length ε before clipping.

    Windows are squares that cover a share p of the image: p_init at first, halved after iterations 10, 50,
    200, 500, 1000, 2000, 4000, 6000 and 8000, with an odd side of at least 3 pixels for l2. If the image is too narrow
    for the square, the window is a rectangle of the same area. The search stops at the first query that changes the
    prediction, otherwise the image of highest loss is kept. It takes at most ``queries`` forward passes, one more to
    confirm a success and, with ``precision="bf16"``, one in float32 for each possible improvement. It does not use
    gradients.

    Source: M. Andriushchenko, F. Croce, N. Flammarion, M. Hein, *Square Attack: a Query-Efficient Black-Box
    Adversarial Attack via Random Search*, ECCV 2020, Algorithms 1 to 3; the defaults are AutoAttack's. Windows
    are drawn per sample among all positions, and l2 divides ε among the channels as in Algorithm 3; AutoAttack's code
    draws once per batch, omits the last position, and pools the channels.

    Args:
        model: classifier of images within the threat's bounds.
        images: clean images, of any height and width.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, finite ε and bounds.
        queries: largest number of queries, at least 1.
        p_init: share of the image covered by the first windows, in (0, 1].
        restarts: random restarts per sample (and target class), at least 1.
        targets: number of target classes, tried in the order of their clean logits; None attacks untargeted.
        objective: loss to maximise: ``"margin"``, ``"cross_entropy"``, ``"dlr"`` or a callable of
            (logits, labels), with ``targets`` of (logits, labels, targets), that returns one number per sample.
        rescale_schedule: scale the halvings, given for 10,000 queries, to ``queries``. None does so for fewer than
            5,000 queries (AutoAttack's default number): otherwise a search of 1,000 queries ends before its windows are
            small, and breaks fewer samples. :func:`autoattack` never does so.
        budgets: one ε per sample, at most the threat's.
        **run: seed, batch size and others, see :class:`~antiphase.attacks.engine.options.Run`.

    Raises:
        UserError: A parameter or image is out of range, or the model has too few classes for DLR.
    """
    if threat.eps == math.inf:
        raise UserError("eps inf: Square needs a finite ε; use FAB to minimise the perturbation")
    if images.ndim != 4:
        raise UserError(f"images of shape {tuple(images.shape)}: Square expects (samples, C, H, W)")
    rescale = rescales(queries, rescale_schedule)
    search = _Square(threat, objective, queries, p_init, restarts, targets, rescale)
    settings: dict[str, Any] = {
        "queries": queries,
        "p_init": p_init,
        "restarts": restarts,
        "targets": targets,
        "objective": objective if isinstance(objective, str) else "custom",
        "rescale_schedule": rescale,
    }
    return run_search(model, images, labels, threat, search, settings, run, budgets)


def rescales(queries: int, asked: bool | None) -> bool:
    """Return whether the schedule of window sizes is scaled to the number of queries."""
    return queries < AUTOATTACK_QUERIES if asked is None else asked


class _Square:
    """Square.

    State of a row: the number of queries (``t``) and the current image (``best``); for linf the ``low``est and
    ``high``est image allowed. In low precision also the loss of ``best`` in that precision (``rough``; ``loss`` is in
    float32), the mean rounding error of a gain (``rounding``), whether query t ``waits`` for a float32 pass, and the
    loss that low precision has ``seen`` for it.
    """

    decides_in_float32 = True

    def __init__(
        self,
        threat: Threat,
        objective: str | Objective | TargetedObjective,
        queries: int,
        p_init: float,
        restarts: int,
        targets: int | None,
        rescale: bool,
    ) -> None:
        self.name = "square-t" if targets else "square"
        self.targets, self.restarts = targets or 0, restarts
        self.threat, self.queries, self.p_init, self.rescale = threat, queries, p_init, rescale
        self.windows: Windows | None = None  # known once the images' shape is
        if targets:
            self.objective = objectives.resolve_targeted(objective)  # pyright: ignore[reportArgumentType]
        else:
            plain = objectives.resolve(objective)  # pyright: ignore[reportArgumentType]
            self.objective = lambda logits, labels, targets: plain(logits, labels)

    def start(self, rows: Rows) -> None:
        clean, eps, threat = rows["clean"], rows["eps"], self.threat
        if self.windows is None:
            self.windows = windows(self.p_init, self.queries, self.rescale, threat.norm, clean)
        if threat.norm == "linf":
            radius = per_row(eps, clean)
            rows["low"], rows["high"] = (
                (clean - radius).clamp(*threat.bounds),
                (clean + radius).clamp(*threat.bounds),
            )
            rows["best"] = first_linf(rows["low"], rows["high"], rows["key"])
        else:
            rows["best"] = first_l2(clean, eps, rows["key"], threat.bounds)
        for name in ("loss", "rough", "seen"):
            rows[name] = torch.full_like(eps, -torch.inf)
        rows["rounding"] = torch.zeros_like(eps)
        rows["t"] = torch.zeros_like(rows["label"])
        rows["found"] = torch.zeros_like(rows["label"], dtype=torch.bool)
        rows["done"], rows["waits"] = rows["found"].clone(), rows["found"].clone()

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Evaluate several queries of each row at once if few rows are left, and accept the first improvement.

        A full batch takes hardly longer than a few rows, and most proposals are rejected, so each query assumes that
        those before it are. Queries after an accepted one are discarded, not counted, and drawn again from the new
        image: the result equals that of one query at a time.

        A proposal that changes no pixel is rejected and counted without a pass. Low precision cannot resolve small
        gains: it rejects only proposals that are clearly worse, and float32 decides on the others, in batches of many
        rows; until then a row waits.
        """
        low, waits = oracle.precision != "float32", rows["waits"]
        ahead = self._ahead(len(rows) - int(waits.sum()), rows["clean"][0].numel(), oracle)
        t = rows["t"][:, None] + torch.arange(ahead, device=rows["t"].device)
        x = self._propose(rows, t)
        changes = (x != rows["best"][:, None]).flatten(2).any(2) | (t == 0)
        until = (self.queries - rows["t"]).clamp(max=ahead)
        asked, until = _full_batches(changes & (t < self.queries) & ~waits[:, None], rows["t"], until)
        rough, adversarial = self._answers(rows, x, asked, oracle.logits)
        loss = rough
        if low:
            near, rough, until = self._near(rows, asked, rough, adversarial, until)
            busy = 2 * int(near.any(1).sum()) <= len(rows)  # most rows have further low-precision queries
            asked, until = _full_batches(near, rows["t"], until, _TOGETHER if busy else 0)
            loss, adversarial = self._answers(rows, x, asked, oracle.in_float32().logits)
        # prefer adversarial images, then the higher loss
        found = rows["found"][:, None]
        better = (adversarial & ~found) | ((loss > rows["loss"][:, None]) & (adversarial >= found))
        moved, first = better.any(1), better.int().argmax(1)
        queries = torch.where(moved, first + 1, until)
        row = torch.arange(len(rows), device=first.device)
        if low:
            again = (asked & (t < (rows["t"] + queries)[:, None])).sum(1)
            rows["forwards"] = rows["forwards"] + again * oracle.passes
            rows["waits"] = (near & ~asked).any(1) & ~moved
            rows.put("seen", rows["waits"], rough[row, until.clamp(max=ahead - 1)])
            self._learn(rows, moved, rough[row, first], loss[row, first])
        at = moved.nonzero().flatten()  # few rows: avoid copying the images of the others
        rows["best"][at] = x[at, first[at]]
        rows.put("loss", moved, loss[row, first])
        rows["found"] = rows["found"] | (moved & adversarial[row, first])
        rows["forwards"] = rows["forwards"] + queries * oracle.passes
        rows["t"] = rows["t"] + queries
        rows["done"] = rows["t"] == self.queries

    def _near(
        self,
        rows: Rows,
        asked: Bool[Tensor, "batch ahead"],
        rough: Float[Tensor, "batch ahead"],
        adversarial: Bool[Tensor, "batch ahead"],
        until: Int64[Tensor, " batch"],
    ) -> tuple[Bool[Tensor, "batch ahead"], Float[Tensor, "batch ahead"], Int64[Tensor, " batch"]]:
        """Return the queries for float32 to decide, their low-precision losses, and how many queries they settle."""
        waits, least = rows["waits"], rows["rough"] - _REACH * rows["rounding"]
        near = asked & ((adversarial & ~rows["found"][:, None]) | (rough > least[:, None]))
        near[:, 0] |= waits
        rough[:, 0] = torch.where(waits, rows["seen"], rough[:, 0])
        return near, rough, torch.where(waits, 1, until)

    def _answers(
        self,
        rows: Rows,
        x: Float[Tensor, "batch ahead ..."],
        asked: Bool[Tensor, "batch ahead"],
        model: Classifier,
    ) -> tuple[Float[Tensor, "batch ahead"], Bool[Tensor, "batch ahead"]]:
        """Return the losses and whether the prediction changes; −∞ and False for queries that were not evaluated."""
        loss = torch.full(asked.shape, -torch.inf, dtype=x.dtype, device=x.device)
        adversarial = torch.zeros_like(asked)
        row = asked.nonzero()[:, 0]
        if len(row):
            context = (rows["context"][row],) if "context" in rows else ()
            label, logits = rows["label"][row], model(x[asked], *context)
            loss[asked] = objectives.one_each(self.objective(logits, label, rows["target"][row]), logits)
            adversarial[asked] = logits.argmax(1) != label
        return loss, adversarial

    def _learn(
        self,
        rows: Rows,
        moved: Bool[Tensor, " batch"],
        rough: Float[Tensor, " batch"],
        loss: Float[Tensor, " batch"],
    ) -> None:
        """Record the low-precision losses of accepted proposals."""
        first = rows["rough"].isinf()
        error = torch.where(first, rough - loss, (rough - rows["rough"]) - (loss - rows["loss"])).abs()
        weight = torch.where(first, 1.0, 1.0 / _MEMORY)
        rows.put("rounding", moved, rows["rounding"] + weight * (error - rows["rounding"]))
        rows.put("rough", moved, rough)

    def _ahead(self, count: int, pixels: int, oracle: Oracle) -> int:
        """Return the number of queries of each row that are evaluated at once."""
        fill = _FILL.get((oracle.device.type, oracle.precision), _FILL_ELSEWHERE)
        fill = min(fill, max(QUANTUM, PIXELS // pixels))
        return max(1, min(-(-fill // max(1, count)), _MOST_AHEAD, self.queries))

    def _propose(
        self, rows: Rows, t: Int64[Tensor, "batch ahead"]
    ) -> Float[Tensor, "batch ahead channels height width"]:
        """Return the image of each query."""
        assert self.windows is not None
        best, key, threat = rows["best"], rows["key"], self.threat
        if threat.norm == "linf":
            x = propose_linf(best, rows["low"], rows["high"], key, t, self.windows)
        else:
            x = propose_l2(best, rows["clean"], rows["eps"], key, t, self.windows, threat.bounds)
        fresh = (t[:, 0] == 0).nonzero().flatten()
        x[fresh, 0] = best[fresh]  # query 0 is the first image itself
        return x


def _full_batches(
    asked: Bool[Tensor, "batch ahead"],
    t: Int64[Tensor, " batch"],
    until: Int64[Tensor, " batch"],
    least: int = 0,
) -> tuple[Bool[Tensor, "batch ahead"], Int64[Tensor, " batch"]]:
    """Defer queries that would start another quantum, those of the most advanced rows first.

    All are deferred if they are fewer than ``least``. Return the remaining ones, and how many queries of each row they
    decide.
    """
    order = t.argsort(stable=True)
    rank = torch.empty_like(asked, dtype=torch.int64)
    rank[order] = asked[order].flatten().cumsum(0).view_as(rank)
    total = int(asked.sum())
    now = 0 if total < least else total - total % QUANTUM or total
    late = asked & (rank > now)
    return asked & ~late, torch.where(late.any(1), late.int().argmax(1), until)


def _implied(settings: Settings) -> Settings:
    """Store with the rows that the schedule is rescaled: rows made before it was have other settings."""
    rescaled = rescales(settings.get("queries", AUTOATTACK_QUERIES), settings.get("rescale_schedule"))
    return {"rescale_schedule": True} if rescaled else {}


SQUARE = AttackSpec(
    square,
    "Square",
    black_box=True,
    implied=_implied,
    unset=lambda settings: {"rescale_schedule": False},
    passes=lambda settings: (
        settings["queries"] * settings["restarts"] * (settings["targets"] or 1) / 2
    ),  # forward only
)
