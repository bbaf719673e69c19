"""What a study is: cells under a profile, and what is drawn and claimed from their rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import polars as pl

from antiphase.errors import UserError
from antiphase.studies.artefact import Artefact
from antiphase.studies.claims import Claim
from antiphase.studies.lab import Lab

ProfileName = Literal["smoke", "laptop", "paper"]
RowsByTable = Mapping[str, pl.DataFrame]
"""The rows of a study's cells by the cells' table: ``"attack"``, ``"accuracy"``, ``"lipschitz"`` and so on."""

_SEEDS = {"smoke": 1, "laptop": 3, "paper": 3}


@final
@dataclass(frozen=True)
class Profile:
    """How large a study is run.

    Attributes:
        name: ``smoke`` (seconds, for tests), ``laptop`` (2 cores) or ``paper`` (the paper's data and sizes).
        seeds: of training.
    """

    name: ProfileName
    seeds: tuple[int, ...]


def profile(name: str, seeds: int | None = None) -> Profile:
    """Return a profile with seeds 0, 1, …; 1 for smoke and 3 otherwise, unless given.

    Raises:
        UserError: for an unknown name or no seed.
    """
    if name not in ("smoke", "laptop", "paper"):
        raise UserError(f"profile {name!r}: expected smoke, laptop or paper")
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds {seeds}: expected 1 or more")
    return Profile(name, tuple(range(_SEEDS[name] if seeds is None else seeds)))


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """One piece of work with one result: a training, or a measurement of one model.

    A subclass is a frozen dataclass whose fields all affect the result; device, workers and batch size are the lab's.
    """

    version: ClassVar[int]  # raise it when the same fields come to mean another result

    @property
    @abstractmethod
    def table(self) -> str:
        """Under what name its rows stand; the beginning of its folder's name."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is, for a line of progress."""

    @abstractmethod
    def needs(self) -> tuple["Cell", ...]:
        """Return the cells that have to be there first."""

    def content(self) -> dict[str, str]:
        """Return what else it depends on that no field tells: the images in a folder."""
        return {}

    @abstractmethod
    def factors(self) -> dict[str, Any]:
        """Return what its rows are told apart by in a study: columns that are the same in all of them."""

    @abstractmethod
    def work(self) -> float:
        """Return about how many floating-point operations it takes, for the plan."""

    @abstractmethod
    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Do it; go on from what a killed run left in ``folder``. Return the rows, if it has rows.

        Raises:
            UserError: for data or weights that cannot be had, or a result that is not finite.
        """


@final
@dataclass(frozen=True)
class Study:
    """A table or figure: which cells it expands to, what is drawn from their rows and what is claimed of them.

    Attributes:
        name: as the command line takes it.
        paper: ``"robustness"``, ``"diffclip"``, or a name of your own to group studies by.
        label: the artefact's name in the paper.
        title: what it shows, in a few words.
        text: the module's docstring: the artefact, the paper's numbers, the cost, the command.
        cells: from a profile to the cells whose rows it draws; what they need comes by itself.
        draw: from the rows to figures and tables.
        claims: from the rows to checked statements.
        settings: from a profile to what a reader needs to know of it.
    """

    name: str
    paper: str
    label: str
    title: str
    text: str | None
    cells: Callable[[Profile], Sequence[Cell]]
    draw: Callable[[RowsByTable], Artefact]
    claims: Callable[[RowsByTable], Sequence[Claim]] = lambda rows: ()
    settings: Callable[[Profile], Mapping[str, str]] = lambda profile: {}


def closure(cells: Sequence[Cell], key: Callable[[Cell], str]) -> list[Cell]:
    """Return the cells and all that they need, each once, needs first."""
    found: dict[str, Cell] = {}

    def add(cell: Cell) -> None:
        for need in cell.needs():
            add(need)
        found.setdefault(key(cell), cell)

    for cell in cells:
        add(cell)
    return list(found.values())
