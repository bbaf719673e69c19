"""The plan of a run: which cells are finished, which are missing, and how long they will take."""

import importlib
import importlib.util
import pkgutil
import re
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from antiphase.errors import UserError, shown
from antiphase.models.schemes.python_code import guarded
from antiphase.studies import own, pack, papers
from antiphase.studies.options import StudyOptions
from antiphase.studies.spec import Cell, Profile, Study, closure, profile
from antiphase.studies.store import Reader, Store, identity
from antiphase.terminal import duration

_USUAL = {"train": 60.0, "attack": 20.0, "answers": 600.0}
"""Seconds of a cell before the first one of its table is finished; 10 for others."""


@dataclass(frozen=True)
class Plan:
    """The cells of some studies and their state."""

    cells: list[Cell]  # all, dependencies first
    missing: list[Cell]  # what a run will make, in this order: measurements and the trainings they need
    damaged: dict[str, str]  # why cells will be made again, by identity
    seconds: float  # estimated for the missing cells, one after the other


def make_plan(cells: Sequence[Cell], store: Reader) -> Plan:
    """Return what a run would do: a training without weights is repeated only if a missing cell needs it."""
    everything = {identity(cell): cell for cell in closure(cells)}
    damaged = {name: why for name, cell in everything.items() if (why := store.damage(cell)) is not None}
    done = {name for name, cell in everything.items() if store.done(cell)}
    measured = set(map(identity, cells))
    needed = set(damaged)
    for name, cell in reversed(everything.items()):  # dependencies come first
        if name not in done and name in measured | needed:
            needed |= {name, *map(identity, cell.needs())} - done
    missing = [cell for name, cell in everything.items() if name in needed]
    every = list(everything.values())
    return Plan(every, missing, damaged, expected(missing, every, store))


def expected(cells: Sequence[Cell], among: Sequence[Cell], store: Reader) -> float:
    """Estimate the seconds of cells: what finished ones ``among`` some took, of any seed; else those of their table."""
    seconds: dict[str, list[float]] = {}
    for cell in among:
        if (record := store.record(cell)) and record["whole"]:
            for name in (cell.table, _any_seed(cell)):
                seconds.setdefault(name, []).append(record["seconds"])
    rates = {name: statistics.mean(values) for name, values in seconds.items()}
    return sum(rates.get(_any_seed(cell), rates.get(cell.table, _USUAL.get(cell.table, 10.0))) for cell in cells)


def _any_seed(cell: Cell) -> str:
    return f"{cell.table} {re.sub(r'seed [0-9]+', '', cell.label)}"


@dataclass(frozen=True)
class Selection:
    """Some studies under a profile, and the store of their cells."""

    profile: Profile
    studies: list[Study]
    store: Reader

    @property
    def cells(self) -> list[Cell]:
        return [cell for study in self.studies for cell in study.cells(self.profile)]


def select(options: StudyOptions) -> Selection:
    """Return the studies that the options name."""
    size = profile(options.profile, options.seeds)
    chosen, studies = replace(size, models=options.models), find_studies(options.names)
    if chosen != size and all(study.cells(chosen) == study.cells(size) for study in studies):
        names = ", ".join(study.name for study in studies[:3]) + (", …" if len(studies) > 3 else "")
        why = f"has no effect on {names} under profile {chosen.name}"
        raise UserError(f"--models: {why}; it is for studies that measure CLIPs")
    if options.rows is not None and not options.rows.is_dir():
        expected = "expected one written by antiphase study pack"
        raise UserError(f"rows {shown(str(options.rows))}: no such directory; {expected}")
    return Selection(chosen, studies, Store(options.store) if options.rows is None else pack.Pack(options.rows))


def describe(plan: Plan) -> str:
    """Say what a run would do and how long it takes."""
    if not plan.missing:
        return f"{len(plan.cells)} cells, all there"
    parts = ", ".join(f"{count} {table}" for table, count in Counter(cell.table for cell in plan.missing).items())
    time = f"about {duration(plan.seconds)} in one worker"
    return f"{len(plan.cells)} cells, {len(plan.missing)} to make ({parts}): {time}"


@lru_cache
def known_studies() -> dict[str, Study]:
    """Return the studies of the package by name: the sensitivity paper first, in the order of each paper; ours last."""
    names = [one.name for part in (papers, own) for one in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")]
    modules = map(importlib.import_module, names)
    studies = [value for module in modules for value in vars(module).values() if isinstance(value, Study)]
    studies.sort(key=lambda study: (study.paper != "robustness", study.paper, _order(study.label)))
    return {study.name: study for study in studies}


def _order(label: str) -> tuple[str, int, str]:
    """Sort "Figure 2(a)" between "Figure 1" and "Figure 10"; tables after figures."""
    kind, _, rest = label.partition(" ")
    return kind, int("".join(filter(str.isdigit, rest)) or 0), rest


def find_studies(names: Sequence[str]) -> list[Study]:
    """Return studies by name, by paper (``robustness``, ``diffclip``; ``own`` for ours), by file, or all."""
    known = known_studies()
    chosen: dict[str, Study] = {}
    for name in names:
        if name.endswith(".py"):
            studies = [load_study(Path(name))]
        else:
            studies = [study for study in known.values() if name in (study.name, study.paper, "all")]
        if not studies:
            fix = "list them with antiphase study list (for your own study, give a file ending in .py)"
            raise UserError(f"study {name!r}: unknown; {fix}")
        for study in studies:
            if any(other.get(study.name, study) is not study for other in (known, chosen)):
                raise UserError(f"{name}: duplicate study name {study.name!r}; rename it in the file")
            chosen[study.name] = study
    return list(chosen.values())


def load_study(path: Path) -> Study:
    """Return the ``study`` of a Python file; its folder is then on the import path, for the modules next to it."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; create one with antiphase study new NAME")
    spec = importlib.util.spec_from_file_location(f"antiphase_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    if (folder := str(path.resolve().parent)) not in sys.path:  # for good: cells may import more when they run
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    guarded(str(path), path.resolve().parent, partial(spec.loader.exec_module, module))
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise UserError(f"{path}: expected `study = Study(…)`; antiphase study new NAME writes an example")
    return study
