"""Several attacks one after the other: each gets only the samples that are still robust."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.attacks.engine.checks import black_box_wins
from antiphase.attacks.engine.inputs import check_targets
from antiphase.attacks.engine.options import Run
from antiphase.attacks.engine.oracle import Classifier, attacked
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
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

    @property
    def black_box(self) -> list[str]:
        """Names of the stages that use no gradients."""
        return [stage.name for stage in self.stages if stage.black_box]

    def check(self, model: Classifier, images: Tensor, context: Tensor | None = None) -> None:
        """Ask the model about the first image, before hours are spent on the first stages.

        Args:
            model: classifier.
            images: clean images.
            context: what the model is given with each, if anything.

        Raises:
            UserError: for no images, and where the model has too few or too many classes.
        """
        if not len(images):
            raise UserError(f"images of shape {tuple(images.shape)}: expected at least one")
        least, most = self.least_classes, self.most_classes
        targets = [stage.settings.get("targets") for stage in self.stages]
        asks = least > 1 or most is not None or any(targets)
        if (
            not asks or not images[0].numel()
        ):  # stages that load their own images are checked on the first of those
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


class Verdicts:
    """What the stages of an ensemble have shown at one ε so far.

    Args:
        ensemble: its stages.
        threat: norm, ε and bounds.
        ids: of all samples.
        before: the result of the same stages at a smaller ε; what it broke counts as broken here too.
    """

    def __init__(
        self, ensemble: Ensemble, threat: Threat, ids: Int64[Tensor, " samples"], before: AttackResult | None
    ) -> None:
        self.ensemble, self.threat, self.ids, self.before = ensemble, threat, ids, before
        self.whole: AttackResult | None = None
        self.parts: list[AttackResult] = []  # of each stage
        self.began = time.monotonic()
        if before is not None:
            nothing = torch.zeros_like(before.forwards)
            self.whole = replace(
                before, threat=threat, forwards=nothing, backwards=nothing.clone(), stages=(), warnings=()
            )

    @property
    def robust(self) -> Int64[Tensor, " robust"]:
        """Positions of the samples that no stage has broken yet."""
        if self.whole is None:
            return torch.arange(len(self.ids))
        return (~self.whole.success).nonzero().flatten()

    def labels(self, given: Tensor | None) -> Tensor | None:
        """Return the classes that the next stage attacks: those of the stages before it, else those given."""
        return given if self.whole is None else self.whole.label

    def known(self, stage: Stage) -> AttackResult | None:
        """Return what a search for the nearest example at a smaller ε says of the robust samples here."""
        found = [part for part in self.before.stages if part.attack == stage.name] if self.before else []
        if not (stage.nearest and found):
            return None
        order = {sample: position for position, sample in enumerate(found[0].ids.tolist())}
        ids = self.ids[self.robust]
        at = torch.tensor([order[sample] for sample in ids.tolist()])
        arrays: dict[str, Any] = {name: tensor[at] for name, tensor in arrays_of(found[0]).items()}
        arrays |= {name: torch.zeros_like(arrays[name]) for name in ("forwards", "backwards")}
        return within(replace(found[0], ids=ids, warnings=(), **arrays), self.threat)

    def add(self, stage: Stage, part: AttackResult) -> AttackResult:
        """Take over what a stage says of the robust samples; return the verdicts on all samples."""
        self.parts.append(replace(part, attack=stage.name or part.attack))
        self.whole = merged(self.whole, part, self.robust, self.threat)
        return self.whole

    def result(self) -> AttackResult:
        assert self.whole is not None
        whole = concluded(self.ensemble, self.whole, self.parts, len(self.ids), self.before)
        return replace(whole, ids=self.ids, seconds=time.monotonic() - self.began)


def concluded(
    ensemble: Ensemble,
    whole: AttackResult,
    parts: list[AttackResult],
    count: int,
    before: AttackResult | None = None,
) -> AttackResult:
    """Say of the verdicts of all stages on ``count`` samples which of them they come from, and what is doubtful.

    ``before`` is the result at a smaller ε that ``whole`` continues; what its stages broke still counts as theirs.
    """
    warnings = dict.fromkeys(warning for part in parts for warning in part.warnings)  # each once
    changes: dict[str, Any] = {}
    if len(ensemble.stages) > 1:
        felled: dict[str, int] = dict(before.settings["felled"]) if before else {}
        for part in parts:
            felled[part.attack] = felled.get(part.attack, 0) + int(part.success.sum())
        black_box = {name: felled.get(name, 0) for name in ensemble.black_box}
        warnings |= dict.fromkeys(black_box_wins(int(whole.success.sum()), black_box, count))
        changes = {"attack": ensemble.name, "settings": {"felled": felled}}
    return replace(whole, **changes, stages=tuple(parts), warnings=tuple(warnings))


def title(stage: Stage, chosen: Run) -> bool | str:
    """Return what a stage's progress bar shows."""
    return stage.name if chosen.progress is True and stage.name else chosen.progress


def within(found: AttackResult, threat: Threat) -> AttackResult:
    """Count the nearest examples that were found within ε."""
    success = (found.prediction != found.label) & (
        found.distance <= threat.eps + threat.slack(found.adversarial)
    )
    return replace(found, threat=threat, success=success)


def merged(
    whole: AttackResult | None, part: AttackResult, at: Int64[Tensor, " attacked"], threat: Threat
) -> AttackResult:
    """Write a stage's verdicts over those of the samples that it was given."""
    if whole is None:
        return replace(part, threat=threat)
    arrays = {name: tensor.clone() for name, tensor in arrays_of(whole).items()}
    for name, tensor in arrays_of(part).items():
        if name in ("forwards", "backwards"):
            arrays[name][at] += tensor
        else:
            arrays[name][at] = tensor
    return replace(whole, **arrays)


def arrays_of(result: AttackResult) -> dict[str, Tensor]:
    """Return what a result holds for each sample, but for the ids."""
    names = (
        "label",
        "clean_prediction",
        "prediction",
        "success",
        "adversarial",
        "distance",
        "forwards",
        "backwards",
    )
    return {name: getattr(result, name) for name in names}
