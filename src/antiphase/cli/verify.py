"""``antiphase verify``: what it prints, and its examples."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from antiphase.cli.app import app
from antiphase.cli.command import Answer, Refusal, command
from antiphase.runs.options.verify import VerifyOptions
from antiphase.terminal import console, say


@command(app, VerifyOptions)
def verify(options: VerifyOptions) -> Answer:
    """Measure again what a robustness card says, and compare every number.

    Weights and data are compared first, by their SHA-256. The exit code is 0 if the card is confirmed, 1 if something
    differs, and 2 if the card is damaged, was altered or cannot be repeated here.

    **Examples**

    antiphase verify antiphase-audit

    antiphase verify downloads/card.json --tolerance 0.5 --device cuda
    """
    from antiphase.api.verified import verified

    found = verified(options)
    if found.differences:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("field", overflow="fold")
        for title in ("card", "measured"):
            table.add_column(title, justify="right", overflow="fold")
        for one in found.differences:
            table.add_row(one.field, _text(one.card), _text(one.measured))
        console().print(table)
    for note in found.notes if not found.confirmed else ():
        say(f"note: {note}")
    say(repr(found))
    answer = {
        "card": str(options.card),
        "name": found.card.name,
        "confirmed": found.confirmed,
        "reason": found.reason,
        "numbers": found.numbers,
        "differences": [asdict(one) for one in found.differences],
        "notes": list(found.notes),
        "out": None if options.out is None else str(options.out),
    }
    return answer if found.confirmed else Refusal(answer)


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
