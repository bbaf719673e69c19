"""One attack at several ε, each sample no oftener than it takes."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Unpack, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.arguments import ANY_NUMBER, validated
from antiphase.attacks.engine.checks import black_box_wins, falling_asr
from antiphase.attacks.engine.oracle import Classifier
from antiphase.attacks.engine.search import Images, Labels, Run, RunOptions, read_options
from antiphase.attacks.ensemble import AttackFunction, Ensemble, Stage
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

Nesting = Literal["up", "down", "off"]
Positions = Int64[Tensor, " some"]
Piece = tuple[Positions, AttackResult]  # what a stage says of the samples at some positions at one ε


@validated
def sweep(
    attack: AttackFunction | Ensemble,
    model: Classifier,
    images: Images,
    labels: Labels,
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

    A result's ``forwards``, ``backwards`` and ``seconds`` are those spent at its own ε. The time of one call for
    several ε, which there is for ``"down"``, is shared out by passes.

    Args:
        attack: an attack function, or an ensemble.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm and bounds; its own ε is not looked at.
        eps: budgets.
        nested: how samples carry over from one ε to the next.
        settings: further keyword arguments of an attack function.
        **run: seed, batch size and the like, see :class:`~antiphase.attacks.engine.search.Run`.

    Raises:
        UserError: for no ε, or as the attack does.
    """
    if isinstance(attack, Ensemble) and settings:
        raise UserError(f"settings {', '.join(settings)}: an ensemble's are those of its stages")
    ensemble = attack if isinstance(attack, Ensemble) else Ensemble("", (Stage("", attack, settings or {}),))
    return sweep_ensemble(ensemble, model, images, labels, threat, eps, nested, run)


def sweep_ensemble(
    ensemble: Ensemble,
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    threat: Threat,
    eps: Iterable[float],
    nested: Nesting,
    options: RunOptions,
) -> list[AttackResult]:
    """Do as :func:`sweep`, for callers that have checked their arguments."""
    budgets = sorted(set(eps))
    if not budgets:
        raise UserError("eps (): expected at least one budget")
    run = read_options(options, ensemble.name or ensemble.stages[0].attack.__name__)
    if run.goal is not None:
        raise UserError("goal: not for ensembles and sweeps; attack with pgd, apgd, fab or square at each ε")
    down = nested == "down" and not ensemble.minimal
    if down and run.on_finished is not None:
        raise UserError("on_finished: not told of a sweep that goes down; use nested='up'")
    ensemble.check(model, images, run.context)
    ids = torch.arange(len(images)) if run.ids is None else run.ids.cpu()
    samples = _Samples(model, images, labels, ids, options, run)
    if down:
        return _descend(samples, ensemble, threat, budgets)
    carries = nested != "off"
    whole: AttackResult | None = None
    results: list[AttackResult] = []
    below: dict[int, Piece] = {}  # by stage, at the ε before
    for budget in budgets:
        at, before = replace(threat, eps=budget), whole if carries else None
        whole = None if before is None else replace(before, threat=at, **_no_passes(before))
        pieces: dict[int, Piece] = {}
        for number, stage in enumerate(ensemble.stages):
            robust = torch.arange(len(images)) if whole is None else (~whole.success).nonzero().flatten()
            if not len(robust):
                break
            if carries and stage.nearest and number in below:
                positions, part = below[number]
                part = _some(part, torch.searchsorted(positions, robust))
                part = _within(replace(part, warnings=(), seconds=0.0, **_no_passes(part)), at)
            elif carries and ensemble.minimal:  # one search at infinite ε, of which each ε counts its share
                part = _within(samples.under(stage, robust, replace(threat, eps=math.inf))(), at)
            else:
                part = samples.under(stage, robust, at)()
            samples.labels = (
                part.label if samples.labels is None else samples.labels
            )  # of all: the first has all
            pieces[number] = robust, part
            whole = _merged(whole, part, robust, at)
            if run.on_finished is not None:
                over = robust if number + 1 == len(ensemble.stages) else robust[part.success]
                run.on_finished(over, whole.arrays)
        assert whole is not None
        whole = _concluded(ensemble, whole, pieces, len(images), before)
        results.append(whole)
        below = pieces
    worse = falling_asr(budgets, [result.asr for result in results])
    return [*results[:-1], replace(results[-1], warnings=(*results[-1].warnings, *worse))]


