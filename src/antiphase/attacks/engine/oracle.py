"""The model under attack: in evaluation mode, with padded batches and passes counted per sample."""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attacks.engine.rows import Rows
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
        self.model, self.passes = model, passes
        self.device = device_of(model, device or "cpu")
        self.precision: Precision = precision
        self._searched: Classifier = torch.compile(model, dynamic=True) if compile else model
        self.seen: Counter[str] = Counter()
        self.alike = False
        self._fits: dict[tuple[str, str, int], bool] = {}  # by kind of pass, precision and rows

    def in_float32(self) -> Self:
        """Return an oracle with a float32 search that is not compiled; both share the counts in ``seen``."""
        exact = copy.copy(self)
        exact.precision, exact._searched = "float32", self.model
        return exact

    def verdict(
        self, x: Float[Tensor, "batch *shape"], context: Tensor | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits of the unmodified model in float32; not counted."""
        with torch.no_grad(), exact_float32(x.device):
            return self._padded("verdict", x, lambda rows: [self._ask(self.model, x, context, rows)])[0]

    def predict(self, x: Float[Tensor, "batch *shape"]) -> Int64[Tensor, " batch"]:
        """Return the predicted classes in float32; not counted."""
        return self.verdict(x).argmax(1)

    def logits(
        self, x: Float[Tensor, "batch *shape"], context: Tensor | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Return the logits in the search's precision, without a graph; not counted."""
        with torch.no_grad(), outputs_only(), self._autocast(x):
            return self._padded("search", x, lambda rows: [self._ask(self._searched, x, context, rows)])[0]

    def forward(self, rows: Rows, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits without a graph; count one forward pass per row."""
        rows["forwards"] = rows["forwards"] + self.passes
        return self.logits(x, rows.get("context"))

    def gradients(
        self, rows: Rows, x: Float[Tensor, "batch *shape"], losses: Sequence[Loss]
    ) -> tuple[
        list[Float[Tensor, " batch"]], Float[Tensor, "batch classes"], list[Float[Tensor, "batch *shape"]]
    ]:
        """Return each loss, the logits and the gradient of each loss.

        Count for each row one forward pass, and one backward pass for each loss.
        """
        number = len(losses)

        def run(padded: int) -> list[Tensor]:
            leaf = x.detach().requires_grad_(True)
            values: list[Tensor] = []
            gradients: list[Tensor] = []
            with self._autocast(x):
                logits = self._ask(self._searched, leaf, rows.get("context"), padded)
            if torch.is_inference_mode_enabled():
                raise UserError(
                    "attack inside torch.inference_mode(): expected gradients; call the attack outside of it"
                )
            if not logits.requires_grad:
                raise UserError(
                    "the logits do not depend differentiably on the images: use square, which needs no gradients"
                )
            for index, loss in enumerate(losses):
                value = one_each(loss(logits), logits)
                more = index + 1 < number
                with running(self.model, x):
                    gradients += torch.autograd.grad(
                        value.sum(), leaf, retain_graph=more, materialize_grads=True
                    )
                values.append(value.detach())
            return [logits.detach(), *values, *gradients]

        with torch.enable_grad(), outputs_only():  # backward too: checkpointed activations are recomputed
            logits, *rest = self._padded("gradient", x, run)
        rows["forwards"] = rows["forwards"] + self.passes
        rows["backwards"] = rows["backwards"] + self.passes * number
        return rest[:number], logits, [self._sound(gradient) for gradient in rest[number:]]

    def _padded(self, kind: str, x: Tensor, run: Callable[[int], list[Tensor]]) -> list[Tensor]:
        """Run with as many rows as ``QUANTUM`` wants, or with fewer that are known to give bitwise the same."""
        key = kind, self.precision, 1 << (len(x) - 1).bit_length()
        if not self.alike or self._searched is not self.model or not 0 < len(x) <= QUANTUM // 2:
            return run(len(x) + -len(x) % QUANTUM)
        if self._fits.get(key):
            return run(key[2])
        results = run(QUANTUM)
        if key not in self._fits:
            try:
                self._fits[key] = all(map(torch.equal, run(key[2]), results))
            except UserError:  # such as exported for one size of batch
                self._fits[key] = False
        return results

    def _autocast(self, x: Tensor) -> contextlib.AbstractContextManager[object]:
        return autocast(x.device, self.precision)

    def _ask(self, model: Classifier, x: Tensor, context: Tensor | None, rows: int) -> Tensor:
        answers: list[Tensor] = []
        for _ in range(self.passes):
            # copies, which the model may write to
            given = [_pad(one, rows) for one in ((x,) if context is None else (x, context))]
            with running(self.model, x):
                logits = model(*given)
            answers.append(checked(logits, given[0])[: len(x)])
        return torch.stack(answers).mean(0) if self.passes > 1 else answers[0]

    def _sound(self, gradient: Tensor) -> Tensor:
        """Count gradients that are zero or not finite."""
        steepest = gradient.detach().flatten(1).abs().amax(1)  # NaN where any is
        self.seen["asked"] += len(steepest)
        if bool((steepest > 0).logical_and(steepest.isfinite()).all()):
            return gradient
        broken = ~steepest.isfinite()
        self.seen["flat"] += int((steepest == 0).sum())
        self.seen["broken"] += int(broken.sum())
        return gradient.nan_to_num(0.0, 0.0, 0.0) if bool(broken.any()) else gradient


def _pad(x: Tensor, rows: int) -> Tensor:
    """Return a copy with this many rows, padded with the first."""
    missing = rows - len(x)
    return torch.cat([x, x[:1].detach().expand(missing, *x.shape[1:])]) if missing else x.clone()


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
