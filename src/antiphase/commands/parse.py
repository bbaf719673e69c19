"""From the words of the command line to values."""

import re
from fractions import Fraction
from typing import Any

from antiphase.errors import UserError, shown

_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE
)  # e999999999 takes minutes


def parse_eps(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list; ``1/255`` is a number.

    Raises:
        UserError: naming the part that is not a finite number.

    >>> parse_eps("0.5/255, 0.25")
    (0.00196078431372549, 0.25)
    """

    def number(part: str) -> float:
        above, slash, below = (word.strip() for word in part.partition("/"))
        try:
            if all(map(_NUMBER.fullmatch, [above, below] if slash else [above])):
                return float(Fraction(above) / Fraction(below if slash else 1))
        except (ValueError, ZeroDivisionError, OverflowError):
            pass
        raise UserError(f"eps {shown(part.strip())}: expected a finite number or a fraction such as 1/255")

    return tuple(number(part) for part in text.split(","))


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
