"""Margin and local Lipschitz constant of one model on each image."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import polars as pl

from antiphase.commands.sense.run import BATCH_SIZE
from antiphase.runs.radii import measure_radii
from antiphase.studies.cells.models import Measurement, image_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.store import WORK_FOLDER


@final
@dataclass(frozen=True, kw_only=True)
class Radius(Measurement):
    """What margin-over-Lipschitz radii are made of (robustness paper, Appendix B); see :mod:`antiphase.runs.radii`.

    Attributes:
        limit: at most this many images.
        steps: steps of power iteration.
        seed: random seed of its start.
    """

    version: ClassVar[int] = 1
    limit: int
    steps: int = 20
    seed: int = 0

    @property
    def table(self) -> str:
        return "radius"

    @property
    def label(self) -> str:
        return f"radius of {self.model.label}"

    def content(self) -> dict[str, str]:
        return image_content(self.data, self.split)

    def work(self) -> float:
        """Return the operations, about: a step costs two backward passes."""
        return self.model.forward_work() * self.limit * 6.0 * (self.steps + 1)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Measure every image that a killed run left out."""
        model, images = ready(lab, self.model, self.data, self.split, self.limit)
        return measure_radii(
            self.model.label,
            model,
            images,
            folder / WORK_FOLDER,
            steps=self.steps,
            seed=self.seed,
            process=lab.process,
            batch_size=lab.batch_size or BATCH_SIZE,
            progress=lab.progress,
        )
