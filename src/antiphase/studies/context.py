"""The environment of cells: the store, the device, and a cache of models and images."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from antiphase.data import ImageSet, load_data
from antiphase.processes import Process
from antiphase.studies.store import Store


@dataclass
class Lab:
    """The environment that a cell runs in; it does not affect results.

    Attributes:
        batch_size: images per batch; None uses the default of each measurement.
        process: this process among those of torchrun.
        track: experiment trackers of training.
        warnings: warnings of the running cell for readers of its rows.
    """

    store: Store
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int | None = None
    progress: bool = True
    process: Process = field(default_factory=Process)
    track: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    _model: tuple[Any, nn.Module] | None = None
    _images: dict[str, ImageSet] = field(default_factory=dict)

    def model(self, cell: Any) -> nn.Module:
        """Return a trained or given model; the last one is cached."""
        if self._model is None or self._model[0] != cell:
            self._model = None
            self._model = (cell, cell.load(self).to(self.device))
        return self._model[1]

    def images(self, source: str, split: str, limit: int | None = None, **fit: Any) -> ImageSet:
        """Return images of a source; a limit selects a fixed random subset."""
        key = repr((source, split, limit, sorted(fit.items())))
        if key not in self._images:
            if len(self._images) > 3:
                self._images.clear()
            self._images[key] = load_data(
                source, split=split, limit=limit, seed=0, progress=self.progress, **fit
            )
        return self._images[key]
