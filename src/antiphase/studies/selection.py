"""The studies that the options name, under their profile, with the store of their cells."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase.errors import UserError, shown
from antiphase.progress import duration
from antiphase.studies.collect import result
from antiphase.studies.options import RESULTS, STORE, PackOptions, StudyOptions
from antiphase.studies.pack import Pack, add_to_pack
from antiphase.studies.plan import Plan, make_plan
from antiphase.studies.registry import find_studies
from antiphase.studies.results import Result
from antiphase.studies.spec import Cell, Profile, Study, profile
from antiphase.studies.store import Reader, Store
from antiphase.terminal import say


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
    """Return the studies that the options name.

    Raises:
        UserError: one of them is not known, an option has no effect on them, or the rows do not exist.
    """
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


def pack_studies(options: PackOptions) -> Iterator[tuple[str, int]]:
    """Add the finished cells of studies to rows that ship; yield the name of each and how many were added.

    Raises:
        UserError: None of the cells is finished.
    """
    chosen, pack = select(options), Pack(options.to)
    if not any(chosen.store.done(cell) for cell in chosen.cells):
        raise UserError(
            f"{options.place}: holds no finished cell of these studies; {options.next_command('run')} makes them"
        )
    for study in chosen.studies:
        count = add_to_pack(
            pack, study.name, _command(options, study), study.cells(chosen.profile), chosen.store
        )
        yield study.name, count


def _command(options: StudyOptions, study: Study) -> str:
    """Return the command that makes the cells of a study."""
    files = (name for name in options.names if name.endswith(".py") and Path(name).stem == study.name)
    return shlex.join(["antiphase", "study", "run", next(files, study.name), *options.words])


def results_of(options: StudyOptions, partial: bool = False) -> list[Result]:
    """Return what the store knows of the studies that the options name.

    Args:
        options: names, profile, seeds and store.
        partial: whether claims keep estimates from the finished cells while others are missing.
    """
    found, chosen = [], select(options)
    for study in chosen.studies:
        found.append(result(study, chosen.profile, chosen.store, _command(options, study), partial))
    return found


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
