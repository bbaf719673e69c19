"""Formatting of numbers and names in tables, figures and sentences."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphase.registry import ATTACKS, find
from antiphase.statistics.intervals import Estimate, is_interval

NO_INTERVAL = "no interval"
_NORMS = {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}


def attack_label(attack: str, norm: str) -> str:
    """Name an attack with its norm.

    >>> attack_label("pgd", "linf")
    'PGD (L∞)'
    """
    return f"{attack_name(attack)} ({_NORMS.get(norm.lower(), norm)})"


def attack_name(attack: str) -> str:
    """Return the label of a registered attack; stored rows may have been made by one that is not.

    >>> attack_name("worst of pgd, apgd-ce")
    'worst of PGD, APGD-CE'
    """
    if attack.startswith("worst of "):  # as audits of several attacks name the worst case
        return f"worst of {', '.join(map(attack_name, attack.removeprefix('worst of ').split(', ')))}"
    return find(ATTACKS, attack, "attack").label if attack in ATTACKS else attack


def percent(rate: float) -> str:
    """Format a rate in percent, without the percent sign.

    >>> percent(0.3541)
    '35.4'
    """
    return f"{100 * rate:.1f}"


def interval_text(low: float | None, high: float | None, written: Callable[[float], str]) -> str:
    """Format an interval; ends without anything between them, or both infinite (None), are no interval.

    >>> interval_text(-0.1, 0.25, "{:g}".format), interval_text(0.0, 0.0, str), interval_text(None, None, str)
    ('[-0.1, 0.25]', 'no interval', 'no interval')
    """
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return f"[{written(low)}, {written(high)}]" if is_interval(low, high) else NO_INTERVAL


def with_interval(value: str, interval: str) -> str:
    """Put an interval behind its number.

    >>> with_interval("0.3", "[0.1, 0.5]"), with_interval("0.3", "no interval")
    ('0.3 [0.1, 0.5]', '0.3 (no interval)')
    """
    return f"{value} ({interval})" if interval == NO_INTERVAL else f"{value} {interval}"


def estimate_of(row: Mapping[str, Any], value: str = "value") -> Estimate:
    """Return the estimate of a row of ``summary.json``, which has null for what is infinite or not known.

    >>> estimate_of({"value": 0.5, "low": 0.1, "high": None, "n": 1})
    Estimate(value=0.5, low=0.1, high=inf, n=1)
    """
    usual = {value: math.nan, "low": -math.inf, "high": math.inf}
    middle, low, high = (usual[name] if row[name] is None else row[name] for name in usual)
    return Estimate(middle, low, high, row["n"])


def percent_range(low: float | None, high: float | None) -> str:
    """Format the interval of a rate in percent.

    >>> percent_range(0.3251, 0.3842), percent_range(1.0, 1.0), percent_range(0.0, 0.0001)
    ('[32.5, 38.4]', 'no interval', '[0.00, 0.01]')
    """
    digits = _digits(low, high)
    return interval_text(low, high, lambda end: number(100 * end, digits))


def _digits(low: float | None, high: float | None) -> int:
    """Return the decimals of percent with which the two ends differ."""
    if low is None or high is None or not math.isfinite(high - low):
        return 1
    return next((digits for digits in range(1, 6) if round(100 * low, digits) < round(100 * high, digits)), 6)


def points(difference: float, digits: int = 1) -> str:
    """Format a difference of rates in percentage points, signed.

    >>> points(0.179), points(-0.02), points(0.0)
    ('+17.9', '−2.0', '0.0')
    """
    text = f"{100 * difference:+.{digits}f}"
    return (text if float(text) else text[1:]).replace("-", "−")


def points_interval(difference: float, low: float | None, high: float | None) -> str:
    """Format a difference of rates in percentage points with its interval.

    Nonzero ends are not rounded to 0, since verdicts depend on their signs.

    >>> points_interval(0.049, 0.022, 0.075), points_interval(0.1, 0.0004, 0.209), points_interval(0.1, None, None)
    ('+4.9 points [2.2, 7.5]', '+10.00 points [0.04, 20.90]', '+10.0 points (no interval)')
    >>> points_interval(-1e-17, -0.3, 0.3)
    '0.0 points [−30.0, 30.0]'
    """
    digits = _digits(low, high)
    while digits < 6 and any(end and not round(100 * end, digits) for end in (low, high)):
        digits += 1
    interval = interval_text(low, high, lambda end: number(100 * end, digits))
    return with_interval(f"{points(difference, 1 if interval == NO_INTERVAL else digits)} points", interval)


def attack_condition(attack: str, norm: str, steps: int | None) -> str:
    """Name an attack with its norm and number of steps.

    >>> attack_condition("pgd", "linf", 20), attack_condition("square", "l2", None)
    ('L∞ PGD-20', 'L2 Square')
    """
    return f"{_NORMS.get(norm.lower(), norm)} {attack_name(attack)}{'' if steps is None else f'-{steps}'}"


def p_text(p_value: float) -> str:
    """Format a p-value.

    >>> p_text(3e-9), p_text(0.0312)
    ('p < 0.0001', 'p = 0.031')
    """
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def lambda_range(values: Sequence[float]) -> str:
    """Format the λ of all layers as one number or a range; a dash if there are none.

    >>> lambda_range([0.8]), lambda_range([0.2, 0.55, 0.74]), lambda_range([])
    ('0.800', '0.200–0.740', '–')
    """
    if not values:
        return "–"
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low}–{high}"


def number(value: float, digits: int) -> str:
    """Format a number with a minus sign (−); NaN is a dash, infinity ∞.

    >>> number(-0.25, 1), number(float("inf"), 1), number(float("nan"), 1)
    ('−0.2', '∞', '–')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:.{digits}f}".replace("-", "−")
