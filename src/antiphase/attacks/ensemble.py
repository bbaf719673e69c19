"""Several attacks one after the other: each gets only the samples that still stand."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.attacks.engine.checks import black_box_wins
from antiphase.attacks.engine.options import Run, RunOptions, read_options
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
    """

    name: str
    attack: AttackFunction
    settings: dict[str, Any] = field(default_factory=dict)
    nearest: bool = False


@dataclass(frozen=True)
class Ensemble:
    """Attacks that are run in this order, each on the samples that those before it left standing.

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

    def check(self, model: Classifier, images: Tensor) -> None:
        """Ask the model about the first image, before hours are spent on the first stages.

        Raises:
            UserError: for no images, and where the model has too few or too many classes.
        """
        if not len(images):
            raise UserError(f"images of shape {tuple(images.shape)}: expected at least one")
        least, most = self.least_classes, self.most_classes
        if least == 1 and most is None:
            return
        with attacked(model, device=images.device) as oracle:
            classes = oracle.verdict(images[:1].detach().to(oracle.device)).shape[1]
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


def run_ensemble(
    ensemble: Ensemble, model: Classifier, images: Tensor, labels: Tensor | None, threat: Threat, *,
    before: AttackResult | None = None, unbounded: bool = False, run: RunOptions,
) -> AttackResult:  # fmt: skip
    """Run every stage on the samples that those before it left standing.

    Args:
        ensemble: its stages, in order.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, ε and bounds.
        before: the result of the same stages at a smaller ε, whose fallen samples stay fallen.
        unbounded: whether to search at infinite ε and count what lies within the threat's.
        run: seed, batch size and the like; ``on_finished`` is told of samples that fell, and of those that
            stand after the last stage.
    """
    began = time.monotonic()
    ensemble.check(model, images)
    chosen = read_options(run, ensemble.name or ensemble.stages[0].attack.__name__)
    ids = torch.arange(len(images)) if chosen.ids is None else chosen.ids.cpu()
    whole = _carried(before, threat)
    parts: list[AttackResult] = []
    for number, stage in enumerate(ensemble.stages):
        standing = _standing(whole, len(images))
        if not len(standing):
            break
        given = labels if whole is None else whole.label
        done_before = (
            next((part for part in before.stages if part.attack == stage.name), None) if before else None
        )
        if stage.nearest and done_before is not None and whole is not None:
            part = _nearer(done_before, whole.ids[standing], threat)
        else:
            here: RunOptions = {
                **run, "ids": ids[standing], "progress": title(stage, chosen), "on_finished": None,
            }  # fmt: skip
            some = None if given is None else given[standing]
            asked = replace(threat, eps=math.inf) if unbounded else threat
            part = stage.attack(model, images[standing], some, asked, **stage.settings, **here)
            part = _within(part, threat) if unbounded else part
        parts.append(replace(part, attack=stage.name or part.attack))
        whole = merged(whole, part, standing, threat)
        if chosen.on_finished is not None:
            last = number == len(ensemble.stages) - 1
            over = standing if last else standing[whole.success[standing]]
            chosen.on_finished(over, arrays_of(whole))
    assert whole is not None
    whole = concluded(ensemble, whole, parts, len(ids), before)
    return replace(whole, ids=ids, seconds=time.monotonic() - began)


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
        black_box = felled.get("square", 0)
        warnings |= dict.fromkeys(black_box_wins(int(whole.success.sum()) - black_box, black_box, count))
        changes = {"attack": ensemble.name, "settings": {"felled": felled}}
    return replace(whole, **changes, stages=tuple(parts), warnings=tuple(warnings))


def title(stage: Stage, chosen: Run) -> bool | str:
    """Return what a stage's progress bar shows."""
    return stage.name if chosen.progress is True and stage.name else chosen.progress


def _standing(whole: AttackResult | None, count: int) -> Int64[Tensor, " standing"]:
    return torch.arange(count) if whole is None else (~whole.success).nonzero().flatten()


def _carried(before: AttackResult | None, threat: Threat) -> AttackResult | None:
    """Return what a smaller ε has shown, with nothing spent yet at this one."""
    if before is None:
        return None
    nothing = torch.zeros_like(before.forwards)
    return replace(before, threat=threat, forwards=nothing, backwards=nothing.clone(), stages=(), warnings=())


def _nearer(known: AttackResult, ids: Tensor, threat: Threat) -> AttackResult:
    """Return a nearest-example search's verdicts at a larger ε, without searching again."""
    order = {int(sample): position for position, sample in enumerate(known.ids.tolist())}
    at = torch.tensor([order[int(sample)] for sample in ids.tolist()])
    arrays: dict[str, Any] = {name: tensor[at] for name, tensor in arrays_of(known).items()}
    arrays |= {name: torch.zeros_like(arrays[name]) for name in ("forwards", "backwards")}
    return _within(replace(known, ids=ids, warnings=(), **arrays), threat)


def _within(found: AttackResult, threat: Threat) -> AttackResult:
    """Count the nearest examples that were found within ε."""
    success = (found.prediction != found.label) & (found.distance <= threat.eps + threat.tolerance)
    return replace(found, threat=threat, success=success)


def merged(
    whole: AttackResult | None, part: AttackResult, at: Int64[Tensor, " standing"], threat: Threat
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
        "label", "clean_prediction", "prediction", "success", "adversarial", "distance", "forwards", "backwards",
    )  # fmt: skip
    return {name: getattr(result, name) for name in names}
