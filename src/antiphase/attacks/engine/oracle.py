"""The model under attack: in evaluation mode, with padded batches and passes counted per sample."""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attacks.objectives import one_each
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
    """Evaluate a model for an attack: the search in its own precision, verdicts in float32.

    The search computes only the logits (:func:`~antiphase.attention.modes.outputs_only`); verdicts use the unmodified
    model.

    Args:
        model: model from images ``(batch, C, H, W)`` to logits ``(batch, classes)``; a second argument is the context
            of each image, where there is one.
        precision: precision of the search.
        compile: whether the search uses ``torch.compile``.
        passes: forward passes whose logits are averaged; each is counted.
        device: device of a model without parameters.

    Attributes:
        alike: whether batches of 1, 2, 4 and 8 rows are used where the first of each kind gave bitwise what it gives
            padded to 16; for models whose rows do not depend on each other.
        seen: number of gradients that were ``"asked"`` for, and of those that were ``"flat"`` (zero everywhere) or
            ``"broken"`` (with NaN or infinite values, set to zero).
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
        self._searched: Classifier = torch.compile(model, dynamic=True) if compile else model
        self.seen: Counter[str] = Counter()
        self.alike = False
        self._fits: dict[tuple[str, str, int], bool] = {}  # by kind of pass, precision and rows

    def in_float32(self) -> Self:
        """Return an oracle with a float32 search that is not compiled; both share the counts in ``seen``."""
        exact = copy.copy(self)
        exact.precision, exact.compiled, exact._searched = "float32", False, self.model
        return exact

    def verdict(
        self, x: Float[Tensor, "batch *shape"], context: Tensor | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits of the unmodified model in float32; not counted."""
        with torch.no_grad(), exact_float32(x.device):
            return self._logits("verdict", self.model, x, context)

    def predict(self, x: Float[Tensor, "batch *shape"]) -> Int64[Tensor, " batch"]:
        """Return the predicted classes in float32; not counted."""
        return self.verdict(x).argmax(1)

    def logits(
        self, x: Float[Tensor, "batch *shape"], context: Tensor | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits in the search's precision, without a graph; not counted."""
        with torch.no_grad(), outputs_only(), autocast(x.device, self.precision):
            return self._logits("search", self._searched, x, context)

    def forward(
        self, rows: dict[str, Tensor], x: Float[Tensor, "batch *shape"]
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits without a graph; count one forward pass per row."""
        rows["forwards"] = rows["forwards"] + self.passes
        return self.logits(x, rows.get("context"))

    def gradients(
        self, rows: dict[str, Tensor], x: Float[Tensor, "batch *shape"], losses: Sequence[Loss]
    ) -> tuple[
        list[Float[Tensor, " batch"]], Float[Tensor, "batch classes"], list[Float[Tensor, "batch *shape"]]
    ]:
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
                            passes.append(checked(self._searched(*given), given[0])[: len(x)])
                    logits = _mean(passes)
                    if torch.is_inference_mode_enabled():
                        raise UserError(
                            "attack inside torch.inference_mode(): expected gradients; call the attack outside of it"
                        )
                    if not logits.requires_grad:
                        raise UserError(
                            "the logits do not depend differentiably on the images: use square, which needs no "
                            "gradients"
                        )
                    values: list[Tensor] = []
                    gradients: list[Tensor] = []
                    for index, loss in enumerate(losses):
                        values.append(one_each(loss(logits), logits))
                        more = index + 1 < number
                        with running(self.model, x):
                            gradients += torch.autograd.grad(
                                values[-1].sum(), leaf, retain_graph=more, materialize_grads=True
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
                answers.append([_mean([checked(model(*some), some[0])[: len(x)] for some in copies])])
        return answers[0][0]

    def _sizes(self, kind: str, rows: int, answers: list[list[Tensor]]) -> Iterator[int]:
        """Yield how many rows to run: as ``QUANTUM`` wants, or fewer where that is known to give bitwise the same.

        Where it is not known yet, yield both, and compare the answers.
        """
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


def checked(logits: Any, images: Tensor) -> Tensor:
    """Return a model's logits of some images, in the images' precision.

    Raises:
        UserError: They are not one finite row per image.
    """
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(
            f"the model returned {shape} for {len(images)} images: expected logits, one tensor of shape "
            f"({len(images)}, classes); wrap the model in a module that returns them"
        )
    if not torch.isfinite(logits).all():
        raise UserError("the model returned NaN or infinite logits: expected finite ones; check its weights")
    return logits.to(images.dtype)


@contextlib.contextmanager
def attacked(
    model: Classifier,
    precision: Precision = "float32",
    compile: bool = False,
    passes: int = 1,
    device: torch.device | None = None,
) -> Iterator[Oracle]:
    """Put the model in evaluation mode, without gradients of its weights, for the duration of an attack.

    See :class:`Oracle` for the arguments.
    """
    if not isinstance(model, nn.Module):
        yield Oracle(model, precision, compile, passes, device)
        return
    model = differentiable(model)
    with evaluating(model):
        oracle = Oracle(model, precision, compile, passes, device)
        frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            yield oracle
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)


def logits_of(model: Classifier, images: Tensor) -> Float[Tensor, "samples classes"]:
    """Return a model's logits in float32, on the CPU."""
    with attacked(model, device=images.device) as oracle:
        return torch.cat(
            [oracle.verdict(some.to(oracle.device)).cpu() for some in images.detach().split(QUANTUM)]
        )
