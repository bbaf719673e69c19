"""Attacking one model: a row for each ε and image."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl

from antiphase.attacks.catalogue import add_attack, find_spec, passes_of
from antiphase.attacks.result import AttackResult
from antiphase.attacks.sweep import Nesting
from antiphase.runs.attack import AGAIN, AttackPlan, measure
from antiphase.studies.cells.models import Measurement, image_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.store import WORK_FOLDER


@final
@dataclass(frozen=True, kw_only=True)
class Attack(Measurement):
    """One attack on one model over several ε.

    Attributes:
        eps: budgets, in units of the [0, 1] pixel.
        limit: at most this many images, the same for every model.
        image_size: for image files.
        attack: a name of the catalogue, or a function of your own with the signature of
            :func:`antiphase.attacks.pgd`; when its text changes, the cell is another.
        settings: its keyword arguments.
        norm: of the budgets.
        nested: how samples carry over from one ε to the next, see :func:`antiphase.attacks.sweep`.
        seed: of the attack's draws.
        precision: of the search; verdicts are float32.
        prompt: template of a dual encoder's class prompts.
    """

    version: ClassVar[int] = 1
    eps: tuple[float, ...]
    limit: int | None = None
    image_size: int | None = None
    attack: str | Callable[..., AttackResult] = "pgd"
    settings: dict[str, Any] = field(default_factory=dict)
    norm: str = "linf"
    nested: Nesting = "up"
    seed: int = 0
    precision: str = "float32"
    prompt: str | None = None

    @property
    def table(self) -> str:
        return "attack"

    @property
    def label(self) -> str:
        settings = " ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.name} {settings} on {self.model.label}".replace("  ", " ")

    @property
    def name(self) -> str:
        return self.attack if isinstance(self.attack, str) else self.attack.__name__

    def content(self) -> dict[str, str]:
        """Return what its data are, where they lie in a folder, and what its precision has come to mean."""
        means: dict[str, str] = {}
        if self.precision != "float32":
            means["precision"] = self.precision + AGAIN
        if isinstance(self.attack, str):  # earlier rows were made without what the attack chooses itself
            chosen = find_spec(self.attack).implied(self.settings).keys() - self.settings.keys()
            means |= dict.fromkeys(sorted(chosen), "chosen")
        return means | image_content(self.data, self.split)

    def factors(self) -> dict[str, Any]:
        """Return what sets the model apart, and the attack's settings that studies vary."""
        asked = {name: self.settings.get(name) for name in ("restarts", "width", "steps")}
        return self.model.factors() | asked | {"data": self.data}

    def work(self) -> float:
        """Return the operations of the attack if it broke no image."""
        plan = self.plan()
        passes = passes_of(plan.ensemble)
        budgets = 1 if plan.minimal else len(self.eps)
        return 3.0 * self.model.forward_work() * (self.limit or 10_000) * passes * budgets * 0.7

    def plan(self, batch_size: int | None = None) -> AttackPlan:
        """Return the plan that ``measure`` takes.

        Raises:
            UserError: for an invalid budget, attack or setting.
        """
        if not isinstance(self.attack, str):
            add_attack(self.name, self.attack)
        return AttackPlan(
            self.eps,
            self.norm,
            self.name,
            self.settings,
            self.nested,
            self.seed,
            self.precision,  # type: ignore[arg-type]
            batch_size=batch_size,
        )

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = ready(
            lab, self.model, self.data, self.split, self.limit, self.image_size, self.prompt
        )
        rows, warnings = measure(
            self.model.label,
            model,
            images,
            self.plan(lab.batch_size),
            folder / WORK_FOLDER,
            process=lab.process,
            progress=lab.progress,
        )
        lab.warnings += warnings
        return rows
