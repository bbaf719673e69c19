"""The model as the attacks see it: evaluation mode, padded batches, every pass counted by sample."""

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
from antiphase.precision import Precision

Classifier = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor], Tensor]  # from the rows' logits to one number a row

# A matrix product may round a row differently in other company. Multiples of this many rows, with MKL told to be
# strict (see the package's __init__), kept rows bitwise the same on some processors and nearly so on others
# (dev/attack-engine.md).
QUANTUM = 16
PIXELS = 2**21  # of the images asked about at once, which keeps a ViT-B at 224×224 to about 2 GB


class Oracle:
    """Answers an attack's questions about a model: the search's in its own precision, verdicts in float32.

    The search asks for no more than the logits (:func:`~antiphase.attention.modes.outputs_only`); verdicts come from
    the model as it is.

    Args:
        model: from images ``(batch, C, H, W)`` to logits ``(batch, classes)``.
        precision: of the search's passes.
        compile: whether the search's passes go through ``torch.compile``.
        passes: of the model for one answer, the mean of their logits; each is counted.
        device: where a model without parameters is asked.

    Attributes:
        seen: how many gradients were ``"asked"`` for, one a row, and how many of them were ``"flat"`` (zero everywhere)
            or ``"broken"`` (with a NaN or an infinity, which count as zero).
    """

    def __init__(
        self, model: Classifier, precision: Precision = "float32", compile: bool = False, passes: int = 1,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.model, self.passes = model, passes
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = (device or torch.device("cpu")) if parameter is None else parameter.device
        self.weights = None if parameter is None else parameter.dtype
        self.precision = precision
        self._searched: Classifier = torch.compile(model, dynamic=True) if compile else model
        self.seen: Counter[str] = Counter()

    def in_float32(self) -> Self:
        """Return an oracle whose search is in float32 and not compiled; what is seen counts for both."""
        exact = copy.copy(self)
        exact.precision, exact._searched = "float32", self.model
        return exact

    def verdict(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of the model as it is, in float32; not counted."""
        with torch.no_grad():
            padded = _pad(x)
            return self._ask(self.model, padded)[: len(x)]

    def predict(self, x: Float[Tensor, "batch *shape"]) -> Int64[Tensor, " batch"]:
        """Return the predicted classes in float32; not counted."""
        return self.verdict(x).argmax(1)

    def logits(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits in the search's precision, without a graph; not counted."""
        with torch.no_grad():
            return self._search(_pad(x))[: len(x)]

    def forward(self, rows: Rows, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of one image a row, without a graph; count a forward pass for each row."""
        rows["forwards"] = rows["forwards"] + self.passes
        return self.logits(x)

    def gradient(
        self, rows: Rows, x: Float[Tensor, "batch *shape"], loss: Loss
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch classes"], Float[Tensor, "batch *shape"]]:
        """Return the loss of one image a row, the logits and the gradient; count one pass each way."""
        (values,), logits, (gradient,) = self.gradients(rows, x, [loss])
        return values, logits, gradient

    def gradients(
        self, rows: Rows, x: Float[Tensor, "batch *shape"], losses: Sequence[Loss]
    ) -> tuple[
        list[Float[Tensor, " batch"]], Float[Tensor, "batch classes"], list[Float[Tensor, "batch *shape"]]
    ]:
        """Return several losses, the logits and each loss's gradient: one forward, one backward a loss."""
        count = len(x)
        x = _pad(x).detach().requires_grad_(True)
        values: list[Tensor] = []
        gradients: list[Tensor] = []
        with torch.enable_grad(), outputs_only():  # backward too: what is checkpointed is computed again
            logits = self._search(x)[:count]
            if torch.is_inference_mode_enabled():
                raise UserError("no gradients inside torch.inference_mode(): call the attack outside of it")
            if not logits.requires_grad:
                raise UserError(
                    "the model's logits have no gradient by its images: use square, which needs none"
                )
            for index, loss in enumerate(losses):
                value = one_each(loss(logits), logits)
                more = index + 1 < len(losses)
                (gradient,) = torch.autograd.grad(value.sum(), x, retain_graph=more, materialize_grads=True)
                gradients.append(self._sound(gradient[:count]))
                values.append(value.detach())
        rows["forwards"] = rows["forwards"] + self.passes
        rows["backwards"] = rows["backwards"] + self.passes * len(losses)
        return values, logits.detach(), gradients

    def _search(self, x: Tensor) -> Tensor:
        low = self.precision != "float32"
        with (
            outputs_only(),
            torch.autocast(x.device.type, dtype=torch.bfloat16) if low else contextlib.nullcontext(),
        ):
            return self._ask(self._searched, x)

    def _ask(self, model: Classifier, x: Tensor) -> Tensor:
        try:
            first, *others = (_checked(model(x), x) for _ in range(self.passes))
        except RuntimeError as error:
            if self.weights in (None, x.dtype):
                raise
            raise UserError(
                f"the model cannot take images of {x.dtype} by its weights of {self.weights}: convert one of them "
                f"(images.float(), model.double()); it said: {str(error).splitlines()[0]}"
            ) from error
        return torch.stack([first, *others]).mean(0) if others else first

    def _sound(self, gradient: Tensor) -> Tensor:
        """Take note of gradients that lead nowhere."""
        steepest = gradient.detach().flatten(1).abs().amax(1)  # NaN where any is
        self.seen["asked"] += len(steepest)
        if bool((steepest > 0).logical_and(steepest.isfinite()).all()):
            return gradient
        broken = ~steepest.isfinite()
        self.seen["flat"] += int((steepest == 0).sum())
        self.seen["broken"] += int(broken.sum())
        return gradient.nan_to_num(0.0, 0.0, 0.0) if bool(broken.any()) else gradient


def _pad(x: Tensor) -> Tensor:
    """Repeat the first row until their number is a multiple of the quantum; a copy, which a model may write to."""
    missing = -len(x) % QUANTUM
    return torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) if missing else x.clone()


def _checked(logits: Any, x: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returned {shape}: expected logits of shape ({len(x)}, classes)")
    if not torch.isfinite(logits).all():
        raise UserError("the model returned NaN or infinite logits: the attack stopped")
    return logits.to(x.dtype)


@contextlib.contextmanager
def attacked(
    model: Classifier, precision: Precision = "float32", compile: bool = False, passes: int = 1,
    device: torch.device | None = None,
) -> Iterator[Oracle]:  # fmt: skip
    """Put the model in evaluation mode and spare its weights' gradients while it is under attack.

    The arguments are those of :class:`Oracle`.
    """
    if not isinstance(model, nn.Module):
        yield Oracle(model, precision, compile, passes, device)
        return
    modes = [(module, module.training) for module in model.modules()]
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield Oracle(model, precision, compile, passes, device)
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter in frozen:
            parameter.requires_grad_(True)
