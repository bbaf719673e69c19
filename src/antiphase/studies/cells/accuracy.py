"""Predictions of a classifier on clean images."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import polars as pl
import torch

from antiphase.attacks.engine.oracle import Oracle
from antiphase.studies.cells.models import Measurement, image_content, ready
from antiphase.studies.lab import Lab


@final
@dataclass(frozen=True, kw_only=True)
class Accuracy(Measurement):
    """Predict in float32, with one row per image.

    Attributes:
        limit: at most this many images.
    """

    version: ClassVar[int] = 1
    limit: int | None = None

    @property
    def table(self) -> str:
        return "accuracy"

    @property
    def label(self) -> str:
        return f"accuracy of {self.model.label}"

    def content(self) -> dict[str, str]:
        return image_content(self.data, self.split)

    def work(self) -> float:
        return self.model.forward_work() * (self.limit or 10_000)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, data = ready(lab, self.model, self.data, self.split, self.limit)
        oracle = Oracle(model)
        found = [oracle.predict(images.to(oracle.device)).cpu() for _, images, _ in data.batches(256)]
        columns = {"sample": data.ids, "label": data.labels, "prediction": torch.cat(found)}
        return pl.DataFrame({name: values.numpy() for name, values in columns.items()})
