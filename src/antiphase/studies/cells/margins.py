"""Clean margins of one model and the gradients that an attacker sees there: a row for each image."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import polars as pl
import torch
import torch.nn.functional as F

from antiphase.sensitivity.interventions import MarginGradients, Margins, margins_of
from antiphase.studies.cells.models import Measurement, data_content, ready
from antiphase.studies.lab import Lab

_PASSES = 10  # forward passes' worth for each image: four with a gradient, in float64


@final
@dataclass(frozen=True, kw_only=True)
class Margin(Measurement):
    """Margins, gradients and losses on clean images, see :mod:`antiphase.sensitivity.interventions`.

    Attributes:
        limit: at most this many images.
        gradients: whether to measure the gradients; otherwise their columns are null.
    """

    version: ClassVar[int] = 1
    limit: int | None = None
    gradients: bool = True

    @property
    def table(self) -> str:
        return "margin" if self.split == "test" else f"margin-{self.split}"

    @property
    def shipped_bits(self) -> int:
        return 12 if self.split == "test" else 8

    @property
    def unshipped(self) -> tuple[str, ...]:
        """Of training images only the loss is used, and of it the mean."""
        return () if self.split == "test" else Margins._fields

    @property
    def label(self) -> str:
        return f"margins of {self.model.label}, {self.split} images"

    def content(self) -> dict[str, str]:
        found = data_content(self.data, self.split)
        return {"data": found} if found else {}

    def work(self) -> float:
        """Return the operations of the passes over the images."""
        return (_PASSES if self.gradients else 1) * self.model.forward_work() * (self.limit or 10_000)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Measure margins and gradients in float64, losses in float32."""
        model, data = ready(lab, self.model, self.data, self.split, self.limit)
        measure = MarginGradients(model) if self.gradients else None
        found: list[Margins] = []
        losses: list[torch.Tensor] = []
        for _, images, labels in data.batches(250):
            images, labels = images.to(lab.device), labels.to(lab.device)
            with torch.no_grad():
                logits = model(images)
            losses.append(F.cross_entropy(logits, labels, reduction="none").double())
            found.append(measure(images) if measure else margins_of(logits))
        columns = {"sample": data.ids, "label": data.labels, "loss": torch.cat(losses)}
        for name, values in zip(Margins._fields, zip(*found, strict=True), strict=True):
            columns[name] = torch.full((len(data),), torch.nan) if values[0] is None else torch.cat(values)
        frame = pl.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        return frame.with_columns(pl.col(pl.Float32, pl.Float64).cast(pl.Float64).fill_nan(None))
