"""What ``antiphase certify`` does once its options are read. Imports are local, so that --help is quick."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.errors import UserError
from antiphase.runs.loading import load_lineup


def run_certify(
    model: str, against: str | None, data: str | None, out: Path, quiet: bool, device: str, *,
    split: str = "test", limit: int | None = None, random_weights: bool = False, prompt: str | None = None,
    classes: Path | None = None, batch_size: int | None = None, **smoothing: Any,
) -> None:  # fmt: skip
    """Load one or two models and data, smooth them, write rows, summary and figure, and print the table."""
    from antiphase.report.runs.certified import certificate_table, curve_figure, write_figure
    from antiphase.runs.certify import certify
    from antiphase.runs.processes import this_process
    from antiphase.sensitivity.smoothing import Smoothing

    began = time.monotonic()
    chosen = Smoothing(**smoothing)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size {batch_size}: expected at least 1")
    ours, twins, images = load_lineup(
        [model], [against] if against else [], data, split=split, limit=limit, random_weights=random_weights,
        skip_bad=False, device=device, progress=not quiet, prompt=prompt,
        classes=classes,
    )  # fmt: skip
    console = Console(stderr=True, highlight=False)
    rows, summary = certify(
        [*ours, *twins], images, chosen, out, batch_size=batch_size,
        announce=console.print, progress=not quiet,
    )  # fmt: skip
    if not this_process().first:
        return
    write_figure(curve_figure(rows, summary), out)
    Console().print(certificate_table(summary))
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    print(f"rows, summary and figure: {out}   ({time.monotonic() - began:.0f} s)")
