"""Formatting of numbers and names in tables, figures and sentences."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphase.registry import ATTACKS, find
from antiphase.statistics.intervals import Estimate, is_interval

NO_INTERVAL = "no interval"
NORMS = {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}


def attack_label(attack: str, norm: str) -> str:
    """Name an attack with its norm, as ``PGD (L∞)``."""
    return f"{attack_name(attack)} ({NORMS.get(norm.lower(), norm)})"


def attack_name(attack: str) -> str:
    """Return the label of a registered attack; stored rows may have been made by one that is not."""
    if attack.startswith("worst of "):  # as audits of several attacks name the worst case
        return f"worst of {', '.join(map(attack_name, attack.removeprefix('worst of ').split(', ')))}"
    return find(ATTACKS, attack, "attack").label if attack in ATTACKS else attack


def percent(rate: float) -> str:
    """Format a rate in percent, without the percent sign."""
    return f"{100 * rate:.1f}"


def interval_text(low: float | None, high: float | None, written: Callable[[float], str]) -> str:
    """Format an interval; ends without anything between them, or both infinite (None), are no interval."""
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return f"[{written(low)}, {written(high)}]" if is_interval(low, high) else NO_INTERVAL


def with_interval(value: str, interval: str) -> str:
    """Put an interval behind its number."""
    return f"{value} ({interval})" if interval == NO_INTERVAL else f"{value} {interval}"


def estimate_of(row: Mapping[str, Any], value: str = "value") -> Estimate:
    """Return the estimate of a row of ``summary.json``, which has null for what is infinite or not known."""
    usual = {value: math.nan, "low": -math.inf, "high": math.inf}
    middle, low, high = (usual[name] if row[name] is None else row[name] for name in usual)
    return Estimate(middle, low, high, row["n"])


def percent_range(low: float | None, high: float | None) -> str:
    """Format the interval of a rate in percent, with as many decimals as its ends need to differ."""
    digits = _digits(low, high)
    return interval_text(low, high, lambda end: number(100 * end, digits))


def _digits(low: float | None, high: float | None) -> int:
    """Return the decimals of percent with which the two ends differ."""
    if low is None or high is None or not math.isfinite(high - low):
        return 1
    return next((digits for digits in range(1, 6) if round(100 * low, digits) < round(100 * high, digits)), 6)


def points(difference: float, digits: int = 1) -> str:
    """Format a difference of rates in percentage points, signed."""
    return number(100 * difference, digits, sign=True)


def points_interval(difference: float, low: float | None, high: float | None) -> str:
    """Format a difference of rates in points with its interval, whose ends are 0 only if they are: signs decide."""
    digits = _digits(low, high)
    while digits < 6 and any(end and not round(100 * end, digits) for end in (low, high)):
        digits += 1
    interval = interval_text(low, high, lambda end: number(100 * end, digits))
    return with_interval(f"{points(difference, 1 if interval == NO_INTERVAL else digits)} points", interval)


def attack_condition(attack: str, norm: str, steps: int | None) -> str:
    """Name an attack with its norm and number of steps, as ``L∞ PGD-20``."""
    return f"{NORMS.get(norm.lower(), norm)} {attack_name(attack)}{'' if steps is None else f'-{steps}'}"


def p_text(p_value: float) -> str:
    """Format a p-value."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def lambda_range(values: Sequence[float]) -> str:
    """Format the λ of all layers as one number or a range; a dash if there are none."""
    if not values:
        return "–"
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low}–{high}"


def number(value: float | None, digits: int, sign: bool = False) -> str:
    """Format a number with a minus sign (−) and without negative zero; None and NaN are a dash, infinity is ∞."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else "∞" if value > 0 else "−∞"
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    return (text if text.strip("+-0.,") else text.lstrip("+-")).replace("-", "−")
