"""Studies: cells under a profile, and the figures, tables and claims made from their rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import polars as pl
import torch
from torch import nn

from antiphase.data import ImageSet, load_data
from antiphase.processes import Process
from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.store import Store, identity

ProfileName = Literal["smoke", "laptop", "paper"]
RowsByTable = Mapping[str, pl.DataFrame]
"""The rows of a study's cells by the cells' table: ``"attack"``, ``"accuracy"``, ``"lipschitz"`` and so on."""

_SEEDS = {"smoke": 1, "laptop": 3, "paper": 3}


@final
@dataclass(frozen=True)
class Profile:
    """The scale at which a study is run."""

    name: ProfileName  # smoke (seconds, for tests), laptop (2 cores) or paper (the paper's data and sizes)
    seeds: tuple[int, ...]
    models: tuple[str, ...] = ()  # CLIPs to measure instead of training them, see ``GivenModels``
    asked: bool = False  # whether the user chose the number of seeds

    def seeds_or(self, count: int) -> tuple[int, ...]:
        """Return the seeds that the user asked for, and otherwise seeds 0, 1, … of a study's own number."""
        return self.seeds if self.asked else tuple(range(count))


def profile(name: ProfileName, seeds: int | None = None) -> Profile:
    """Return a profile with seeds 0, 1, …; by default 1 seed for smoke and 3 otherwise (see ``seeds_or``)."""
    return Profile(name, tuple(range(seeds or _SEEDS[name])), asked=seeds is not None)


@dataclass
class Lab:
    """The environment that a cell runs in, with a cache of models and images; it does not affect results."""

    store: Store
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int | None = None  # None: the default of each measurement
    progress: bool = True
    process: Process = field(default_factory=Process)  # among those of torchrun
    track: tuple[str, ...] = ()  # experiment trackers of training
    warnings: list[str] = field(default_factory=list)  # of the running cell, for readers of its rows
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
        if (key := repr((source, split, limit, sorted(fit.items())))) not in self._images:
            if len(self._images) > 3:
                self._images.clear()
            how = {"split": split, "limit": limit, "seed": 0, "progress": self.progress, **fit}
            self._images[key] = load_data(source, **how)
        return self._images[key]


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """One unit of work with one stored result: a training, or a measurement of one model.

    Subclasses are frozen dataclasses whose fields all affect the result, unlike those of the lab.
    """

    version: ClassVar[int] = 1  # increase when the same fields give another result
    kind: ClassVar[str] = ""
    shipped_bits: ClassVar[int] = 24  # significant bits of its numbers in rows that ship: 24 is float32, 12 four digits

    @property
    def table(self) -> str:
        """Name of the table of its rows, and prefix of its folder."""
        return self.kind

    @property
    @abstractmethod
    def label(self) -> str:
        """Description for progress messages."""

    def needs(self) -> tuple["Cell", ...]:
        """Return the cells that must be finished first."""
        return ()

    def content(self) -> dict[str, str]:
        """Return further inputs that no field describes, such as the images in a folder."""
        return {}

    def shipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return what of its rows ships: what a study reads."""
        return rows

    @abstractmethod
    def factors(self) -> dict[str, Any]:
        """Return constant columns that identify its rows in a study."""

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Yield what it would use, built without data: a name of its kind and a settings object or dictionary."""
        yield from ()

    @abstractmethod
    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Run the cell, resuming from what a killed run left in ``folder``; return its rows, if it has any."""


@final
@dataclass(frozen=True)
class Study:
    """A table or figure of a paper: its cells, and what is drawn and claimed from their rows."""

    name: str
    paper: str  # "robustness", "diffclip", "own" for the package's own, or a group name of yours
    label: str
    title: str
    text: str | None
    cells: Callable[[Profile], Sequence[Cell]]  # what is measured; the trainings that it needs are added
    draw: Callable[[RowsByTable], Artefact]
    claims: Callable[[RowsByTable], Sequence[Claim]] = lambda rows: ()
    settings: Callable[[Profile], Mapping[str, str]] = lambda profile: {}  # shown on the page


def closure(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells and their dependencies, each once, dependencies first."""
    by_identity: dict[str, Cell] = {}

    def add(cell: Cell) -> None:
        for need in cell.needs():
            add(need)
        by_identity.setdefault(identity(cell), cell)

    for cell in cells:
        add(cell)
    return list(by_identity.values())
