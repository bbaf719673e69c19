"""One attack at several ε, each sample no oftener than it takes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.attacks.checks import falling_asr
from antiphase.attacks.ensemble import Attack, Ensemble, Stage, arrays_of, run_ensemble
from antiphase.attacks.options import Run, RunOptions
from antiphase.attacks.oracle import Classifier
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

Nesting = Literal["up", "down"] | bool


def sweep(
    attack: Attack | Ensemble,
    model: Classifier,
    images: Tensor,
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat,
    eps: Iterable[float],
    *,
    nested: Nesting = True,
    settings: dict[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> list[AttackResult]:
    """Attack at several ε; return one result for each, ε rising.

    - ``nested=True`` or ``"up"``: a sample that falls at ε counts as fallen at every larger one, by the same
      image and at no further cost; only survivors go up, and an attack that looks for the nearest
      adversarial example runs once for all ε. This proves every success that it counts.
    - ``nested="down"``: a sample that stands at ε counts as standing at every smaller one, whose ball lies
      within; only the fallen go down. Cheaper, since no sample spends its whole budget twice; but where a
      search fails at ε and would succeed in the smaller ball, that success is missed.
    - ``nested=False``: independent runs, as the robustness paper's.

    A result's ``forwards`` and ``backwards`` are those spent at its own ε.

    Args:
        attack: an attack function, or an ensemble.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm and bounds; its own ε is not looked at.
        eps: budgets.
        nested: how samples carry over from one ε to the next.
        settings: further keyword arguments of an attack function.
        **run: seed, batch size and the like, see :class:`~antiphase.attacks.options.Run`.

    Raises:
        UserError: for no ε, or as the attack does.
    """
    if nested not in (True, False, "up", "down"):
        raise UserError(f"nested {nested!r}: expected 'up', 'down', True or False")
    budgets = sorted(set(eps))
    if not budgets:
        raise UserError("eps (): expected at least one budget")
    if isinstance(attack, Ensemble) and settings:
        raise UserError(f"settings {', '.join(settings)}: an ensemble's are those of its stages")
    ensemble = attack if isinstance(attack, Ensemble) else Ensemble("", (Stage("", attack, settings or {}),))
    results: list[AttackResult] = []
    if nested == "down":
        if Run(**run).on_finished is not None:
            raise UserError("on_finished: not told of a sweep that goes down; use nested='up'")
        for budget in reversed(budgets):
            at = replace(threat, eps=budget)
            results.append(_below(results[-1] if results else None, ensemble, model, images, labels, at, run))
        return results[::-1]
    for budget in budgets:
        before = results[-1] if nested and results else None
        at = replace(threat, eps=budget)
        results.append(run_ensemble(ensemble, model, images, labels, at, before=before, run=run))
    worse = falling_asr(budgets, [result.asr for result in results])
    return [*results[:-1], replace(results[-1], warnings=(*results[-1].warnings, *worse))]


def _below(
    above: AttackResult | None, ensemble: Ensemble, model: Classifier, images: Tensor, labels: Tensor | None,
    threat: Threat, run: RunOptions,
) -> AttackResult:  # fmt: skip
    """Attack those that fell at the ε above; the others stand, as they were."""
    if above is None:
        return run_ensemble(ensemble, model, images, labels, threat, run=run)
    fallen = above.success.nonzero().flatten()
    nothing = torch.zeros_like(above.forwards)
    whole = replace(
        above, threat=threat, success=torch.zeros_like(above.success), prediction=above.clean_prediction.clone(),
        adversarial=images.detach().cpu().clone(), distance=torch.zeros_like(above.distance), forwards=nothing,
        backwards=nothing.clone(), stages=(), warnings=(),
    )  # fmt: skip
    if not len(fallen):
        return whole
    here: RunOptions = {**run, "ids": above.ids[fallen]}
    part = run_ensemble(ensemble, model, images[fallen], above.label[fallen], threat, run=here)
    arrays = arrays_of(whole)
    for name, tensor in arrays_of(part).items():
        arrays[name][fallen] = tensor
    return replace(
        whole, settings=part.settings, stages=part.stages, warnings=part.warnings, seconds=part.seconds
    )
