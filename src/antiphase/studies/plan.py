"""The plan of a run: which cells are finished, which are missing, and how long they will take."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.studies.identity import identity
from antiphase.studies.spec import Cell, closure
from antiphase.studies.store import Reader

# floating-point operations per second of small cells, measured on one core, by table
_USUAL = {
    "train": 3e10,
    "attack": 2e10,
    "accuracy": 3e10,
    "evaluate": 3e10,
    "alignment": 1e10,
    "alignment-perturbed": 1e10,
    "lipschitz": 8e10,
    "depth": 1e10,
    "answers": 8e11,  # counted as if every answer took all steps
}
_ELSE = 1e10


@dataclass(frozen=True)
class Plan:
    """The cells of some studies and their state.

    Attributes:
        cells: all cells, dependencies first.
        missing: cells that a run will make, in this order: missing measurements and the trainings they need.
        damaged: reasons, by identity, for cells that will be made again.
        seconds: estimated time for the missing cells, run one after the other.
        known: number of finished cells behind that estimate; 0 if it uses built-in figures.
    """

    cells: list[Cell]
    missing: list[Cell]
    damaged: dict[str, str]
    seconds: float
    known: int


def make_plan(cells: Sequence[Cell], store: Reader) -> Plan:
    """Compare cells with the store and return what a run would do.

    A training without weights is repeated only if a missing cell needs it; a damaged one always.
    """
    everything = closure(cells, identity)
    damaged = {identity(cell): why for cell in everything if (why := store.damage(cell)) is not None}
    there = {identity(cell) for cell in everything if store.done(cell)}
    wanted: set[str] = set(damaged)
    asked = {identity(cell) for cell in cells}
    for cell in reversed(everything):  # dependencies come first
        own = identity(cell)
        if own not in there and (own in asked or own in wanted):
            wanted.add(own)
            wanted |= {identity(need) for need in cell.needs()} - there
    missing = [cell for cell in everything if identity(cell) in wanted]
    known = len(there) if _rates(everything, store) else 0
    return Plan(everything, missing, damaged, expected(missing, everything, store), known)


def expected(cells: Sequence[Cell], among: Sequence[Cell], store: Reader) -> float:
    """Estimate the time of cells in seconds, run one after the other, from the finished cells of ``among``."""
    rates = _rates(among, store)
    return sum(cell.work() / rates.get(cell.table, _USUAL.get(cell.table, _ELSE)) for cell in cells)


def _rates(cells: Sequence[Cell], store: Reader) -> dict[str, float]:
    """Return the median operations per second of uninterrupted cells, by table."""
    seen: dict[str, list[float]] = {}
    for cell in cells:
        record = store.record(cell)
        if record and record["whole"] and record["seconds"] > 0:
            seen.setdefault(cell.table, []).append(record["work"] / record["seconds"])
    return {table: statistics.median(values) for table, values in seen.items()}
