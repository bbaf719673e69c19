"""Down through several ε: each sample is attacked at the largest ε at which it may still be robust."""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.attacks.engine.options import RunOptions, of_samples, read_options
from antiphase.attacks.engine.oracle import Classifier
from antiphase.attacks.ensemble import Ensemble, Stage, arrays_of, concluded, merged, title
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat

Piece = tuple[Int64[Tensor, " some"], AttackResult]  # positions, and what a stage says of them at one ε


def descend(
    ensemble: Ensemble,
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    threat: Threat,
    budgets: Sequence[float],
    run: RunOptions,
) -> list[AttackResult]:
    """Attack at the largest ε, and the broken samples at the next smaller one; return a result for each, ε rising.

    The stage that is furthest back goes first, so that samples come to the late and long ones together, each with its
    own ε: an attack with an argument ``budgets`` takes them all at once, another is called for each ε. Verdicts are
    those of one ε after the other.

    Args:
        ensemble: its stages, in order.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm and bounds.
        budgets: the ε, rising.
        run: seed, batch size and the like.
    """
    count, last = len(images), len(ensemble.stages)
    level = torch.full((count,), len(budgets) - 1)  # of each sample: which ε it is attacked at
    turn = torch.zeros_like(level)  # and the stage that comes next there
    pieces: dict[tuple[int, int], list[Piece]] = {}  # by level and stage
    while bool((at_work := (level >= 0) & (turn < last)).any()):
        number = int(turn[at_work].min())
        chosen = (at_work & (turn == number)).nonzero().flatten()
        for here in _groups(ensemble.stages[number], chosen, level[chosen], budgets[-1]):
            given = None if labels is None else labels[here]
            part = _attack(
                ensemble.stages[number], model, images, given, threat, budgets, here, level[here], run
            )
            labels = part.label if labels is None else labels  # of all: the first group is everybody
            for at, piece in _by_level(part, here, level[here], budgets):
                pieces.setdefault((at, number), []).append(piece)
            broken = here[part.success]
            turn[here] += 1
            turn[broken] = 0
            level[broken] -= 1
    results: list[AttackResult] = []
    for at in reversed(range(len(budgets))):
        threat = replace(threat, eps=budgets[at])
        found = [
            (stage, _joined(pieces[at, number]))
            for number, stage in enumerate(ensemble.stages)
            if (at, number) in pieces
        ]
        results.append(_result(ensemble, threat, found, results[-1] if results else None, images))
    return results[::-1]


def _groups(stage: Stage, chosen: Tensor, level: Tensor, most: float) -> list[Tensor]:
    """Return the positions that one call of the attack can take, ``most`` being the largest ε."""
    try:
        mixed = "budgets" in inspect.signature(stage.attack).parameters and math.isfinite(most)
    except (TypeError, ValueError):  # it does not say
        mixed = False
    return [chosen] if mixed else [chosen[level == each] for each in level.unique()]


def _attack(
    stage: Stage,
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    threat: Threat,
    budgets: Sequence[float],
    at: Tensor,
    level: Tensor,
    run: RunOptions,
) -> AttackResult:
    chosen = read_options(run, "sweep")
    ids = torch.arange(len(images)) if chosen.ids is None else chosen.ids.cpu()
    here: dict[str, Any] = {**of_samples(run, ids, at), "progress": title(stage, chosen)}
    if int(level.min()) < int(level.max()):
        here["budgets"] = torch.tensor(budgets, dtype=torch.float64)[level]
    threat = replace(threat, eps=budgets[int(level.max())])
    return stage.attack(model, images[at], labels, threat, **stage.settings, **here)


def _by_level(
    part: AttackResult, at: Tensor, level: Tensor, budgets: Sequence[float]
) -> Iterator[tuple[int, Piece]]:
    """Cut a result into those of each ε; the time is shared out by passes, what is doubtful is so of all."""
    passes = (part.forwards + part.backwards).double()
    share = passes / passes.sum() if passes.any() else torch.full_like(passes, 1 / len(passes))
    levels = level.unique().tolist()
    together = ", ".join(f"{budgets[each]:g}" for each in levels)
    said = (
        part.warnings
        if len(levels) == 1
        else [f"{one} (of ε = {together} together)" for one in part.warnings]
    )
    settings = {name: value for name, value in part.settings.items() if name != "budgets"}
    for each in levels:
        rows = level == each
        arrays: dict[str, Any] = {name: tensor[rows] for name, tensor in arrays_of(part).items()}
        yield (
            each,
            (
                at[rows],
                replace(
                    part,
                    ids=part.ids[rows],
                    settings=settings,
                    warnings=tuple(said),
                    seconds=part.seconds * float(share[rows].sum()),
                    **arrays,
                ),
            ),
        )


def _joined(pieces: list[Piece]) -> Piece:
    """Put together what one stage said at one ε, call by call, of different samples."""
    at, order = torch.cat([at for at, _ in pieces]).sort()
    parts = [part for _, part in pieces]
    arrays: dict[str, Any] = {
        name: torch.cat([arrays_of(part)[name] for part in parts])[order] for name in arrays_of(parts[0])
    }
    warnings = dict.fromkeys(warning for part in parts for warning in part.warnings)
    return at, replace(
        parts[0],
        ids=torch.cat([part.ids for part in parts])[order],
        warnings=tuple(warnings),
        seconds=sum((part.seconds for part in parts), 0.0),
        **arrays,
    )


def _result(
    ensemble: Ensemble,
    threat: Threat,
    found: list[tuple[Stage, Piece]],
    above: AttackResult | None,
    images: Tensor,
) -> AttackResult:
    """Put the stages' results at one ε together; samples robust at the ε above stay robust, at no cost."""
    whole = None
    parts = [replace(part, threat=threat, attack=stage.name or part.attack) for stage, (_, part) in found]
    if above is not None:
        nothing = torch.zeros_like(above.forwards)
        whole = replace(
            above,
            threat=threat,
            settings=parts[0].settings if parts else above.settings,
            success=torch.zeros_like(above.success),
            prediction=above.clean_prediction.clone(),
            adversarial=images.detach().cpu().clone(),
            distance=torch.zeros_like(above.distance),
            forwards=nothing,
            backwards=nothing.clone(),
        )
    for (_, (at, _)), part in zip(found, parts, strict=True):
        whole = merged(whole, part, at, threat)
    assert whole is not None
    attacked = len(parts[0]) if parts else 0
    return replace(
        concluded(ensemble, whole, parts, attacked), seconds=sum((part.seconds for part in parts), 0.0)
    )
