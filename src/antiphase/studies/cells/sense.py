"""Sensitivity of the attention of one model: alignment at x or at x + ξ, Lipschitz constants, depth or branches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl

from antiphase.commands.sense.options import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.studies.cells.models import Measurement, image_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.store import WORK_FOLDER

# forward passes an image (and layer), about
_PASSES = {"alignment": 60, "alignment-perturbed": 200, "lipschitz": 250, "depth": 150, "branches": 130}


@final
@dataclass(frozen=True, kw_only=True)
class Sense(Measurement):
    """One of the measurements of :mod:`antiphase.commands.sense.run` on one model.

    Attributes:
        part: ``"alignment"``, ``"alignment-perturbed"``, ``"lipschitz"``, ``"depth"`` or ``"branches"``.
        limit: at most this many images.
        settings: settings that differ from the defaults of :class:`~antiphase.commands.sense.options.SenseOptions`.
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

    def options(self) -> SenseOptions:
        """Return the options of ``antiphase sense``; cells keep the names that two of them had.

        Raises:
            UserError: a setting is unknown or out of range.
        """
        renamed = {"eps": "radius", "travel": "eps"}
        settings = {renamed.get(name, name): value for name, value in self.settings.items()}
        stored = {"lipschitz_limit": self.limit, **settings}
        return SenseOptions.from_file(stored, model=("study",), parts=(self.part,))

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = ready(lab, self.model, self.data, self.split, self.limit)
        options = self.options().model_copy(update={"batch_size": lab.batch_size, "quiet": not lab.progress})
        out = folder / WORK_FOLDER
        return sense(self.model.label, model, images, options, out, limit=self.limit, process=lab.process)[
            self.part
        ]
