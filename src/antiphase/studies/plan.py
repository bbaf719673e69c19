"""The plan of a run: which cells are finished, which are missing, and how long they will take."""

import difflib
import importlib
import importlib.util
import pkgutil
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from antiphase.errors import UserError, shown
from antiphase.files import write_text
from antiphase.models.schemes.python_code import guarded
from antiphase.progress import duration
from antiphase.studies import own, papers
from antiphase.studies.options import RESULTS, STORE, StudyOptions
from antiphase.studies.pack import Pack
from antiphase.studies.spec import Cell, Profile, Study, closure, profile
from antiphase.studies.store import Reader, Store, identity
from antiphase.terminal import say

# seconds of a cell before the first one of its table is finished
_USUAL = {"train": 60.0, "attack": 20.0, "answers": 600.0}
_ELSE = 10.0


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
    known = len(there) if _seconds(everything, store) else 0
    return Plan(everything, missing, damaged, expected(missing, everything, store), known)


def expected(cells: Sequence[Cell], among: Sequence[Cell], store: Reader) -> float:
    """Estimate the time of cells in seconds, run one after the other, from the finished cells of ``among``.

    A cell takes as long as the median of those that differ in the training seed alone, otherwise of its table.
    """
    seconds = _seconds(among, store)
    usual = (seconds.get(cell.table, _USUAL.get(cell.table, _ELSE)) for cell in cells)
    return sum(seconds.get(_kind(cell), other) for cell, other in zip(cells, usual, strict=True))


def _kind(cell: Cell) -> str:
    return f"{cell.table} {re.sub(r' seed [0-9]+', '', cell.label)}"


def _seconds(cells: Sequence[Cell], store: Reader) -> dict[str, float]:
    """Return the median seconds of uninterrupted cells, by kind and by table."""
    seen: dict[str, list[float]] = {}
    for cell in cells:
        record = store.record(cell)
        if record and record["whole"]:
            for name in (_kind(cell), cell.table):
                seen.setdefault(name, []).append(record["seconds"])
    return {name: statistics.median(values) for name, values in seen.items()}


@dataclass(frozen=True)
class Selection:
    """Some studies under a profile, and the store of their cells."""

    profile: Profile
    studies: list[Study]
    store: Reader

    @property
    def cells(self) -> list[Cell]:
        """The cells of all the studies."""
        return [cell for study in self.studies for cell in study.cells(self.profile)]

    def plan(self, study: Study) -> Plan:
        """Return what a run of one study would do."""
        return make_plan(study.cells(self.profile), self.store)


def select(options: StudyOptions) -> Selection:
    """Return the studies that the options name."""
    size = profile(options.profile, options.seeds)
    chosen = replace(size, models=options.models, baseline=options.baseline)
    studies = find_studies(options.names)
    if chosen.models:
        _check_effect(studies, chosen, replace(chosen, models=()), "models", "studies that measure CLIPs")
    if chosen.baseline:
        where = "studies of the released pair: with --models released, or Figures 2(b), 2(d) and 4 of robustness, paper"
        _check_effect(studies, chosen, replace(chosen, baseline=None), "baseline", where)
    if options.rows is not None and not options.rows.is_dir():
        raise UserError(
            f"rows {shown(str(options.rows))}: no such directory; expected one written by antiphase study pack"
        )
    store = Store(options.store) if options.rows is None else Pack(options.rows)
    return Selection(chosen, studies, store)


def reading(options: Any) -> Any:
    """Return the options of a command that reads: without a store, and if no rows are named, with those of results/."""
    if options.rows is None and options.store == STORE and not STORE.exists() and RESULTS.is_dir():
        say(f"there is no {STORE} here: rows are read from {RESULTS}", err=True)
        return options.model_copy(update={"rows": RESULTS})
    return options


def _check_effect(studies: list[Study], chosen: Profile, without: Profile, name: str, where: str) -> None:
    if all(list(study.cells(chosen)) == list(study.cells(without)) for study in studies):
        names = ", ".join(study.name for study in studies[:3]) + (", …" if len(studies) > 3 else "")
        raise UserError(f"--{name}: has no effect on {names} under profile {chosen.name}; it is for {where}")


def describe(plan: Plan) -> str:
    """Say what a run would do and how long it takes."""
    if not plan.missing:
        return f"{len(plan.cells)} cells, all there"
    kinds: dict[str, int] = {}
    for cell in plan.missing:
        kinds[cell.table] = kinds.get(cell.table, 0) + 1
    parts = ", ".join(f"{count} {table}" for table, count in kinds.items())
    basis = f"judged by {plan.known} finished cells" if plan.known else "a rough guess before the first cells"
    time = f"about {duration(plan.seconds)} in one worker, {basis}"
    return f"{len(plan.cells)} cells, {len(plan.missing)} to make ({parts}): {time}"


EVERY = "all"


@lru_cache
def known_studies() -> dict[str, Study]:
    """Return the studies of the package by name: the robustness paper first, in the order of each paper; ours last."""
    found = []
    for package in (papers, own):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found += [value for value in values if isinstance(value, Study)]
    found.sort(key=lambda study: (study.paper != "robustness", study.paper, _order(study.label)))
    return {study.name: study for study in found}


def _order(label: str) -> tuple[str, int, str]:
    """Sort "Figure 2(a)" between "Figure 1" and "Figure 10"; tables after figures."""
    kind, _, rest = label.partition(" ")
    digits = "".join(char for char in rest if char.isdigit())
    return kind, int(digits or 0), rest


def find_studies(names: Sequence[str]) -> list[Study]:
    """Return studies by name, by paper (``robustness``, ``diffclip``; ``own`` for ours), by file, or all.

    Raises:
        UserError: A name is unknown, or a file defines no study.
    """
    known = known_studies()
    found: dict[str, Study] = {}
    for name in names:
        if name.endswith(".py"):
            studies = [load_study(Path(name))]
            if studies[0].name in known:
                raise UserError(
                    f"{name}: study name {studies[0].name!r} belongs to a study of the papers; rename it"
                )
        elif name in known:
            studies = [known[name]]
        else:
            studies = [study for study in known.values() if name in (EVERY, study.paper)]
        if not studies:
            near = difflib.get_close_matches(name, known, n=3)
            guess = f"did you mean {', '.join(near)}?" if near else "list them with antiphase study list"
            raise UserError(
                f"study {name!r}: unknown; {guess} (for your own study, give a file ending in .py)"
            )
        for study in studies:
            if found.setdefault(study.name, study) is not study:
                raise UserError(f"{name}: duplicate study name {study.name!r}; rename it in the file")
    return list(found.values())


def load_study(path: Path) -> Study:
    """Return the ``study`` of a Python file; its folder is then on the import path, for the modules next to it.

    Raises:
        UserError: The file does not exist, raises an error, or defines no ``study``.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; create one with antiphase study new NAME")
    spec = importlib.util.spec_from_file_location(f"antiphase_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for good: cells may import more when they run
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    guarded(str(path), path.resolve().parent, partial(spec.loader.exec_module, module))
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        raise UserError(f"{path}: expected `study = Study(…)`; antiphase study new NAME writes an example")
    return study


def write_study(name: str) -> Path:
    """Write ``NAME.py`` into the current folder and return its path."""
    path = Path(f"{name}.py")
    if path.exists():
        raise UserError(f"{path}: exists; give another name")
    text = files("antiphase.studies").joinpath("example.py").read_text(encoding="utf-8")
    text = text.replace("NAME.py", f"{name}.py").replace('Study("example"', f'Study("{name}"')
    write_text(path, text)
    return path