def check_nesting(nested: str) -> None:
    """Refuse what is no way for samples to carry over from one ε to the next."""
    if nested not in get_args(Nesting):
        raise UserError(f"nested {nested!r}: expected 'up', 'down' or 'off'")


@dataclass
class _Samples:
    """The samples of a sweep and the options of its attacks."""

    model: Classifier
    images: Tensor
    labels: Tensor | None
    ids: Tensor
    options: RunOptions
    run: Run

    def under(
        self, stage: Stage, at: Positions, threat: Threat, budgets: Tensor | None = None
    ) -> Callable[[], AttackResult]:
        """Return the call that attacks the samples at some positions."""
        options: dict[str, Any] = {**self.options, "ids": self.ids[at]}
        options.pop("on_finished", None)
        options["progress"] = stage.name if self.run.progress is True and stage.name else self.run.progress
        if self.run.context is not None:
            options["context"] = self.run.context[at]
        if budgets is not None:
            options["budgets"] = budgets
        labels = None if self.labels is None else self.labels[at]
        return partial(stage.attack, self.model, self.images[at], labels, threat, **stage.settings, **options)


def _descend(
    samples: _Samples, ensemble: Ensemble, threat: Threat, budgets: Sequence[float]
) -> list[AttackResult]:
    """Attack at the largest ε, and the broken samples at the next smaller one; return a result for each, ε rising.

    The stage that is furthest back goes first, so that samples come to the late and long ones together, each with its
    own ε: an attack with an argument ``budgets`` takes them all at once, another is called for each ε. Verdicts are
    those of one ε after the other.
    """
    count, last = len(samples.ids), len(ensemble.stages)
    level = torch.full((count,), len(budgets) - 1)  # of each sample: which ε it is attacked at
    turn = torch.zeros_like(level)  # and the stage that comes next there
    pieces: dict[tuple[int, int], list[Piece]] = {}  # by level and stage
    while bool((at_work := (level >= 0) & (turn < last)).any()):
        number = int(turn[at_work].min())
        stage = ensemble.stages[number]
        chosen = (at_work & (turn == number)).nonzero().flatten()
        together = _takes_budgets(stage) and math.isfinite(budgets[-1])
        for here in (
            [chosen] if together else [chosen[level[chosen] == one] for one in level[chosen].unique()]
        ):
            levels = level[here].unique().tolist()
            own = torch.tensor(budgets, dtype=torch.float64)[level[here]] if len(levels) > 1 else None
            part = samples.under(stage, here, replace(threat, eps=budgets[levels[-1]]), own)()
            samples.labels = part.label if samples.labels is None else samples.labels
            shared = ", ".join(f"{budgets[one]:g}" for one in levels)
            said = [f"{one} (of ε = {shared} together)" if own is not None else one for one in part.warnings]
            settings = {name: value for name, value in part.settings.items() if name != "budgets"}
            part = replace(part, settings=settings, warnings=tuple(said))
            passes = (part.forwards + part.backwards).double()
            share = passes / passes.sum() if passes.any() else torch.full_like(passes, 1 / len(passes))
            for one in levels:
                rows = level[here] == one
                seconds = part.seconds * float(share[rows].sum())
                piece = here[rows], replace(_some(part, rows), seconds=seconds)
                pieces.setdefault((one, number), []).append(piece)
            broken = here[part.success]
            turn[here] += 1
            turn[broken] = 0
            level[broken] -= 1
    results: list[AttackResult] = []
    whole: AttackResult | None = None
    for one in reversed(range(len(budgets))):
        at = replace(threat, eps=budgets[one])
        found = {number: _joined(pieces[one, number]) for number in range(last) if (one, number) in pieces}
        first = found[0][1] if found else None
        if whole is not None:  # samples robust at the ε above stay robust, at no cost
            whole = replace(
                whole,
                threat=at,
                settings=first.settings if first else whole.settings,
                success=torch.zeros_like(whole.success),
                prediction=whole.clean_prediction.clone(),
                adversarial=samples.images.detach().cpu().clone(),
                distance=torch.zeros_like(whole.distance),
                **_no_passes(whole),
            )
        for positions, part in found.values():
            whole = _merged(whole, part, positions, at)
        assert whole is not None
        whole = _concluded(ensemble, whole, found, len(first) if first else 0)
        results.append(whole)
    return results[::-1]


