"""Numbers as text, with no more digits than their interval supports."""

import math

from antiphase.statistics.intervals import Estimate

_PER_SHARE = 100.0  # estimates in points are stored as fractions


def written(value: float | None, digits: int, sign: bool = False) -> str:
    """Format a number with a minus sign (−) and without negative zero; None and NaN are a dash.

    >>> [written(value, 1) for value in (-0.04, -1.26, None, float("inf"))]
    ['0.0', '−1.3', '–', '∞']
    >>> written(2.41, 1, sign=True)
    '+2.4'
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if not text.strip("+-0.,"):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def bracketed(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval in brackets; return an empty string if an end is missing or nothing is between them.

    >>> bracketed(-1.0, 5.94, 1), bracketed(None, None, 1), bracketed(0.5, 0.5, 1)
    ('[−1.0, 5.9]', '', '')
    """
    if low is None or high is None or not low < high:
        return ""
    return f"[{written(low, digits)}, {written(high, digits)}]"


def supported(value: float | None, low: float | None, high: float | None) -> int:
    """Return the number of decimals: two significant digits of the half-width, or three of the value without interval.

    >>> supported(0.1234, 0.08, 0.16), supported(123.4, None, None), supported(3412.0, 3000.0, 3800.0)
    (3, 0, 0)
    """
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if len(ends) == 2 and ends[1] > ends[0]:
        return max(0, min(6, 1 - math.floor(math.log10((ends[1] - ends[0]) / 2))))
    if not value or not math.isfinite(value):
        return 1
    return max(0, min(6, 2 - math.floor(math.log10(abs(value)))))


def signed(estimate: Estimate, unit: str) -> tuple[str, str]:
    """Format a difference, signed and with its unit, and its interval.

    Nonzero ends are not rounded to 0, since the verdict depends on their signs.

    Args:
        estimate: the difference; a fraction where the unit is points.
        unit: ``"points"``, another unit, or nothing.

    >>> signed(Estimate(0.0241, 0.0003, 0.0594, 300), "points")
    ('+2.41 points', '[0.03, 5.94]')
    """
    scale = _PER_SHARE if unit == "points" else 1.0
    value, low, high = (scale * part for part in (estimate.value, estimate.low, estimate.high))
    digits = 1 if unit == "points" else supported(value, low, high)
    while digits < 6 and any(end and math.isfinite(end) and not round(end, digits) for end in (low, high)):
        digits += 1
    return f"{written(value, digits, sign=True)} {unit}".strip(), bracketed(low, high, digits)
