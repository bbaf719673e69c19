"""Sensitivity of the attention of one model: alignment at x or at x + ξ, Lipschitz constants or depth."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl

from antiphase.errors import UserError
from antiphase.runs.sense import BATCH_SIZE
from antiphase.runs.sense_model import sense
from antiphase.runs.sense_plan import SensePlan
from antiphase.studies.cells.models import Model, data_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell
from antiphase.studies.store import WORK_FOLDER

# forward passes an image (and layer), about
_PASSES = {"alignment": 60, "alignment-perturbed": 200, "lipschitz": 250, "depth": 150}


@final
@dataclass(frozen=True, kw_only=True)
class Sense(Cell):
    """One of the measurements of :mod:`antiphase.runs.sense_model` on one model.

    Attributes:
        model: trained or given model.
        data: source of images.
        part: ``"alignment"``, ``"alignment-perturbed"``, ``"lipschitz"`` or ``"depth"``.
        limit: at most this many images.
        split: split of the source.
        settings: settings that differ from the defaults of :class:`~antiphase.runs.sense_plan.SensePlan`.
    """

    version: ClassVar[int] = 1
    model: Model
    data: str
    part: str
    limit: int
    split: str = "test"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The name of its rows."""
        return self.part

    @property
    def label(self) -> str:
        """What it is."""
        return f"{self.part} of {self.model.label}"

    def needs(self) -> tuple[Cell, ...]:
        """Return the training of its model."""
        return self.model.needed()

    def content(self) -> dict[str, str]:
        """Return what its data are, where they lie in a folder."""
        found = data_content(self.data, self.split)
        return {"data": found} if found else {}

    def factors(self) -> dict[str, Any]:
        """Return what sets the model apart."""
        return self.model.factors() | {"data": self.data}

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
        """Measure every image that a killed run left out."""
        model, images = ready(lab, self.model, self.data, self.split, self.limit)
        found = sense(
            self.model.label, model, images, self.plan(), folder / WORK_FOLDER, parts=[self.part],
            process=lab.process, batch_size=lab.batch_size or BATCH_SIZE, progress=lab.progress, limit=self.limit,
        )  # fmt: skip
        return found[self.part]