def _takes_budgets(stage: Stage) -> bool:
    try:
        return "budgets" in inspect.signature(stage.attack).parameters
    except (TypeError, ValueError):  # it does not say
        return False


def _concluded(
    ensemble: Ensemble,
    whole: AttackResult,
    pieces: dict[int, Piece],
    count: int,
    before: AttackResult | None = None,
) -> AttackResult:
    """Say of the verdicts of all stages on ``count`` samples which of them they come from, and what is doubtful.

    ``before`` is the result at a smaller ε that ``whole`` continues; what its stages broke still counts as theirs.
    """
    parts = [
        replace(part, threat=whole.threat, attack=ensemble.stages[number].name or part.attack)
        for number, (_, part) in pieces.items()
    ]
    warnings = dict.fromkeys(warning for part in parts for warning in part.warnings)  # each once
    changes: dict[str, Any] = {"seconds": sum((part.seconds for part in parts), 0.0)}
    if len(ensemble.stages) > 1:
        felled: dict[str, int] = dict(before.settings["felled"]) if before else {}
        for part in parts:
            felled[part.attack] = felled.get(part.attack, 0) + int(part.success.sum())
        black_box = {stage.name: felled.get(stage.name, 0) for stage in ensemble.stages if stage.black_box}
        warnings |= dict.fromkeys(black_box_wins(int(whole.success.sum()), black_box, count))
        changes |= {"attack": ensemble.name, "settings": {"felled": felled}}
    return replace(whole, **changes, stages=tuple(parts), warnings=tuple(warnings))


def _some(part: AttackResult, rows: Tensor) -> AttackResult:
    """Return a result of some of its samples."""
    arrays: dict[str, Any] = {name: tensor[rows] for name, tensor in part.arrays.items()}
    return replace(part, ids=part.ids[rows], **arrays)


def _joined(pieces: list[Piece]) -> Piece:
    """Put together what one stage said at one ε, call by call, of different samples."""
    at, order = torch.cat([at for at, _ in pieces]).sort()
    parts = [part for _, part in pieces]
    arrays: dict[str, Any] = {
        name: torch.cat([part.arrays[name] for part in parts]) for name in parts[0].arrays
    }
    whole = replace(
        parts[0],
        ids=torch.cat([part.ids for part in parts]),
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        seconds=sum((part.seconds for part in parts), 0.0),
        **arrays,
    )
    return at, _some(whole, order)


def _within(part: AttackResult, threat: Threat) -> AttackResult:
    """Count the nearest examples that were found within ε."""
    near = part.distance <= threat.eps + threat.slack(part.adversarial)
    return replace(part, threat=threat, success=(part.prediction != part.label) & near)


def _no_passes(result: AttackResult) -> dict[str, Any]:
    return {name: torch.zeros_like(result.forwards) for name in ("forwards", "backwards")}


def _merged(whole: AttackResult | None, part: AttackResult, at: Positions, threat: Threat) -> AttackResult:
    """Write a stage's verdicts over those of the samples that it was given, and add its passes to theirs."""
    if whole is None:
        return replace(part, threat=threat)
    arrays: dict[str, Any] = {name: tensor.clone() for name, tensor in whole.arrays.items()}
    for name, tensor in part.arrays.items():
        arrays[name][at] = tensor + arrays[name][at] if name in ("forwards", "backwards") else tensor
    return replace(whole, **arrays)
