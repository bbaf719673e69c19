"""The model as the attacks see it: evaluation mode, padded batches, every pass counted by sample."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attacks.rows import Rows
from antiphase.errors import UserError

Classifier = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor], Tensor]  # from the rows' logits to one number a row

# A matrix product may round a row differently in other company. With MKL told to be strict (see the package's
# __init__) and batches padded to a multiple of this many rows, rows came out bitwise the same for every batch
# size and order tried; without either they did not (dev/LOG.md).
QUANTUM = 16


class Oracle:
    """Answers an attack's questions about a model, in float32 or the images' own type.

    Args:
        model: from images ``(batch, C, H, W)`` to logits ``(batch, classes)``.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = torch.device("cpu") if parameter is None else parameter.device

    def predict(self, x: Float[Tensor, "batch *shape"]) -> Int64[Tensor, " batch"]:
        """Return the predicted classes; not counted."""
        return self.logits(x).argmax(1)

    def logits(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits, without a graph; not counted."""
        with torch.no_grad():
            return _checked(self.model(_pad(x)))[: len(x)]

    def forward(self, rows: Rows, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of one image a row, without a graph; count a forward pass for each row."""
        rows["forwards"] = rows["forwards"] + 1
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
        with torch.enable_grad():
            logits = _checked(self.model(x))[:count]
            for index, loss in enumerate(losses):
                value = loss(logits)
                more = index + 1 < len(losses)
                gradients.append(torch.autograd.grad(value.sum(), x, retain_graph=more)[0][:count])
                values.append(value.detach())
        rows["forwards"] = rows["forwards"] + 1
        rows["backwards"] = rows["backwards"] + len(losses)
        return values, logits.detach(), gradients


def _pad(x: Tensor) -> Tensor:
    """Repeat the first row until the number of rows is a multiple of the quantum."""
    missing = -len(x) % QUANTUM
    return torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) if missing else x


def _checked(logits: Tensor) -> Tensor:
    if logits.ndim != 2:
        raise UserError(
            f"the model returned a tensor of shape {tuple(logits.shape)}: expected (batch, classes)"
        )
    if not torch.isfinite(logits).all():
        raise UserError(
            "the model returned NaN or infinite logits; the attack stopped, finished samples are kept"
        )
    return logits


@contextlib.contextmanager
def attacked(model: Classifier) -> Iterator[Oracle]:
    """Put the model in evaluation mode and spare its weights' gradients while it is under attack."""
    if not isinstance(model, nn.Module):
        yield Oracle(model)
        return
    modes = [(module, module.training) for module in model.modules()]
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield Oracle(model)
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter in frozen:
            parameter.requires_grad_(True)
