"""Predictions of a classifier on clean images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl
import torch

from antiphase.attacks.engine.oracle import Oracle
from antiphase.studies.cells.models import Model, data_content, ready
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell


@final
@dataclass(frozen=True, kw_only=True)
class Accuracy(Cell):
    """Predict in float32, with one row per image.

    Attributes:
        model: trained or given model.
        data: source of images.
        limit: at most this many images.
        split: split of the source.
    """

    version: ClassVar[int] = 1
    model: Model
    data: str
    limit: int | None = None
    split: str = "test"

    @property
    def table(self) -> str:
        """The name of its rows."""
        return "accuracy"

    @property
    def label(self) -> str:
        """What it is."""
        return f"accuracy of {self.model.label}"

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
        """Return the operations of one pass over the images."""
        return self.model.forward_work() * (self.limit or 10_000)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Classify."""
        model, data = ready(lab, self.model, self.data, self.split, self.limit)
        oracle = Oracle(model)
        found = [oracle.predict(images.to(oracle.device)).cpu() for _, images, _ in data.batches(256)]
        columns = {"sample": data.ids, "label": data.labels, "prediction": torch.cat(found)}
        return pl.DataFrame({name: values.numpy() for name, values in columns.items()})
