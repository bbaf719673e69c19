"""One attack at several ε, each sample no oftener than it takes."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal, Unpack, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, validated
from antiphase.attacks.descent import descend
from antiphase.attacks.engine.checks import falling_asr
from antiphase.attacks.engine.options import RunOptions, of_samples, read_options
from antiphase.attacks.engine.oracle import Classifier
from antiphase.attacks.ensemble import AttackFunction, Ensemble, Stage, Verdicts, arrays_of, title, within
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

Nesting = Literal["up", "down", "off"]


@validated
def sweep(
    attack: AttackFunction | Ensemble,
    model: Classifier,
    images: Float[Tensor, "samples ..."],
    labels: Integer[Tensor, " samples"] | None,
    threat: Threat,
    eps: Iterable[Annotated[float, ANY_NUMBER]],
    *,
    nested: Nesting = "up",
    settings: dict[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> list[AttackResult]:
    """Attack at several ε; return one result for each, ε rising.

    - ``nested="up"``: a sample broken at one ε counts as broken at every larger one, by the same image and at no
      further cost; only robust samples are attacked at the next ε, and an attack that looks for the nearest adversarial
      example runs once for all ε. Every success that is counted is proven.
    - ``nested="down"``: starts at the largest ε and retries only the broken samples at the next smaller one. If most
      samples are robust, this is faster; but if a search fails at ε and would succeed in the smaller ball, that success
      is missed. An attack that only looks for the nearest adversarial example runs once, as for ``"up"``.
    - ``nested="off"``: independent runs at each ε. The robustness paper does not say how it attacks at several
      ε, and its text suggests this. Our studies of it use ``"up"``: with PGD-20, 1,000 images and five ε, every verdict
      on both specimens was the same (``dev/attack-engine.md``).

    A result's ``forwards`` and ``backwards`` are those spent at its own ε. So are its ``seconds``; what one call for
    several ε took, which there is for ``"down"``, is shared out by passes.

    Args:
        attack: an attack function, or an ensemble.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm and bounds; its own ε is not looked at.
        eps: budgets.
        nested: how samples carry over from one ε to the next.
        settings: further keyword arguments of an attack function.
        **run: seed, batch size and the like, see :class:`~antiphase.attacks.engine.options.Run`.

    Raises:
        UserError: for no ε, or as the attack does.
    """
    budgets = sorted(set(eps))
    if not budgets:
        raise UserError("eps (): expected at least one budget")
    if isinstance(attack, Ensemble) and settings:
        raise UserError(f"settings {', '.join(settings)}: an ensemble's are those of its stages")
    ensemble = attack if isinstance(attack, Ensemble) else Ensemble("", (Stage("", attack, settings or {}),))
    chosen = read_options(run, ensemble.name or ensemble.stages[0].attack.__name__)
    if chosen.goal is not None:
        raise UserError("goal: not for ensembles and sweeps; attack with pgd, apgd, fab or square at each ε")
    down = nested == "down" and not ensemble.minimal
    if down and chosen.on_finished is not None:
        raise UserError("on_finished: not told of a sweep that goes down; use nested='up'")
    ensemble.check(model, images, chosen.context)
    if down:
        return descend(ensemble, model, images, labels, threat, budgets, run)
    ids = torch.arange(len(images)) if chosen.ids is None else chosen.ids.cpu()
    unbounded = (
        nested != "off" and ensemble.minimal
    )  # one search at infinite ε, of which each ε counts its share
    results: list[AttackResult] = []
    for budget in budgets:
        at = replace(threat, eps=budget)
        verdicts = Verdicts(ensemble, at, ids, results[-1] if nested != "off" and results else None)
        for number, stage in enumerate(ensemble.stages, 1):
            robust = verdicts.robust
            if not len(robust):
                break
            part = verdicts.known(stage)
            if part is None:
                given = verdicts.labels(labels)
                here: RunOptions = {
                    **of_samples(run, ids, robust),
                    "progress": title(stage, chosen),
                    "on_finished": None,
                }
                part = stage.attack(
                    model,
                    images[robust],
                    None if given is None else given[robust],
                    replace(threat, eps=math.inf) if unbounded else at,
                    **stage.settings,
                    **here,
                )
                part = within(part, at) if unbounded else part
            whole = verdicts.add(stage, part)
            if chosen.on_finished is not None:
                over = robust if number == len(ensemble.stages) else robust[part.success]
                chosen.on_finished(over, arrays_of(whole))
        results.append(verdicts.result())
    worse = falling_asr(budgets, [result.asr for result in results])
    return [*results[:-1], replace(results[-1], warnings=(*results[-1].warnings, *worse))]


def check_nesting(nested: str) -> None:
    """Refuse what is no way for samples to carry over from one ε to the next.

    Raises:
        UserError: if it is none of ``"up"``, ``"down"`` and ``"off"``.
    """
    if nested not in get_args(Nesting):
        raise UserError(f"nested {nested!r}: expected 'up', 'down' or 'off'")
