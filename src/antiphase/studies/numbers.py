"""Numbers as text, with no more digits than their interval supports."""

import math

from antiphase.statistics.intervals import Estimate

_PER_SHARE = 100.0  # estimates in points are stored as fractions


def written(value: float | None, digits: int, sign: bool = False) -> str:
    """Format a number with a minus sign (−) and without negative zero; None and NaN are a dash."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def bracketed(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval in brackets; return an empty string if an end is missing or nothing is between them."""
    if low is None or high is None or not low < high:
        return ""
    return f"[{written(low, digits)}, {written(high, digits)}]"


def supported(value: float | None, low: float | None, high: float | None) -> int:
    """Return the number of decimals: two significant digits of the half-width, or three of the value without interval."""
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if len(ends) == 2 and ends[1] > ends[0]:
        return max(0, min(6, 1 - math.floor(math.log10((ends[1] - ends[0]) / 2))))
    if not value or not math.isfinite(value):
        return 1
    return max(0, min(6, 2 - math.floor(math.log10(abs(value)))))


def signed(estimate: Estimate, unit: str) -> tuple[str, str]:
    """Format a difference, signed and with its unit, and its interval.

    Nonzero ends are not rounded to 0, since the verdict depends on their signs.
    """
    scale = _PER_SHARE if unit == "points" else 1.0
    value, low, high = (scale * part for part in (estimate.value, estimate.low, estimate.high))
    digits = 1 if unit == "points" else supported(value, low, high)
    while digits < 6 and any(end and math.isfinite(end) and not round(end, digits) for end in (low, high)):
        digits += 1
    return f"{written(value, digits, sign=True)} {unit}".strip(), bracketed(low, high, digits)
