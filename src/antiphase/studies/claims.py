"""Claims as checked statements: differences that should all be above 0, judged by the rule in ``report/findings.toml``.

A claim that holds if all its checks do needs no correction (intersection-union test), and contradicts itself by chance
in at most 2.5 % of the cases, however many checks it has: the p-values of the opposite are corrected by Holm. If e
checks need not hold, each of the others has to hold at the one-sided level 2.5 % / (e + 1), so that too few hold by
chance in at most 2.5 % of the cases (partial conjunction). *Absent* is not corrected for the number of checks. Models
that were not trained here have no training seeds: they are judged over images, and the verdict is about them only.

Sources: R. L. Berger, Technometrics 24:295–300 (1982); S. Holm, Scandinavian Journal of Statistics 6:65–70 (1979);
D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15:657–680 (1987), two one-sided tests;
Y. Benjamini, R. Heller, "Screening for partial conjunction hypotheses", Biometrics 64:1215–1222 (2008).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, product
from typing import Any, Literal

import polars as pl
from scipy import stats

from antiphase.errors import UserError
from antiphase.statistics.decisions import LEAST_SEEDS, LEVEL, holm
from antiphase.statistics.intervals import Estimate, as_difference
from antiphase.statistics.seeds_by_images import POWER, CrossedEstimate, Spread, power_of, power_within, seeds_until
from antiphase.studies.estimation import ASR, difference, mean
from antiphase.terminal import eps_label

Tested = Literal["holds", "smaller than claimed", "contradicted", "absent", "undecided"]
Verdict = Literal[Tested, "not judged (smoke)", "not run", "beside"]
Unit = Literal["points", ""]
MARGINS: dict[Unit, float | None] = {"points": 0.02, "": None}
"""Margin by unit, unless the claim declares its own: 2 points; without a unit, no difference is called absent."""
NOT_IN_PAPER = "not in the paper"
OWN = "own"
_NOT_ITS_OWN = (NOT_IN_PAPER, "a summary of the paper")


@dataclass(frozen=True)
class Check:
    """A difference that is claimed to be above 0, or above ``least``."""

    what: str  # in words, such as "ASR(DiffViT) − ASR(ViT) at 1/255"
    estimate: Estimate | None  # with a 95 % interval over seeds and images; None if rows are missing
    unit: Unit = "points"  # of fractions, with the interval clipped to ±100; empty for other values
    judged: bool = True  # whether there is a verdict; False under the profile smoke
    decides: bool = True  # whether the claim's verdict depends on it; other checks are shown beside it
    over: Literal["seeds", "images"] = "seeds"  # of the interval; images: for models not trained here
    least: float = 0.0  # in the unit of the estimate

    def __post_init__(self) -> None:
        if self.estimate is not None and self.unit == "points":
            object.__setattr__(self, "estimate", as_difference(self.estimate))

    @property
    def excess(self) -> Estimate | None:
        """By how much the difference is above ``least``."""
        one = self.estimate
        return one and replace(one, **{name: getattr(one, name) - self.least for name in ("value", "low", "high")})

    @property
    def spread(self) -> Spread | None:
        return self.estimate.spread if isinstance(self.estimate, CrossedEstimate) else None

    @property
    def seeds(self) -> int:
        """Number of training seeds behind the estimate; 0 if unknown."""
        return self.spread.seeds if self.spread else 0


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and its checks, which all have to hold but for the stated exceptions.

    Attributes:
        effects: those that the paper prints for the checks in turn, in the unit of the estimates; NaN if it has none.
        exceptions: number of checks that need not hold, where the paper says "almost every".
        margin: the largest difference that does not matter, in the unit of the estimates (0.02 is 2 points), if not
            that of ``MARGINS``; with 0, no difference is called absent.
        seconds: core-seconds that one training seed of all its checks takes, trainings included; None if unknown.
        paper: the paper that the source is in, where it is not that of the study.
    """

    name: str
    source: str
    statement: str
    checks: Sequence[Check]
    margin: float | None = None
    effects: tuple[float, ...] = ()
    exceptions: int = 0
    seconds: float | None = None
    paper: str = ""

    def __post_init__(self) -> None:
        number = isinstance(self.margin, int | float) and not isinstance(self.margin, bool)
        if self.margin is not None and not (number and math.isfinite(self.margin) and self.margin >= 0):
            expected = "expected a number of at least 0, such as 0.02 for 2 points"
            raise UserError(f"claim {self.name!r}: margin {self.margin!r}: {expected}")

    def whose(self, paper: str) -> str:
        """Return the paper that makes the claim, or ``OWN`` for a question of ours."""
        return OWN if self.source in _NOT_ITS_OWN else self.paper or paper

    def margin_of(self, check: Check) -> float | None:
        return MARGINS[check.unit] if self.margin is None else self.margin

    def effect_of(self, check: Check) -> float | None:
        """Return the effect that the paper prints for a difference that decides, if it does."""
        printed = dict(zip(map(id, self.deciding), cycle(self.effects), strict=False)).get(id(check), math.nan)
        return None if math.isnan(printed) else printed

    @cached_property
    def verdicts(self) -> list[Verdict]:
        opposite = iter(holm([_p_value(check, -1) for check in self.deciding], LEVEL / 2))
        return [self._verdict(check, next(opposite)) if check.decides else "beside" for check in self.checks]

    @property
    def deciding(self) -> list[Check]:
        return [check for check in self.checks if check.decides]

    @property
    def verdict(self) -> Verdict:
        return joint([verdict for verdict in self.verdicts if verdict != "beside"], self.exceptions)

    @property
    def lacks_seeds(self) -> bool:
        """Whether it is undecided because a check has fewer than ``LEAST_SEEDS`` training seeds."""
        few = any(check.over == "seeds" and check.seeds < LEAST_SEEDS for check in self.deciding)
        return self.verdict == "undecided" and few

    @cached_property
    def seeds_needed(self) -> int | None:
        """Training seeds with which a verdict is expected, with a power of 80 %, if the differences seen are true."""
        if any(check.seeds < 2 or check.over == "images" for check in self.deciding):
            return None

        def enough(seeds: int) -> bool:
            verdicts: list[Verdict] = [self._expected(check, seeds) for check in self.deciding]
            return joint(verdicts, self.exceptions) != "undecided"

        return seeds_until(enough, LEAST_SEEDS)

    @property
    def _level(self) -> float:
        """One-sided level at which a check holds, corrected for the checks that need not."""
        return LEVEL / 2 / (self.exceptions + 1)

    def _verdict(self, check: Check, against: bool) -> Verdict:
        if (estimate := check.excess) is None:
            return "not run"
        if not check.judged:
            return "not judged (smoke)"
        if check.over == "seeds" and check.seeds < LEAST_SEEDS:
            return "undecided"
        if against:
            return "contradicted"
        if (effect := self.effect_of(check)) is not None and estimate.high < effect:
            return "smaller than claimed"
        if estimate.low > 0:
            return "holds" if not self.exceptions or _p_value(check, 1) <= self._level else "undecided"
        if effect is not None:
            return "undecided"
        margin = self.margin_of(check)
        within = margin is not None and -margin <= estimate.low and estimate.high <= margin
        return "absent" if within else "undecided"

    def _expected(self, check: Check, seeds: int) -> Verdict:
        """Return the verdict that a check would have with other seeds, with a probability of 80 %."""
        if (estimate := check.excess) is None or check.spread is None:
            return "undecided"
        spread, value, margin = check.spread.at(seeds), estimate.value, self.margin_of(check)
        effect = self.effect_of(check)
        # Holm's first step: at most strict
        level = self._level if value > 0 else LEVEL / 2 / len(self.deciding)
        off_zero = power_of(value, spread, level) >= POWER
        if off_zero and value <= 0:
            return "contradicted"
        if effect is not None and value < effect and power_of(effect - value, spread) >= POWER:
            return "smaller than claimed"
        if off_zero:
            return "holds"
        if effect is not None or (value > 0 and power_of(value, spread) >= POWER):
            return "undecided"
        return "absent" if margin is not None and power_within(value, margin, spread) >= POWER else "undecided"


