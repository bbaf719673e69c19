"""The power behind the checks of studies, for a console and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from antiphase.report.studies.wording import estimate_text
from antiphase.report.table import ruled_table
from antiphase.studies.numbers import supported, written
from antiphase.studies.results import Power

_EXPLAINED = (
    "± is the standard error; its two parts are what more training seeds and what only more images make smaller. "
    "Decides: the smallest difference found with a probability of 80 % (two-sided 5 %). Takes: training seeds for 80 % "
    "power if the difference seen is the true one, and core-minutes with their trainings."
)


def console_power(found: Sequence[Power]) -> Table:
    """Tabulate the power behind checks for a console of 80 columns."""
    table = ruled_table(caption=_EXPLAINED)
    table.add_column("difference", ratio=3, overflow="fold")
    table.add_column("seen [95 % interval]", ratio=2, overflow="fold")
    for column in ("±", "decides", "takes"):
        table.add_column(column, justify="right")
    shown: tuple[str, str] | None = None
    for each in found:
        title = (each.result.label, each.claim.statement)
        if title != shown:
            table.add_row(Text.assemble((f"{title[0]}: ", "bold"), (title[1], "bold")))
            shown = title
        error = Text(_number(each, each.error))
        if each.error is not None:
            error.append(
                f"\nseeds {_number(each, each.by_seed)}\nimages {_number(each, each.by_image)}", "dim"
            )
        seen = f"{estimate_text(each.check)}\n{each.verdict or 'incomplete'}, {each.seeds} seeds"
        table.add_row(each.check.what, seen, error, _number(each, each.decides), _takes(each))
    return table


def plain_power(each: Power) -> dict[str, Any]:
    """Return the power behind a check for JSON; differences of fractions are fractions."""
    return {
        "study": each.result.name,
        "profile": each.result.profile,
        "claim": each.claim.name,
        "check": each.check.what,
        "unit": each.check.unit,
        "verdict": each.verdict,
        "seeds": each.seeds,
        "value": None if each.check.estimate is None else each.check.estimate.value,
        "error": each.error,
        "error_of_seeds": each.by_seed,
        "error_of_images": each.by_image,
        "smallest_difference": each.decides,
        "seeds_needed": each.needed,
        "core_minutes": each.minutes,
    }


def _number(each: Power, value: float | None) -> str:
    if value is None:
        return "–"
    value *= 100.0 if each.check.unit == "points" else 1.0
    return written(value, 1 if each.check.unit == "points" else supported(value, None, None))


def _takes(each: Power) -> str:
    if each.error is None:
        return "–"
    if each.needed is None:
        return "more images"
    cost = "" if each.minutes is None else f"\n{max(1, round(each.minutes)):,} min"
    return f"{each.needed:,} seeds{cost}"
