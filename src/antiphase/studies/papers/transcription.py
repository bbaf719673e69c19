"""One number of a paper, as its text prints it, for comparison with what a study would run."""

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["same", "declared deviation", "differs"]


@dataclass(frozen=True)
class Line:
    """One setting of a study.

    Attributes:
        name: name of the fact, see :func:`antiphase.studies.facts.facts_of`.
        values: the paper's values over all cells of the study; empty if the paper prints none.
        source: section, table or figure.
        quote: the paper's words. For a value that they only imply, the words that imply it.
        exact: whether the study must have no other values.
        repository: where the values are from if the text does not print them: the code that ``quote`` refers to.
        ours: our values if they deviate from the paper's or if the paper prints none; None if they are the same.
        why: reason of the deviation, for the reader of a page.
    """

    name: str
    values: tuple[Any, ...]
    source: str
    quote: str = ""
    exact: bool = True
    repository: str = ""
    ours: tuple[Any, ...] | None = None
    why: str = ""

    def verdict(self, found: tuple[Any, ...]) -> Verdict:
        """Compare the values found in a study with the paper's and with the declared ones.

        >>> line = Line("train.seeds", (1,), "Section 6", ours=(3,), why="for an interval")
        >>> line.verdict((1,)), line.verdict((3,)), line.verdict((2,))
        ('same', 'declared deviation', 'differs')
        """
        if self.values and self._covers(self.values, found):
            return "same"
        return "declared deviation" if self.ours and self._covers(self.ours, found) else "differs"

    def _covers(self, expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
        theirs, own = ({_key(value) for value in values} for values in (expected, found))
        return theirs == own if self.exact else theirs <= own


def unprinted(name: str, *ours: Any, why: str, source: str = "", quote: str = "", exact: bool = True) -> Line:
    """Return the line of a setting that the paper leaves open; ``quote`` are the words that leave it open."""
    return Line(name, (), source, quote, exact, ours=ours, why=why)


def in_words(values: tuple[Any, ...]) -> str:
    """Return the values of a setting for a reader.

    >>> in_words((0.5, 1, "pgd"))
    '0.5, 1, pgd'
    """
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _key(value: Any) -> Any:
    return round(float(value), 9) if isinstance(value, int | float) else value