def joint(verdicts: Sequence[Verdict], exceptions: int = 0) -> Verdict:
    """Return the verdict of a claim from those of its checks, of which the worst ``exceptions`` do not count."""
    for verdict in ("not run", "not judged (smoke)"):
        if verdict in verdicts or not verdicts:
            return verdict
    order: tuple[Verdict, ...] = ("contradicted", "undecided", "smaller than claimed", "absent", "holds")
    return sorted(verdicts, key=order.index)[min(exceptions, len(verdicts) - 1)]


def _p_value(check: Check, sign: int) -> float:
    """Return the one-sided p-value of "sign · difference is at most 0"; 1 if it cannot be judged."""
    spread = check.spread
    few = check.over == "seeds" and check.seeds < LEAST_SEEDS
    if (estimate := check.excess) is None or spread is None or not spread.error or few:
        return 1.0
    return float(stats.t.sf(sign * estimate.value / spread.error, spread.degrees))


UNSAID = ("attack", "estimator", "quantity")
"""Columns that a check's words leave out: they say by themselves what is compared."""


def higher(
    rows: pl.DataFrame,
    first: str,
    *,
    than: str,
    value: pl.Expr = ASR,
    what: str = "ASR",
    unit: Unit = "points",
    **levels: Any,
) -> list[Check]:
    """Return the checks mean(first series) > mean(other series), for each combination of levels of columns."""
    return apart(rows, "series", first, than, value, f"{what}({first}) − {what}({than})", unit, **levels)


