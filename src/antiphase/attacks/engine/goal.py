"""Attacks towards a class: the model is seen as two logits, the largest of the other classes and the goal's."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attacks.engine.options import Run, RunOptions
from antiphase.attacks.engine.oracle import QUANTUM, Classifier, attacked, checked
from antiphase.attacks.result import AttackResult
from antiphase.errors import UserError


class Towards(nn.Module):
    """The largest logit of the classes that are not an image's goal, and the logit of its goal.

    The prediction changes from 0 to 1 if and only if the model predicts the goal.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, images: Float[Tensor, "batch *shape"], goal: Int64[Tensor, " batch"]
    ) -> Float[Tensor, "batch 2"]:
        logits = checked(self.model(images), images)
        others = logits.scatter(1, goal[:, None], -torch.inf).amax(1)
        return torch.stack([others, logits.gather(1, goal[:, None]).squeeze(1)], 1)


def run_towards(
    search: Callable[[Classifier, Tensor, RunOptions], AttackResult],
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    chosen: Run,
    options: RunOptions,
) -> AttackResult:
    """Run a search that succeeds where the model predicts the goal; the result's label is the clean prediction.

    Args:
        search: from a model of two logits, labels and options to its result.
        model: classifier.
        images: clean images.
        labels: must be None.
        chosen: validated options; the goal is one class, or one for each sample.
        options: the options as given.

    Raises:
        UserError: The goal is not a class of the model, or something is given that excludes a goal.
    """
    for name, other in (("labels", labels), ("context", chosen.context), ("on_finished", chosen.on_finished)):
        if other is not None:
            raise UserError(f"goal and {name}: they exclude each other; expected {name}=None")
    goal = torch.as_tensor(chosen.goal).detach().cpu()
    if goal.dtype not in (torch.int64, torch.int32) or goal.shape not in ((), (len(images),)):
        raise UserError(
            f"goal of shape {tuple(goal.shape)} and {goal.dtype}: expected one class, or one integer per sample, "
            f"({len(images)},)"
        )
    goal = goal.long().expand(len(images)).clone()
    clean = _logits(model, images)
    if not 0 <= int(goal.min()) <= int(goal.max()) < clean.shape[1]:
        raise UserError(
            f"goal from {int(goal.min())} to {int(goal.max())}: the model tells classes 0 to {clean.shape[1] - 1} apart"
        )
    result = search(Towards(model), torch.zeros_like(goal), {**options, "goal": None, "context": goal})
    prediction = clean.argmax(1)
    return replace(
        result,
        label=prediction,
        clean_prediction=prediction,
        prediction=_logits(model, result.adversarial).argmax(1),
        settings=result.settings | {"goal": goal.tolist()},
    )


def _logits(model: Classifier, images: Tensor) -> Float[Tensor, "samples classes"]:
    with attacked(model, device=images.device) as oracle:
        return torch.cat(
            [oracle.verdict(some.to(oracle.device)).cpu() for some in images.detach().split(QUANTUM)]
        )
