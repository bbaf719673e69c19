"""What ``antiphase sense`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.commands.parse import parse_eps
from antiphase.errors import UserError
from antiphase.runs.loading import load_lineup


def run_sense(
    models: list[str], against: list[str], data: str | None, out: Path, quiet: bool, device: str, *,
    parts: list[str], radius: str, travel: str, split: str = "test", limit: int | None = None,
    random_weights: bool = False, skip_bad: bool = False, prompt: str | None = None,
    batch_size: int | None = None, **plan: Any,
) -> None:  # fmt: skip
    """Load models and images, measure them, write the report and print the tables."""
    from antiphase.report.runs.sense_page import lipschitz_table, sense_table, write_sense_report
    from antiphase.runs.processes import this_process
    from antiphase.runs.sense import sense_all
    from antiphase.runs.sense_model import SensePlan

    began = time.monotonic()
    radii = parse_eps(radius)
    if len(radii) != 1:
        raise UserError(f"radius {radius}: expected one number, such as 8/255")
    chosen = SensePlan(eps=radii[0], travel=parse_eps(travel), **plan)
    ours, twins, images = load_lineup(
        models, against, data, split=split, limit=limit, random_weights=random_weights, skip_bad=skip_bad,
        device=device, progress=not quiet, prompt=prompt,
    )  # fmt: skip
    summary = sense_all(
        ours, twins, images, chosen, out, parts=parts, batch_size=batch_size,
        command=shlex.join(["antiphase", *sys.argv[1:]]),
        announce=Console(stderr=True, highlight=False).print, progress=not quiet,
    )  # fmt: skip
    if not this_process().first:
        return
    report = write_sense_report(out)
    console = Console()
    for part, table in (("alignment", sense_table), ("lipschitz", lipschitz_table)):
        if part in summary:
            console.print(table(summary))
    print(f"report: {report}   ({time.monotonic() - began:.0f} s)")