def on_average(rows: pl.DataFrame, first: str, *, than: str, eps: Sequence[float], **levels: Any) -> list[Check]:
    """Return the check that the mean difference in ASR over all ε of a study is above 0, and each ε beside it."""
    some = rows.filter(pl.any_horizontal((pl.col("eps") - one).abs() < 1e-9 for one in eps))
    pair = [{"series": series, **levels} for series in (first, than)]
    return [
        Check(f"ASR({first}) − ASR({than}){in_words(levels)}, mean over ε", difference(some, pair[0], pair[1], ASR)),
        *(replace(check, decides=False) for check in higher(rows, first, than=than, **levels, eps=list(eps))),
    ]


def above(rows: pl.DataFrame, what: str, value: pl.Expr, unit: Unit = "", **levels: Any) -> list[Check]:
    """Return the checks mean > 0, for each combination of levels."""
    return [Check(f"{what}{in_words(where)}", mean(rows, where, value), unit) for where in combinations(levels)]


def apart(
    rows: pl.DataFrame, column: str, first: Any, second: Any, value: pl.Expr, what: str, unit: Unit = "", **levels: Any
) -> list[Check]:
    """Return the checks mean(first level of a column) > mean(second), for each combination of other levels."""
    checks = []
    for where in combinations(levels):
        one, other = ({**where, column: level} for level in (first, second))
        checks.append(Check(f"{what}{in_words(where)}", difference(rows, one, other, value), unit))
    return checks


def no_worse(check: Check, margin: float) -> Check:
    """Return the check that a difference of shares is above −margin."""
    return replace(check, what=f"{check.what}, above −{100 * margin:g} points", least=-margin)


def combinations(levels: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of levels; the last changes fastest."""
    lists = (list, tuple, pl.Series)
    for values in product(*(some if isinstance(some, lists) else [some] for some in levels.values())):
        yield dict(zip(levels, values, strict=True))


def in_words(where: Mapping[str, Any]) -> str:
    """Say which rows were chosen."""
    levels = {name: value for name, value in where.items() if name not in UNSAID}
    eps = f" at {eps_label(levels.pop('eps'))}" if "eps" in levels else ""
    named = ("data", "site", "at", "perturbation")
    words = (f"{value}" if name in named else f"{name} {value}" for name, value in levels.items())
    return eps + "".join(f", {word}" for word in words)
