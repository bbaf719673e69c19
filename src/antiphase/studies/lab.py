"""Where cells run: the store, the device, and models and images that several cells in a row need."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from antiphase.data import ImageSet, load_data
from antiphase.runs.processes import Process
from antiphase.studies.store import Store


class Loadable(Protocol):
    """A model that is trained or given."""

    def load(self, lab: "Lab") -> nn.Module:
        """Return it in evaluation mode, with its card."""
        ...


@dataclass
class Lab:
    """What a cell runs with; nothing of it affects a result.

    Attributes:
        store: of the cells.
        device: to run on.
        batch_size: images through a model at once; None: what each measurement takes by itself.
        progress: whether to show bars on stderr.
        process: which of torchrun's processes this is.
        warnings: what the running cell has to say to readers of its rows.
    """

    store: Store
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int | None = None
    progress: bool = True
    process: Process = field(default_factory=Process)
    warnings: list[str] = field(default_factory=list)
    _model: tuple[Any, nn.Module] | None = None
    _images: dict[str, ImageSet] = field(default_factory=dict)

    def model(self, cell: Loadable) -> nn.Module:
        """Return the model of a finished training, or a given one; the last one stays in memory."""
        if self._model is None or self._model[0] != cell:
            self._model = None
            self._model = (cell, cell.load(self).to(self.device))
        return self._model[1]

    def images(self, source: str, split: str, limit: int | None = None, **fit: Any) -> ImageSet:
        """Return images of a source; a smaller number of them is a fixed random choice."""
        key = repr((source, split, limit, sorted(fit.items())))
        if key not in self._images:
            if len(self._images) > 3:
                self._images.clear()
            self._images[key] = load_data(
                source, split=split, limit=limit, seed=0, progress=self.progress, **fit
            )
        return self._images[key]
