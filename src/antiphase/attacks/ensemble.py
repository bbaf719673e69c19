"""Several attacks one after the other, as data; :mod:`antiphase.attacks.sweep` runs them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from antiphase.attacks.engine.checks import check_targets
from antiphase.attacks.engine.oracle import Classifier, attacked
from antiphase.attacks.result import AttackResult
from antiphase.errors import UserError

AttackFunction = Callable[..., AttackResult]


@dataclass(frozen=True)
class Stage:
    """One attack of an ensemble.

    Attributes:
        name: of the attack.
        attack: function of (model, images, labels, threat) and keyword arguments; ``budgets``, if it is one of them,
            is an ε for each sample.
        settings: its keyword arguments.
        nearest: whether it looks for the nearest adversarial example whatever ε is, so that one search
            serves every ε.
        black_box: whether it uses no gradients.
    """

    name: str
    attack: AttackFunction
    settings: dict[str, Any] = field(default_factory=dict)
    nearest: bool = False
    black_box: bool = False


@dataclass(frozen=True)
class Ensemble:
    """Attacks that are run in this order, each on the samples that those before it did not break.

    Attributes:
        name: of the whole.
        stages: the attacks.
        least_classes, most_classes: that a model may tell apart for all of them to be able to attack it.
    """

    name: str
    stages: tuple[Stage, ...]
    least_classes: int = 1
    most_classes: int | None = None

    @property
    def minimal(self) -> bool:
        """Whether it only looks for the nearest adversarial example, so that ε plays no part in the search."""
        return len(self.stages) == 1 and self.stages[0].nearest

    def check(self, model: Classifier, images: Tensor, context: Tensor | None = None) -> None:
        """Ask the model about the first image, and its context if any, before hours are spent on the first stages.

        Raises:
            UserError: for no images, and where the model has too few or too many classes.
        """
        if not len(images):
            raise UserError(f"images of shape {tuple(images.shape)}: expected at least one")
        least, most = self.least_classes, self.most_classes
        targets = [stage.settings.get("targets") for stage in self.stages]
        needed = least > 1 or most is not None or any(targets)
        if (
            not needed or not images[0].numel()
        ):  # stages that load their own images: checked on the first of those
            return
        with attacked(model, device=images.device) as oracle:
            given = None if context is None else context[:1].to(oracle.device)
            classes = oracle.verdict(images[:1].detach().to(oracle.device), given).shape[1]
        for count in targets:
            check_targets(count, classes)
        if classes < least:
            raise UserError(
                f"{self.name} needs at least {least} classes (for DLR) and the model has {classes}: use apgd, fab and "
                "square one by one"
            )
        if most is not None and classes > most:
            raise UserError(
                f"{self.name} takes at most {most} classes (untargeted FAB needs a gradient of each) and the model has "
                f"{classes}: use the standard version"
            )
