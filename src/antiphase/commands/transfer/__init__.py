"""``antiphase transfer``: the adversarial images of each model, shown to every other."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from antiphase.commands import options as fields
from antiphase.commands.audit import AttackNames, AuditOptions, Eps
from antiphase.commands.command import Command
from antiphase.errors import UserError


class TransferOptions(AuditOptions):
    """Show the adversarial images of each model to all others; write rows, summary.json and report.html.

    Every model is attacked on the same images; a search ends after all its steps, with the image of highest loss. An
    image transfers if it changes the prediction of the other model. Differences are paired: images made on a model with
    differential attention and shown to one with standard attention, minus the way back. A killed run resumes.

    **Examples**

    antiphase transfer runs/diffvit,runs/vit --attack apgd-ce --eps 2/255,8/255 --limit 500
    """

    left_out: ClassVar = ("against", "nested", "control", "sense_limit", "fail_under", "suffix")

    attack: AttackNames = "pgd"
    eps: Eps = (8 / 255,)
    sense_limit: int = Field(0, ge=0)
    out: fields.Out = Path("antiphase-transfer")

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if self.questions:
            raise UserError(f"data {self.data}: are questions; expected images with classes")
        if len(self.names) > 1 or self.ensemble.minimal:
            why = "are several attacks" if len(self.names) > 1 else "stops at the nearest adversarial image"
            raise UserError(f"attack {self.attack}: {why}; expected one such as pgd, apgd-ce or square")


COMMAND = Command("transfer", TransferOptions, f"{__name__}.run:run", f"{__name__}.run:TransferResult")
