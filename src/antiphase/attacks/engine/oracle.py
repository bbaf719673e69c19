"""The model under attack: in evaluation mode, with padded batches and passes counted per sample."""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from antiphase.attacks.objectives import Logits, one_each
from antiphase.attacks.threat import Numbers, Points
from antiphase.attention.modes import outputs_only
from antiphase.errors import UserError
from antiphase.modules import device_of, differentiable, evaluating, running
from antiphase.precision import Precision, autocast, exact_float32

Classifier = Callable[..., Tensor]  # from images, and the context of each if there is one, to logits
Loss = Callable[[Tensor], Tensor]  # from logits to one number per row

# A matrix product may round a row differently in another batch. With batches of a multiple of this many rows, and MKL's
# strict mode (see the package's __init__), rows are bitwise equal on some processors and nearly equal on others
# (dev/attack-engine.md).
QUANTUM = 16
PIXELS = 2**21  # pixels per batch, which keeps a ViT-B at 224×224 to about 2 GB
_BYTES = 2**13  # of a GPU's free memory for each pixel; a ViT-B needs about a fifth of them


def largest_batch(image: Tensor, device: torch.device, rows: int) -> int:
    """Return how many images of this size to compute at once: 8 times ``rows`` on a GPU, less where memory is short."""
    pixels = PIXELS
    if device.type == "cuda":
        rows, pixels = 8 * rows, min(8 * PIXELS, torch.cuda.mem_get_info(device)[0] // _BYTES)
    return max(QUANTUM, min(rows, pixels // image.numel()))


class Oracle:
    """Evaluate a model for an attack: the search in its own precision and model, verdicts in the original in float32.

    The logits of ``passes`` forward passes are averaged; each is counted. ``device`` is that of a model without
    parameters. With ``alike``, batches of 1, 2, 4 and 8 rows are used where the first of each kind gave bitwise what it
    gives padded to 16. ``seen`` counts the gradients that were ``"asked"`` for, and of those the ``"flat"`` (zero) and
    the ``"broken"`` (with NaN or infinite values, set to zero); ``"classes"`` is the number of logits of an image.
    """

    def __init__(
        self,
        model: Classifier,
        precision: Precision = "float32",
        compile: bool = False,
        passes: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.passes, self.compiled = model, passes, compile
        self.device = device_of(model, device or "cpu")
        self.precision: Precision = precision
        self._copy: Classifier = model
        self._searched: Classifier = model
        self.seen: Counter[str] = Counter()
        self.alike = False
        self._fits: dict[tuple[str, str, int], bool] = {}  # by kind of pass, precision and rows

    def search_in(self, model: Classifier, precision: Precision) -> None:
        """Search in a faithful copy of the model, compiled if that was asked for, and in this precision."""
        self._copy, self.precision = model, precision
        self._searched = torch.compile(model, dynamic=True) if self.compiled else model

    def in_float32(self) -> Self:
        """Return an oracle with a float32 search that is not compiled; both share the counts in ``seen``."""
        exact = copy.copy(self)
        exact.precision, exact.compiled, exact._searched = "float32", False, self._copy
        return exact

    def verdict(self, x: Points, context: Tensor | None = None) -> Logits:
        """Return the logits of the unmodified model in float32; not counted."""
        with torch.no_grad(), exact_float32(x.device), autocast(x.device, "float32"):
            return self._logits("verdict", self.model, x, context)

    def by_batches(self, images: Tensor, context: Tensor | None, size: int) -> Logits:
        """Return the logits of :meth:`verdict` on the CPU, for images that need not be on the model's device."""
        batches = zip(*[part.split(size) for part in (images, context) if part is not None], strict=True)
        return torch.cat([self.verdict(*(part.to(self.device) for part in some)).cpu() for some in batches])

    def logits(self, x: Points, context: Tensor | None = None) -> Logits:
        """Return the logits in the search's precision, without a graph; not counted."""
        with torch.no_grad(), outputs_only(), autocast(x.device, self.precision):
            return self._logits("search", self._searched, x, context)

    def forward(self, rows: dict[str, Tensor], x: Points) -> Logits:
        """Return the logits without a graph; count one forward pass per row."""
        rows["forwards"] = rows["forwards"] + self.passes
        return self.logits(x, rows.get("context"))

    def gradients(
        self, rows: dict[str, Tensor], x: Points, losses: Sequence[Loss]
    ) -> tuple[list[Numbers], Logits, list[Points]]:
        """Return each loss, the logits and the gradient of each loss.

        Count for each row one forward pass, and one backward pass for each loss.
        """
        number = len(losses)
        answers: list[list[Tensor]] = []
        with torch.enable_grad(), outputs_only():  # backward too: checkpointed activations are recomputed
            for size in self._sizes("gradient", len(x), answers):
                with _smaller_may_fail(answers):
                    leaf = x.detach().requires_grad_(True)
                    passes: list[Tensor] = []
                    with autocast(x.device, self.precision), running(self.model, x):
                        for given in _copies(leaf, rows.get("context"), size, self.passes):
                            passes.append(checked(self._searched(*given), given[0], self.seen)[: len(x)])
                    if torch.is_inference_mode_enabled():
                        raise UserError("attack inside torch.inference_mode(): call it outside, for gradients")
                    if not (logits := _mean(passes)).requires_grad:
                        why = "the logits do not depend differentiably on the images"
                        raise UserError(f"{why}: use square, which needs no gradients")
                    values = [one_each(loss(logits), logits) for loss in losses]
                    gradients: list[Tensor] = []
                    with running(self.model, x):
                        for index, value in enumerate(values, start=1):
                            gradients += torch.autograd.grad(
                                value.sum(), leaf, retain_graph=index < number, materialize_grads=True
                            )
                    answers.append([one.detach() for one in (logits, *values, *gradients)])
        rows["forwards"] = rows["forwards"] + self.passes
        rows["backwards"] = rows["backwards"] + self.passes * number
        logits, *rest = answers[0]
        return rest[:number], logits, [self._sound(gradient) for gradient in rest[number:]]

    def _logits(self, kind: str, model: Classifier, x: Tensor, context: Tensor | None) -> Tensor:
        answers: list[list[Tensor]] = []
        for size in self._sizes(kind, len(x), answers):
            copies = _copies(x, context, size, self.passes)
            with _smaller_may_fail(answers), running(self.model, x):
                answers.append([_mean([checked(model(*some), some[0], self.seen)[: len(x)] for some in copies])])
        return answers[0][0]

    def _sizes(self, kind: str, rows: int, answers: list[list[Tensor]]) -> Iterator[int]:
        """Yield how many rows to run: fewer than a quantum where the answers are bitwise the same; at first both."""
        size = 1 << (rows - 1).bit_length()
        key = kind, self.precision, size
        if not self.alike or self.compiled or not 0 < rows <= QUANTUM // 2:
            yield rows + -rows % QUANTUM
        elif key in self._fits:
            yield size if self._fits[key] else QUANTUM
        else:
            yield QUANTUM
            yield size
            self._fits[key] = len(answers) == 2 and all(map(torch.equal, *answers))

    def _sound(self, gradient: Tensor) -> Tensor:
        """Count gradients that are zero or not finite."""
        steepest = gradient.flatten(1).abs().amax(1)  # NaN where any is
        self.seen["asked"] += len(steepest)
        if bool((steepest > 0).logical_and(steepest.isfinite()).all()):
            return gradient
        broken = ~steepest.isfinite()
        self.seen["flat"] += int((steepest == 0).sum())
        self.seen["broken"] += int(broken.sum())
        return gradient.nan_to_num(0.0, 0.0, 0.0) if bool(broken.any()) else gradient


@contextlib.contextmanager
def _smaller_may_fail(answers: list[list[Tensor]]) -> Iterator[None]:
    """Ignore the error of a second, smaller batch: the model may be exported for one size of batch."""
    try:
        yield
    except UserError:
        if not answers:
            raise


def _copies(x: Tensor, context: Tensor | None, rows: int, count: int) -> Iterator[list[Tensor]]:
    """Yield copies of images and context, which the model may write to, padded with the first row."""
    missing = rows - len(x)
    for _ in range(count):
        yield [
            torch.cat([one, one[:1].detach().expand(missing, *one.shape[1:])]) if missing else one.clone()
            for one in ([x] if context is None else [x, context])
        ]


def _mean(logits: list[Tensor]) -> Tensor:
    return torch.stack(logits).mean(0) if len(logits) > 1 else logits[0]


def checked(logits: Any, images: Tensor, seen: Counter[str] | None = None) -> Tensor:
    """Return a model's logits of some images, in the images' precision; refuse what is not one finite row per image.

    A single logit z, that of class 1 under a sigmoid, becomes (0, z): softmax(0, z) = (1 − sigmoid(z), sigmoid(z)).
    ``seen`` notes the number of classes, which may not change.
    """
    count = len(images)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != count or not logits.shape[1]:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        fix = f"expected logits of shape ({count}, classes); wrap the model in a module that returns them"
        raise UserError(f"the model returned {shape} for {count} images: {fix}")
    classes = logits.shape[1] if seen is None else seen.setdefault("classes", logits.shape[1])
    if logits.shape[1] != classes:
        raise UserError(f"the model returned {classes} logits for an image, then {logits.shape[1]}: expected as many")
    if logits.is_complex() or not torch.isfinite(logits).all():
        bad = int((~torch.isfinite(logits)).any(1).sum())
        odd = "complex logits" if logits.is_complex() else f"NaN or infinite logits for {bad} of {count} images"
        fix = "look for an overflow or a division by zero in the model, and at its weights"
        raise UserError(f"the model returned {odd}: expected finite real ones; {fix}")
    return two_classes(logits.to(images.dtype))


def two_classes(logits: Tensor) -> Tensor:
    """Return the logits of both classes of a model that has one logit; other logits as they are."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1:] == (1,) else logits


@contextlib.contextmanager
def attacked(model: Classifier, *options: Any, **named: Any) -> Iterator[Oracle]:
    """Put the model in evaluation mode, without gradients of its weights, and yield its :class:`Oracle`."""
    if not isinstance(model, nn.Module):
        yield Oracle(model, *options, **named)
        return
    model = differentiable(model)
    with evaluating(model):
        oracle = Oracle(model, *options, **named)
        frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            yield oracle
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)


def logits_of(model: Classifier, images: Tensor, context: Tensor | None = None) -> Logits:
    """Return a model's logits in float32, on the CPU."""
    with attacked(model, device=images.device) as oracle:
        return oracle.by_batches(images.detach(), context, QUANTUM)
