"""Claims as checked statements: each holds, fails or is undecided, according to the intervals of its checks.

Under the profile ``smoke`` (two images, one seed) claims are not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from antiphase.evaluation.statistics import Estimate, as_difference

Verdict = Literal["holds", "fails", "undecided", "not judged (smoke)", "not run"]


@dataclass(frozen=True)
class Check:
    """A difference that is claimed to be above zero.

    Attributes:
        what: the difference in words, such as ``"ASR(DiffViT) − ASR(ViT) at 1/255"``.
        estimate: its estimate with a 95 % interval over seeds and images; None if rows are missing.
        unit: ``"points"`` for differences of fractions, shown in percentage points with the interval clipped to ±100;
            empty for other values.
        judged: whether there is a verdict; False under the profile ``smoke``.
    """

    what: str
    estimate: Estimate | None
    unit: Literal["points", ""] = "points"
    judged: bool = True

    def __post_init__(self) -> None:
        if self.estimate is not None and self.unit == "points":
            object.__setattr__(self, "estimate", as_difference(self.estimate))

    @property
    def verdict(self) -> Verdict:
        """``holds`` if the interval lies above 0, ``fails`` if it lies below 0."""
        if self.estimate is None:
            return "not run"
        if not self.judged:
            return "not judged (smoke)"
        if self.estimate.low > 0:
            return "holds"
        return "fails" if self.estimate.high < 0 else "undecided"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and its checks, which all have to hold but for the stated exceptions.

    Intervals are 95 % each, without correction for multiple comparisons.

    Attributes:
        name: a short name, such as ``"fragile-at-depth-1"``.
        source: section or figure of the paper.
        statement: the claim in one sentence.
        checks: at least one check.
        exceptions: number of checks that need not hold, where the paper says "almost every".
    """

    name: str
    source: str
    statement: str
    checks: Sequence[Check]
    exceptions: int = 0

    @property
    def verdict(self) -> Verdict:
        """``not run`` if rows are missing, otherwise ``fails`` if a check fails, ``holds`` if all hold.

        With k exceptions, ``fails`` if more than k checks fail, ``holds`` if all but k hold. Under the profile
        ``smoke``: ``not judged (smoke)``.

        >>> yes, open_ = (Check("a − b", Estimate(1.0, low, 2.0, 9)) for low in (0.5, -0.5))
        >>> [Claim("", "", "", [yes, open_], exceptions).verdict for exceptions in (0, 1)]
        ['undecided', 'holds']
        """
        found = [check.verdict for check in self.checks]
        for verdict in ("not run", "not judged (smoke)"):
            if verdict in found or not found:
                return verdict
        if found.count("fails") > self.exceptions:
            return "fails"
        return "holds" if found.count("holds") >= len(found) - self.exceptions else "undecided"
