"""``antiphase compare``: two runs of one command, compared on what they share."""

from pathlib import Path
from typing import Annotated

from antiphase.commands import options as fields
from antiphase.commands.command import Command


class CompareOptions(fields.Options):
    """Compare two runs: paired differences on the images and ε that both have, and what differs in settings.

    Differences are the first run minus the second, with 95 % intervals. Models of the same name are paired, and the
    others in their order. Runs may differ in models, attack, steps, ε, number of images and other settings; the images
    have to be of the same data. Trainings are compared by their metrics after the last epoch of both, and studies by
    what their claims rest on, without intervals. Writes report.html, differences.csv, summary.json and the rows.

    **Examples**

    antiphase compare runs/audit-pgd runs/audit-autoattack
    antiphase compare runs/audit-robust runs/audit-natural --out runs/robust-minus-natural
    antiphase compare runs/certify-0.25 runs/certify-0.5 --tables latex
    """

    first: Annotated[Path, fields.Typed(argument=True, metavar="A")]
    """Directory of a run, of a training, or of studies."""
    second: Annotated[Path, fields.Typed(argument=True, metavar="B")]
    """Directory of another run of that command."""
    out: fields.Directory = Path("antiphase-compare")
    """Directory to write."""


COMMAND = Command("compare", CompareOptions, f"{__name__}.run:run", f"{__name__}.run:CompareResult")
