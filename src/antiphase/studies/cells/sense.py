"""Sensitivity of the attention of one model: alignment at x or at x + ξ, Lipschitz constants, depth or branches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl

from antiphase.errors import UserError
from antiphase.runs.sense import BATCH_SIZE
from antiphase.runs.sense_model import sense
from antiphase.runs.sense_plan import SensePlan
from antiphase.studies.cells.models import Measurement, image_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.store import WORK_FOLDER

# forward passes an image (and layer), about
_PASSES = {"alignment": 60, "alignment-perturbed": 200, "lipschitz": 250, "depth": 150, "branches": 130}


@final
@dataclass(frozen=True, kw_only=True)
class Sense(Measurement):
    """One of the measurements of :mod:`antiphase.runs.sense_model` on one model.

    Attributes:
        part: ``"alignment"``, ``"alignment-perturbed"``, ``"lipschitz"``, ``"depth"`` or ``"branches"``.
        limit: at most this many images.
        settings: settings that differ from the defaults of :class:`~antiphase.runs.sense_plan.SensePlan`.
    """

    version: ClassVar[int] = 1
    part: str
    limit: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return self.part

    @property
    def shipped_bits(self) -> int:
        return 12

    @property
    def label(self) -> str:
        return f"{self.part} of {self.model.label}"

    def content(self) -> dict[str, str]:
        return image_content(self.data, self.split)

    def work(self) -> float:
        """Return the operations, about; Lipschitz constants are estimated of every layer."""
        layers = self.model.factors().get("depth") or 12
        times = layers if self.part == "lipschitz" else 1
        return 3.0 * self.model.forward_work() * self.limit * _PASSES.get(self.part, 100) * times

    def plan(self) -> SensePlan:
        """Return the plan that ``sense`` takes.

        Raises:
            UserError: a setting is unknown or out of range.
        """
        fields: dict[str, Any] = {"lipschitz_limit": self.limit, **self.settings}
        try:
            return SensePlan(**fields)
        except TypeError as error:
            raise UserError(f"settings of {self.label}: {error}") from None

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = ready(lab, self.model, self.data, self.split, self.limit)
        found = sense(
            self.model.label,
            model,
            images,
            self.plan(),
            folder / WORK_FOLDER,
            parts=[self.part],
            process=lab.process,
            batch_size=lab.batch_size or BATCH_SIZE,
            progress=lab.progress,
            limit=self.limit,
        )
        return found[self.part]
