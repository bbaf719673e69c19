"""The options of ``antiphase rerun`` and ``antiphase doctor``."""

from typing import Annotated

from pydantic import Field

from antiphase.commands.fields import Directory, Quiet
from antiphase.commands.options import Options, Typed


class RerunOptions(Options):
    """Repeat a run and compare its numbers."""

    run: Annotated[
        Directory,
        Typed(argument=True),
        Field(
            description="Directory of a run: of audit, attack, quickstart, sense, certify, evaluate or a training."
        ),
    ]
    out: Annotated[
        Directory | None,
        Field(
            description="Directory of the repetition. If not given: the name of the run with -again after it."
        ),
    ] = None
    run_code: Annotated[
        bool, Field(description="Run the code of python: models that the run names. Read it first.")
    ] = False
    quiet: Quiet = False


class DoctorOptions(Options):
    """Show what is installed: there is nothing to choose."""
