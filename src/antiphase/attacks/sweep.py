"""Attacks one after the other, each on the samples that are still robust, at one ε or at several."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, validated
from antiphase.attacks.engine import oracle, search
from antiphase.attacks.engine.checks import black_box_wins, check_targets, falling_asr
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

AttackFunction = Callable[..., AttackResult]
Nesting = Literal["up", "down", "off"]
Positions = Int64[Tensor, " some"]
Piece = tuple[Positions, AttackResult]  # the result of a stage for the samples at some positions, at one ε
_PASSES = ("forwards", "backwards")


@dataclass(frozen=True)
class Stage:
    """One attack of an ensemble."""

    name: str  # of the attack
    attack: AttackFunction  # of (model, images, labels, threat) and keyword arguments
    settings: dict[str, Any] = field(default_factory=dict)  # its keyword arguments
    nearest: bool = False  # whether it looks for the nearest adversarial example: one search serves every ε
    black_box: bool = False  # whether it uses no gradients


@dataclass(frozen=True)
class Ensemble:
    """Attacks in order, and the most classes that a model may tell apart for all of them to be able to attack it."""

    name: str
    stages: tuple[Stage, ...]
    most_classes: int | None = None

    @property
    def minimal(self) -> bool:
        """Whether it only looks for the nearest adversarial example, so that ε plays no part in the search."""
        return len(self.stages) == 1 and self.stages[0].nearest

    def check(self, model: oracle.Classifier, images: Tensor, context: Tensor | None = None) -> None:
        """Ask the model about the first image, and its context if any, before hours are spent on the first stages.

        Raises:
            UserError: There are no images, the model has too many classes, or fewer than a stage has targets.
        """
        if not len(images):
            raise UserError(f"images of shape {tuple(images.shape)}: expected at least one")
        most = self.most_classes
        targets = [count for stage in self.stages if (count := stage.settings.get("targets"))]
        if not (most or targets):
            return
        classes = oracle.logits_of(model, images[:1], None if context is None else context[:1]).shape[1]
        for count in targets:
            check_targets(count, classes)
        if classes > (most or classes):
            takes = f"{self.name} takes at most {most} classes (untargeted FAB needs a gradient of each)"
            raise UserError(f"{takes} and the model has {classes}: use the standard version")


@validated
def sweep(
    attack: AttackFunction | Ensemble,
    model: oracle.Classifier,
    images: search.Images,
    labels: search.Labels,
    threat: Threat,
    eps: Iterable[Annotated[float, ANY_NUMBER]],
    *,
    nested: Nesting = "up",
    settings: dict[str, Any] | None = None,
    **run: Unpack[search.RunOptions],
) -> list[AttackResult]:
    """Attack at several ε; return one result for each, ε rising.

    - ``nested="up"``: a sample broken at one ε counts as broken at every larger one, by the same image and at no
      further cost; only robust samples are attacked at the next ε, and an attack that looks for the nearest adversarial
      example runs once for all ε.
    - ``nested="down"``: starts at the largest ε and retries only the broken samples at the next smaller one: faster if
      most samples are robust, but a success that only a search in the smaller ball would find is missed.
    - ``nested="off"``: independent runs at each ε (``dev/attack-engine.md`` compares the three).

    A result's ``forwards``, ``backwards`` and ``seconds`` are those spent at its own ε. ``threat`` gives norm and
    bounds, ``settings`` the keyword arguments of an attack function.

    Raises:
        UserError: There is no ε, or as the attack does.
    """
    if isinstance(attack, Ensemble) and settings:
        raise UserError(f"settings {', '.join(settings)}: an ensemble's are those of its stages")
    ensemble = attack if isinstance(attack, Ensemble) else Ensemble("", (Stage("", attack, settings or {}),))
    if not (budgets := sorted(set(eps))):
        raise UserError("eps (): expected at least one budget")
    if (options := search.read_options(run, ensemble.name)).goal is not None:
        raise UserError("goal: not for ensembles and sweeps; attack with pgd, apgd, fab or square at each ε")
    down = nested == "down" and not ensemble.minimal
    if down and options.on_finished is not None:
        raise UserError("on_finished: not told of a sweep that goes down; use nested='up'")
    ensemble.check(model, images, options.context)
    ids = torch.arange(len(images)) if options.ids is None else options.ids.cpu()
    carries = nested != "off" and not down
    before: AttackResult | None = None  # at the ε before, in the order in which they are attacked
    results: list[AttackResult] = []
    below: dict[int, Piece] = {}  # by stage, at the ε before
    for budget in reversed(budgets) if down else budgets:
        here, whole, left = replace(threat, eps=budget), None, torch.arange(len(images))
        if before is not None and down:  # samples that are robust need no attack at a smaller ε
            clean = dict(prediction=before.clean_prediction.clone(), adversarial=images.detach().cpu().clone())
            zeros = {name: torch.zeros_like(getattr(before, name)) for name in ("success", "distance")}
            whole, left = _carried(before, here, **clean, **zeros), before.success.nonzero().flatten()
        elif before is not None and carries:
            whole, left = _carried(before, here), (~before.success).nonzero().flatten()
        pieces: dict[int, Piece] = {}
        count = len(left)
        for number, stage in enumerate(ensemble.stages):
            if not len(left):
                break
            if carries and stage.nearest and number in below:
                positions, part = below[number]
                part = _within(_carried(part.take(torch.searchsorted(positions, left)), here))
            else:
                # one search at infinite ε, of which each ε counts its share
                endless = carries and ensemble.minimal
                stage_threat = replace(threat, eps=math.inf) if endless else here
                how: dict[str, Any] = {**run, "ids": ids[left]}
                how.pop("on_finished", None)
                if how.get("progress") is True and stage.name:
                    how["progress"] = stage.name
                if how.get("context") is not None:
                    how["context"] = how["context"][left]
                known = None if labels is None else labels[left]
                part = stage.attack(model, images[left], known, stage_threat, **(stage.settings | how))
                labels = part.label if labels is None else labels  # the first call is given all samples
                part = _within(replace(part, threat=here)) if endless else part
            pieces[number] = left, part
            whole = _merged(whole, part, left, here)
            if options.on_finished is not None:
                options.on_finished(left if number + 1 == len(ensemble.stages) else left[part.success], whole.arrays)
            left = left[~part.success]
        before = _concluded(ensemble, whole, pieces, count if down else len(images), before if carries else None)
        results.append(before)
        below = pieces
    results.sort(key=lambda result: result.threat.eps)
    worse = falling_asr(budgets, [result.asr for result in results])
    return [*results[:-1], replace(results[-1], warnings=(*results[-1].warnings, *worse))]


def _concluded(
    ensemble: Ensemble,
    whole: AttackResult | None,
    pieces: dict[int, Piece],
    count: int,
    before: AttackResult | None = None,
) -> AttackResult:
    """Say which stages the verdicts on ``count`` samples come from; what those of ``before`` broke counts as theirs."""
    assert whole is not None
    parts = [
        replace(part, threat=whole.threat, attack=ensemble.stages[number].name or part.attack)
        for number, (_, part) in pieces.items()
    ]
    warnings = [warning for part in parts for warning in part.warnings]
    if len(ensemble.stages) > 1:
        felled = Counter(before.settings["felled"] if before else {})
        felled.update({part.attack: int(part.success.sum()) for part in parts})
        black_box = {stage.name: felled[stage.name] for stage in ensemble.stages if stage.black_box}
        warnings += black_box_wins(int(whole.success.sum()), black_box, count)
        whole = replace(whole, attack=ensemble.name, settings={"felled": dict(felled)})
    seconds = sum((part.seconds for part in parts), 0.0)
    return replace(whole, seconds=seconds, stages=tuple(parts), warnings=tuple(dict.fromkeys(warnings)))


def _within(part: AttackResult) -> AttackResult:
    """Count the nearest examples that were found within ε."""
    near = part.distance <= part.threat.eps + part.threat.slack(part.adversarial)
    return replace(part, success=(part.prediction != part.label) & near)


def _carried(result: AttackResult, threat: Threat, **changes: Any) -> AttackResult:
    """Return what is known at another ε at no cost."""
    none: dict[str, Any] = dict.fromkeys(_PASSES, torch.zeros_like(result.forwards))
    return replace(result, threat=threat, warnings=(), seconds=0.0, **none, **changes)


def _merged(whole: AttackResult | None, part: AttackResult, positions: Positions, threat: Threat) -> AttackResult:
    """Write a stage's verdicts over those of the samples that it was given, and add its passes to theirs."""
    if whole is None:
        return replace(part, threat=threat)
    arrays: dict[str, Any] = {name: tensor.clone() for name, tensor in whole.arrays.items()}
    for name, tensor in part.arrays.items():
        arrays[name][positions] = tensor + arrays[name][positions] if name in _PASSES else tensor
    return replace(whole, settings=part.settings, **arrays)
