"""Carlini and Wagner's attack: the shortest perturbation by Adam, in coordinates that know no bounds."""

import math
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from antiphase.attacks.engine.inputs import check_counts
from antiphase.attacks.engine.options import RunOptions
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.rows import Rows, per_row
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.objectives import margin, targeted_margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.spec import AttackSpec
from antiphase.attacks.threat import Threat, row_norm
from antiphase.errors import UserError

# A clean pixel sits at this share of the way to the bounds. Adam moves every coordinate of w alike, and tanh is
# flat near ±1: at 0.999999, usual elsewhere, the black and white pixels of a picture hardly move at all.
_ROOM = 0.9
_BETAS = (0.9, 0.999)
_TINY = 1e-8
_CHECKS = 10  # of its progress in a search step
_LEAST_PROGRESS = 1e-4  # of the loss, from one check to the next
_LARGEST_CONST = 1e10
_STRIDE = 0.1  # of the nearest example's distance: the length of the first stride of a run that starts there


def carlini_wagner(
    model: Classifier,
    images: Float[Tensor, "samples *shape"],
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat = Threat("l2", math.inf),  # noqa: B008 (frozen)
    *,
    steps: int = 1000,
    search_steps: int = 9,
    targets: int | None = None,
    learning_rate: float = 0.01,
    initial_const: float = 1e-3,
    confidence: float = 0.0,
    abort_early: bool = True,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Minimise ‖δ‖₂² + c·max(κ − margin(x + δ), 0) by Adam, for several c.

    The margin is the best other logit less the label's, with ``targets`` one other class's less the label's. The
    class that is next by its logit need not be the nearest, and the search seldom leaves it: where the least
    perturbation counts, aim at several (the paper's best case). With m and h the middle and half the width of the
    bounds, w₀ = atanh(0.9·(x − m)/h) and δ(w) = h·(tanh w − tanh w₀), clipped to the bounds, Adam moves w
    from w₀, where δ = 0 exactly. In each of the ``search_steps`` runs of Adam c is fixed; then c goes to
    the middle of the largest c that was too small and the least that was enough, or to 10·c while none
    was. Of all iterates with a margin of at least κ the nearest is returned. The search does not know ε: it
    succeeds where that iterate lies within it.

    Every sample is alone with its c, its Adam and its clock. A run ends early where the lowest loss since
    its last check (ten a run) is not below 0.9999 times the lowest before it; the sample then goes on
    with its next c at once. In five points this differs from the paper:

    - the 0.9 in w₀ (the paper's code has 0.999999), so that pixels at their bounds can move;
    - a run starts at the w of the nearest example so far, or where the last run ended if there is none;
    - a run that starts at an example takes strides of w of at most the learning rate, and such that the
      first (Adam's first moves every coordinate alike) is a tenth of that example's distance long: longer
      ones lose an example that lies very near;
    - c was enough only if an adversarial iterate since the last check has a loss below that of the clean
      image: Adam's first strides cross a near boundary at any c, and without this the search for c
      would only ever go down after such a crossing;
    - progress is judged by the lowest loss, not by the latest, which swings about the boundary.

    Each target costs ``steps · search_steps`` forward and backward passes at most, and one forward pass to confirm.

    Source: N. Carlini, D. Wagner, *Towards Evaluating the Robustness of Neural Networks*, IEEE S&P 2017,
    Sections V and VI.A; learning rate, first c and search steps are those of the authors' code.

    Args:
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: l2, ε and bounds; an infinite ε asks for the least perturbation.
        steps: Adam's, for each c; at least 1.
        search_steps: how many c are tried, at least 1.
        targets: how many of the runners-up on the clean image are aimed at, one after the other; None follows
            the best other class at every step.
        learning_rate: Adam's, above 0, in units of w.
        initial_const: the first c, above 0.
        confidence: κ, at least 0, in units of the logits.
        abort_early: whether a run may end before its ``steps``.
        **run: seed, batch size and the like, see :class:`~antiphase.attacks.engine.options.Run`; ``early_stop`` is
            False where ε is infinite and nothing else is said. Nothing is drawn at random.

    Raises:
        UserError: for another norm, and for parameters or images out of range.
    """
    if threat.norm != "l2":
        raise UserError(f"norm {threat.norm!r}: Carlini and Wagner's attack minimises l2; for linf use FAB")
    check_counts(steps=steps, search_steps=search_steps, targets=targets)
    if not (0 < learning_rate < math.inf and 0 < initial_const < math.inf):
        raise UserError(
            f"learning_rate {learning_rate} and initial_const {initial_const}: expected numbers above 0"
        )
    if not 0 <= confidence < math.inf:
        raise UserError(f"confidence {confidence}: expected a number of at least 0")
    run.setdefault("early_stop", math.isfinite(threat.eps))
    if run.get("precision") == "bf16":  # whose rounding moves the boundary (dev/low-precision.md)
        run["precision"] = "float32"
    settings: dict[str, Any] = {
        "steps": steps, "search_steps": search_steps, "targets": targets, "learning_rate": learning_rate,
        "initial_const": initial_const, "confidence": confidence, "abort_early": abort_early,
    }  # fmt: skip
    return run_search(model, images, labels, threat, _CarliniWagner(threat, **settings), settings, run)


class _CarliniWagner:
    """The search's state.

    The iterate in free coordinates (``w``), Adam's two moments, its clock (``t``) and learning ``rate``;
    the clean image's tanh w₀ (``origin``) and hinge (``clean_hinge``); the search for c (``const``,
    ``lower``, ``upper``, ``trial``); since the last check the lowest loss (``lowest``) and whether c was
    ``enough``, and the lowest loss before it (``previous``); and ``best_w``, from which ``best`` was made.
    ``loss`` is −distance.
    """

    name = "carlini-wagner"
    restarts = 1
    decides_in_float32 = False

    def __init__(
        self, threat: Threat, steps: int, search_steps: int, targets: int | None, learning_rate: float,
        initial_const: float, confidence: float, abort_early: bool,
    ) -> None:  # fmt: skip
        self.threat, self.steps, self.search_steps = threat, steps, search_steps
        self.targets = targets or 0
        self.learning_rate, self.initial_const = learning_rate, initial_const
        self.confidence, self.abort_early = confidence, abort_early
        self.interval = math.ceil(steps / _CHECKS)
        self.middle = 0.5 * (threat.bounds[0] + threat.bounds[1])
        self.half = 0.5 * (threat.bounds[1] - threat.bounds[0])
        clock = torch.arange(1, steps + 1, dtype=torch.float64)
        self.corrections = [1.0 - beta**clock for beta in _BETAS]

    def start(self, rows: Rows) -> None:
        """Start at the clean image."""
        clean, eps = rows["clean"], rows["eps"]
        w = torch.atanh(_ROOM * (clean.double() - self.middle) / self.half).to(clean.dtype)
        rows["w"], rows["best_w"] = w, w.clone()
        rows["origin"] = _tanh(w)
        rows["best"] = clean.clone()
        rows["loss"] = torch.full_like(eps, -torch.inf)
        rows["const"] = torch.full_like(eps, self.initial_const)
        rows["rate"] = torch.full_like(eps, self.learning_rate)
        rows["lower"] = torch.zeros_like(eps)
        for name in ("upper", "clean_hinge"):
            rows[name] = torch.full_like(eps, torch.inf)
        rows["trial"] = torch.zeros_like(rows["label"])
        for name in ("found", "done"):
            rows[name] = torch.zeros_like(rows["label"], dtype=torch.bool)
        self._start_run(rows, torch.ones_like(rows["found"]))

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Note the iterate where it is adversarial, judge the run, and move."""
        clean, tanh = rows["clean"], _tanh(rows["w"])
        x = (clean + self.half * (tanh - rows["origin"])).clamp(*self.threat.bounds)
        value, logits, slope = oracle.gradient(rows, x, lambda logits: self._margin(logits, rows))
        hinge = (self.confidence - value).clamp_min(0.0)
        rows.put("clean_hinge", (rows["trial"] == 0) & (rows["t"] == 0), hinge)
        over = margin(logits, rows["label"]) >= self.confidence  # any class will do, whichever is aimed at
        adversarial = (logits.argmax(1) != rows["label"]) & over
        distance = self.threat.distance(x, clean)
        nearer = adversarial & (-distance > rows["loss"])
        rows.put("best", nearer, x)
        rows.put("best_w", nearer, rows["w"])
        rows.put("loss", nearer, -distance)
        rows["found"] = rows["found"] | (nearer & (distance <= rows["eps"] + self.threat.tolerance))

        ended = self._judge(rows, distance.square(), hinge, adversarial)
        pull = per_row(rows["const"] * (value <= self.confidence), x) * slope
        gradient = (2.0 * (x - clean) - pull) * self.half * (1.0 - tanh * tanh)
        low, high = self.threat.bounds
        outward = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        self._move(rows, gradient * ~outward)
        self._search(rows, ended)
        rows["done"] = rows["trial"] == self.search_steps

    def _margin(self, logits: Float[Tensor, "batch classes"], rows: Rows) -> Float[Tensor, " batch"]:
        if self.targets:
            return targeted_margin(logits, rows["label"], rows["target"])
        return margin(logits, rows["label"])

    def _judge(
        self, rows: Rows, square: Float[Tensor, " batch"], hinge: Float[Tensor, " batch"],
        adversarial: Bool[Tensor, " batch"],
    ) -> Bool[Tensor, " batch"]:  # fmt: skip
        """Keep account of the loss and of whether c is enough; return which runs have ended."""
        enough = adversarial & (square <= rows["const"] * rows["clean_hinge"])
        rows["enough"] = rows["enough"] | enough
        rows["lowest"] = torch.minimum(rows["lowest"], square + rows["const"] * hinge)
        check = (rows["t"] > 0) & (rows["t"] % self.interval == 0)
        stalled = check & (rows["lowest"] > (1.0 - _LEAST_PROGRESS) * rows["previous"])
        ended = (rows["t"] == self.steps - 1) | (stalled & self.abort_early)
        goes_on = check & ~ended
        rows.put("previous", goes_on, rows["lowest"])
        rows.put("lowest", goes_on, torch.full_like(square, torch.inf))
        rows.put("enough", goes_on, enough)
        return ended

    def _move(self, rows: Rows, gradient: Float[Tensor, "batch *shape"]) -> None:
        """Take one step of Adam."""
        first, second = _BETAS
        rows["first_moment"] = first * rows["first_moment"] + (1.0 - first) * gradient
        rows["second_moment"] = second * rows["second_moment"] + (1.0 - second) * gradient * gradient
        of_first, of_second = (
            per_row(correction.to(gradient.device)[rows["t"]].to(gradient.dtype), gradient)
            for correction in self.corrections
        )
        length = (rows["second_moment"] / of_second).sqrt() + _TINY
        rows["w"] = rows["w"] - per_row(rows["rate"], gradient) * (rows["first_moment"] / of_first) / length
        rows["t"] = rows["t"] + 1

    def _search(self, rows: Rows, ended: Bool[Tensor, " batch"]) -> None:
        """Give the rows whose run has ended their next c."""
        const = rows["const"]
        rows.put("upper", ended & rows["enough"], const)
        rows.put("lower", ended & ~rows["enough"], const)
        larger = (10.0 * const).clamp(max=_LARGEST_CONST)
        middle = 0.5 * (rows["lower"] + rows["upper"])
        rows.put("const", ended, torch.where(rows["upper"].isinf(), larger, middle))
        rows.put("w", ended & rows["loss"].isfinite(), rows["best_w"])
        unit = self.half * row_norm(1.0 - _tanh(rows["w"]).square(), "l2")
        short = (_STRIDE * -rows["loss"] / unit).clamp(max=self.learning_rate)
        rows.put("rate", ended & rows["loss"].isfinite(), short)
        rows["trial"] = rows["trial"] + ended
        self._start_run(rows, ended)

    def _start_run(self, rows: Rows, which: Bool[Tensor, " batch"]) -> None:
        """Forget what belongs to a run of Adam; the names are new when a row starts."""
        fresh = {
            "first_moment": torch.zeros_like(rows["w"]),
            "second_moment": torch.zeros_like(rows["w"]),
            "t": torch.zeros_like(rows["label"]),
            "enough": torch.zeros_like(rows["found"]),
            "lowest": torch.full_like(rows["eps"], torch.inf),
            "previous": torch.full_like(rows["eps"], torch.inf),
        }
        for name, values in fresh.items():
            rows.setdefault(name, values)
            rows.put(name, which, values)


def _tanh(w: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Return tanh w; by way of float64, as torch's last bit may differ with a number's place in the tensor."""
    return torch.tanh(w.double()).to(w.dtype)


CARLINI_WAGNER = AttackSpec(
    carlini_wagner, "Carlini–Wagner", nearest=True,
    passes=lambda settings: float(settings["steps"] * settings["search_steps"] * (settings["targets"] or 1)),
)  # fmt: skip
