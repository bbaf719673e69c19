"""``antiphase rerun``: repeat a run and compare its numbers."""

from typing import Annotated

from antiphase.commands.command import Command
from antiphase.commands.fields import Directory, Quiet
from antiphase.commands.options import Options, Typed


class RerunOptions(Options):
    """Repeat a run with the options that it stored, and say whether the numbers are equal.

    The repetition goes to a directory of its own. Rows and weights have to be the same to the last bit, which holds
    on one machine with the same versions; on another the last digits may differ.

    **Examples**

    antiphase rerun antiphase-audit

    antiphase rerun runs/diffvit --out runs/diffvit-again --json
    """

    run: Annotated[Directory, Typed(argument=True)]
    """Directory of a run: of audit, attack, quickstart, sense, certify, evaluate or a training."""
    out: Directory | None = None
    """Directory of the repetition. If not given: the name of the run with -again after it."""
    run_code: bool = False
    """Run the code of python: models that the run names. Read it first."""
    quiet: Quiet = False


COMMAND = Command("rerun", RerunOptions, "antiphase.commands.rerun.run:answer")
