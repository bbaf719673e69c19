"""Attacking a vision-language model's answers to POPE's questions: a row for each ε, image and question."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl

from antiphase.attacks.catalogue import passes_of, settings_of
from antiphase.commands.audit.options import AuditOptions
from antiphase.commands.evaluate.sources import load_source
from antiphase.errors import UserError
from antiphase.studies.cells.models import Measurement
from antiphase.studies.context import Lab
from antiphase.studies.store import WORK_FOLDER
from antiphase.vlm.pope import PopeSet

_QUESTIONS = 12  # of an image that differ, about: for the plan alone


@final
@dataclass(frozen=True, kw_only=True)
class AttackAnswers(Measurement):
    """An attack on a vision-language model's answers, as ``antiphase attack`` with POPE's questions.

    Attributes:
        eps: budgets, in units of the [0, 1] pixel.
        limit: at most this many images, with all their questions.
        suffix: follows every question.
        attack: a name of the catalogue.
        settings: its keyword arguments.
        seed: of the attack's draws.
    """

    version: ClassVar[int] = 1
    eps: tuple[float, ...]
    limit: int | None = None
    suffix: str = ""
    attack: str = "apgd-ce"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def table(self) -> str:
        return "answers"

    @property
    def label(self) -> str:
        return f"{self.attack} on answers of {self.model.label}"

    def content(self) -> dict[str, str]:
        return {"data": self._pope(progress=False).fingerprint()[:16]} if ":" in self.data else {}

    def work(self) -> float:
        """Return the operations of the attack if no answer changed."""
        passes = passes_of(self.options().ensemble) * len(self.eps)
        return 3.0 * self.model.forward_work() * (self.limit or 500) * _QUESTIONS * passes

    def options(self) -> AuditOptions:
        """Return the options of the attack.

        Raises:
            UserError: for an invalid budget, attack or setting.
        """
        names = ("eps", "attack", "settings", "seed")
        return AuditOptions(model=("study",), **{name: getattr(self, name) for name in names})

    def facts(self) -> Iterator[tuple[str, Any]]:
        options = self.options()
        about = {"data": self.data, "suffix": self.suffix, "attack": options.attack, "images": self.limit}
        yield "answers", about
        yield "answers", {"eps": options.eps}
        yield from (("answers", {"steps": settings_of(stage)["steps"]}) for stage in options.ensemble.stages)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Attack; the samplings that ask a question are joined by commas."""
        from antiphase.commands.audit.answers import attack_answers

        options = self.options().model_copy(update={"batch_size": lab.batch_size, "quiet": not lab.progress})
        pope, out = self._pope(lab.progress), folder / WORK_FOLDER
        rows, warnings = attack_answers(self.model.label, lab.model(self.model), pope, options, out)
        lab.warnings += warnings
        return rows.with_columns(pl.col("samplings").list.join(","))

    def _pope(self, progress: bool) -> PopeSet:
        found = load_source(self.data, self.split, self.limit, None, False, False, progress).test
        if not isinstance(found, PopeSet):
            raise UserError(f"{self.data}: no questions of POPE; expected pope, pope:FOLDER or emoji-pope")
        return found.followed_by(self.suffix)
