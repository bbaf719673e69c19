"""Claims as checked statements over rows: each holds, fails or stays undecided, by the intervals of its checks.

Under the profile ``smoke``, two images and one seed that only show that everything runs, none is judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from antiphase.evaluation.statistics import Estimate, as_difference

Verdict = Literal["holds", "fails", "undecided", "not judged (smoke)", "not run"]


@dataclass(frozen=True)
class Check:
    """A difference that is said to lie above zero; that of two shares has its interval cut to ±100 points.

    Attributes:
        what: the difference in words, such as ``"ASR(DiffViT) − ASR(ViT) at 1/255"``.
        estimate: of it, with a 95 % interval over seeds and images; None where its rows are missing.
        unit: ``"points"`` for differences of shares, stored as shares and shown in hundredths; else the value itself.
        judged: whether it has a verdict; under the profile ``smoke`` it has none.
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
        """``holds`` where the interval lies above 0, ``fails`` where it lies below."""
        if self.estimate is None:
            return "not run"
        if not self.judged:
            return "not judged (smoke)"
        if self.estimate.low > 0:
            return "holds"
        return "fails" if self.estimate.high < 0 else "undecided"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and the checks that it comes to; all of them have to hold.

    Nothing is corrected for their number: each interval is 95 % by itself.

    Attributes:
        name: a short handle, such as ``"fragile-at-depth-1"``.
        source: where the paper says so.
        statement: in one sentence.
        checks: at least one.
    """

    name: str
    source: str
    statement: str
    checks: Sequence[Check]

    @property
    def verdict(self) -> Verdict:
        """``not run`` where rows of a check are missing, else ``fails`` where one fails, ``holds`` where all hold.

        ``not judged (smoke)`` where there are rows, but of the profile ``smoke``.

        >>> yes, open_ = (Check("a − b", Estimate(1.0, low, 2.0, 9)) for low in (0.5, -0.5))
        >>> Claim("", "", "", [yes]).verdict, Claim("", "", "", [yes, open_]).verdict
        ('holds', 'undecided')
        """
        found = [check.verdict for check in self.checks]
        for verdict in ("not run", "not judged (smoke)", "fails", "undecided"):
            if verdict in found:
                return verdict
        return "holds" if found else "not run"
