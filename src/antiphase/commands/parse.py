"""From the words of the command line to values."""

from fractions import Fraction
from typing import Any

from antiphase.errors import UserError


def parse_eps(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated list; ``1/255`` is a number.

    Raises:
        UserError: naming the part that is not one.

    >>> parse_eps("0.5/255, 0.25")
    (0.00196078431372549, 0.25)
    """

    def number(part: str) -> float:
        try:
            above, _, below = part.partition("/")
            return float(Fraction(above.strip()) / Fraction(below.strip() or 1))
        except (ValueError, ZeroDivisionError):
            raise UserError(f"eps {part.strip()!r}: expected a number or a fraction such as 1/255") from None

    return tuple(number(part) for part in text.split(","))


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
