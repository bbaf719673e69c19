"""``antiphase verify``: measure again what a robustness card says."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from antiphase.commands.command import Command
from antiphase.commands.options import Device, Directory, Options, Quiet, Typed


class VerifyOptions(Options):
    """Measure again what a robustness card says, and compare every number.

    Weights and data are compared first, by their SHA-256. The exit code is 0 if the card is confirmed, 1 if something
    differs, and 2 if the card is damaged, was altered or cannot be repeated here.

    **Examples**

    antiphase verify antiphase-audit
    antiphase verify downloads/card.json --tolerance 0.5 --device cuda
    """

    card: Annotated[Path, Typed(argument=True, metavar="CARD")]
    """card.json, or the directory of the audit that wrote it."""
    tolerance: float = Field(0.0, ge=0, le=100)
    """By how many percentage points rates, differences and the ends of intervals may differ; with more than 0, p-values
    are not compared. On one machine 0 is met; on another the verdict on a few images may change with rounding."""
    run_code: bool = False
    """Run the code of python: models that the card names. Read it first."""
    out: Directory | None = None
    """Directory to keep the repeated audit in. If not given: nothing is kept."""
    device: Device = "auto"
    quiet: Quiet = False


COMMAND = Command("verify", VerifyOptions, "antiphase.commands.verify.run:answer")
