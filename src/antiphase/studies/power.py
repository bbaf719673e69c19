"""What the stored rows of a study can decide, and what it would take to decide the differences seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.statistics.seeds_by_images import POWER, power_of, seeds_until, smallest_difference
from antiphase.studies.claims import Check, Claim, Verdict
from antiphase.studies.results import Result


@dataclass(frozen=True)
class Power:
    """The power behind one check, in the unit of its estimate.

    Attributes:
        result: the study.
        claim: the claim.
        check: the check.
        verdict: its verdict; None while cells are missing.
        seeds: training seeds that were measured.
        error: standard error of the estimate; None with fewer than two seeds, like all that follows.
        by_seed: part of it that more training seeds make smaller; by_seed² + by_image² = error².
        by_image: part of it that only more images make smaller.
        decides: smallest true difference that is off zero with a probability of 80 %.
        needed: seeds for a power of 80 % at the 95 % interval, if the difference seen is the true one, and at least as
            many as a verdict takes; None if no number is enough.
        minutes: core-minutes of that many seeds, with their trainings; None if unknown.
    """

    result: Result
    claim: Claim
    check: Check
    verdict: Verdict | None
    seeds: int
    error: float | None = None
    by_seed: float | None = None
    by_image: float | None = None
    decides: float | None = None
    needed: int | None = None
    minutes: float | None = None


def powers(results: Sequence[Result]) -> list[Power]:
    """Return the power behind every check of some studies."""
    return [
        _power(result, claim, check, verdict if result.done == result.total else None)
        for result in results
        for claim in result.claims
        for check, verdict in zip(claim.checks, claim.verdicts, strict=True)
    ]


def _power(result: Result, claim: Claim, check: Check, verdict: Verdict | None) -> Power:
    spread = check.spread
    if check.estimate is None or spread is None or spread.seeds < 2:
        return Power(result, claim, check, verdict, check.seeds)
    value = check.estimate.value
    needed = seeds_until(lambda seeds: power_of(value, spread.at(seeds)) >= POWER, LEAST_SEEDS)
    minutes = None if needed is None or check.seconds is None else needed * check.seconds / 60
    return Power(
        result,
        claim,
        check,
        verdict,
        spread.seeds,
        spread.error,
        math.sqrt(spread.by_seed),
        math.sqrt(max(spread.variance - spread.by_seed, 0.0)),
        smallest_difference(spread),
        needed,
        minutes,
    )
