"""What a run would do: which cells are there, which have to be made, and how long that takes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.studies.identity import identity
from antiphase.studies.spec import Cell, closure
from antiphase.studies.store import Store

# floating-point operations a second that small cells come to on one core of this package's makers, by table
_USUAL = {
    "train": 3e10,
    "attack": 2e10,
    "accuracy": 3e10,
    "alignment": 1e10,
    "lipschitz": 8e10,
    "depth": 1e10,
}
_ELSE = 1e10


@dataclass(frozen=True)
class Plan:
    """The cells of some studies and where they stand.

    Attributes:
        cells: all of them, needs first.
        missing: those that a run makes, in that order: what is asked for and not there, and the trainings it needs.
        damaged: reasons, by identity: made again as well.
        seconds: that the missing ones take, about, one after the other.
        known: how many finished cells of the store that expectation comes from; 0: from the package's own figures.
    """

    cells: list[Cell]
    missing: list[Cell]
    damaged: dict[str, str]
    seconds: float
    known: int


def make_plan(cells: Sequence[Cell], store: Store) -> Plan:
    """Look at the store and return what a run of the cells would do.

    A training whose weights are gone is made again only where something still needs it; one that is damaged always.
    """
    everything = closure(cells, identity)
    damaged = {identity(cell): why for cell in everything if (why := store.damage(cell)) is not None}
    there = {identity(cell) for cell in everything if store.done(cell)}
    wanted: set[str] = set(damaged)
    asked = {identity(cell) for cell in cells}
    for cell in reversed(everything):  # what needs comes behind what is needed
        own = identity(cell)
        if own not in there and (own in asked or own in wanted):
            wanted.add(own)
            wanted |= {identity(need) for need in cell.needs()} - there
    missing = [cell for cell in everything if identity(cell) in wanted]
    known = len(there) if _rates(everything, store) else 0
    return Plan(everything, missing, damaged, expected(missing, everything, store), known)


def expected(cells: Sequence[Cell], among: Sequence[Cell], store: Store) -> float:
    """Return about how many seconds cells take one after the other, judged by those of ``among`` that are finished."""
    rates = _rates(among, store)
    return sum(cell.work() / rates.get(cell.table, _USUAL.get(cell.table, _ELSE)) for cell in cells)


def _rates(cells: Sequence[Cell], store: Store) -> dict[str, float]:
    """Return the median operations a second of the cells that were made in one go, by table."""
    seen: dict[str, list[float]] = {}
    for cell in cells:
        record = store.record(cell)
        if record and record["whole"] and record["seconds"] > 0:
            seen.setdefault(cell.table, []).append(record["work"] / record["seconds"])
    return {table: statistics.median(values) for table, values in seen.items()}
