"""The results of a study, as input of the report."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
from joblib import Parallel, cpu_count, delayed

from antiphase.errors import UserError, first_line
from antiphase.files import write_text
from antiphase.statistics.seeds_by_images import CrossedEstimate
from antiphase.store import write_frame
from antiphase.studies.cells import FACTORS
from antiphase.studies.claims import Claim
from antiphase.studies.estimation import SEED
from antiphase.studies.figures import Artefact
from antiphase.studies.options import RESULTS, STORE, PackOptions, RowsOptions, StudyOptions
from antiphase.studies.pack import Pack, add_to_pack
from antiphase.studies.paper_settings import note_of, shown_settings, text_of
from antiphase.studies.plan import select
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study, closure
from antiphase.studies.store import RENEWED, Reader, core_seconds, identity
from antiphase.terminal import progress_bar, say

_MANY = 8  # studies; fewer are read faster than other processes start
_PROCESSES = 4  # at most: each reads the rows of its studies anew


@dataclass(frozen=True)
class Result:
    """One study under one profile."""

    name: str
    paper: str
    label: str
    title: str
    text: str
    profile: str
    seeds: Sequence[int]
    command: str
    done: int
    total: int
    artefact: Artefact | None
    claims: Sequence[Claim] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Sequence[str] = ()
    seconds: float = 0.0


def study_rows(cells: Sequence[Cell], store: Reader) -> RowsByTable:
    """Return the rows of the finished cells by table, with the columns that identify their cells."""
    tables: dict[str, list[pl.DataFrame]] = {}
    for cell in cells:
        if store.done(cell) and (rows := store.rows(cell)) is not None:
            factors = (dict.fromkeys(FACTORS) | cell.factors()).items()
            constant = [pl.lit(value, FACTORS.get(name)).alias(name) for name, value in factors]
            tables.setdefault(cell.table, []).append(rows.with_columns(*constant, cell=pl.lit(identity(cell))))
    return {table: pl.concat(frames, how="diagonal_relaxed") for table, frames in tables.items()}


def result(study: Study, profile: Profile, store: Reader, command: str) -> Result:
    """Return the results of a study as far as its finished cells allow.

    Claims are judged only when all cells are finished, so that verdicts do not depend on which seeds finish first.
    """
    cells = study.cells(profile)
    done = [cell for cell in cells if store.done(cell)]
    rows = study_rows(done, store)
    artefact, claims = None, []
    if {cell.table for cell in cells} <= set(rows):
        try:
            artefact, claims = study.draw(rows), study.claims(rows)
        except pl.exceptions.ColumnNotFoundError as error:
            lacking = first_line(error).strip("\"'` ")
            why = f"the stored rows are of an older schema and lack a column ({lacking})"
            raise UserError(f"{study.name}: {why}; run the study again") from None
        artefact = replace(artefact, notes=[*artefact.notes, *note_of(study, profile), *_of_before(done, store)])
        complete, by_identity = len(done) == len(cells), {identity(cell): cell for cell in done}
        claims = [_judged(claim, by_identity, store, complete, profile) for claim in claims]
    records = [record for cell in done if (record := store.record(cell)) is not None]
    versions: dict[str, set[str]] = {}
    for name, version in (pair for record in records for pair in record["versions"].items()):
        versions.setdefault(name, set()).add(version)
    settings = shown_settings(study, profile) | costs(cells, store)
    if warnings := sorted({warning for record in records for warning in record["warnings"]}):
        settings["warnings"] = "; ".join(warnings)
    told: dict[str, Any] = {name: getattr(study, name) for name in ("name", "paper", "label", "title")}
    told |= {"text": text_of(study), "profile": profile.name, "seeds": training_seeds(cells), "command": command}
    told |= {"done": len(done), "total": len(cells), "artefact": artefact, "claims": claims, "settings": settings}
    told["versions"] = {name: ", ".join(sorted(several)) for name, several in sorted(versions.items())}
    told["hardware"] = sorted({record["hardware"] for record in records})
    return Result(**told, seconds=sum(record["seconds"] for record in records))


def _of_before(cells: Sequence[Cell], store: Reader) -> list[str]:
    """Say if rows are of data sources as they were before they were ``RENEWED``."""
    former = [cell for cell in cells if (store.record(cell) or {}).get("cell", identity(cell)) != identity(cell)]
    names = sorted({data for cell in closure(former) if (data := str(getattr(cell, "data", ""))) in RENEWED})
    how = " and ".join({RENEWED[name]: None for name in names})
    older = f"{len(former)} of {len(cells)} cells are older than a change of {', '.join(names)}"
    return [f"{older}: these are {how} now, and a run makes other rows."] if names else []


def _judged(claim: Claim, cells: Mapping[str, Cell], store: Reader, complete: bool, profile: Profile) -> Claim:
    """Return a claim with what its verdict depends on besides the estimates: completeness, seeds, cost."""
    checks, basis = [], dict[str, tuple[Cell, int]]()
    for check in claim.checks:
        known = check.estimate.cells if isinstance(check.estimate, CrossedEstimate) else ()
        # all of the study's where the rows do not tell
        measured = [cells[cell] for cell in known if cell in cells] or list(cells.values())
        given = bool(measured) and check.seeds == 1 and not any(cell.needs() for cell in measured)
        for cell in closure(measured):
            key = identity(cell)
            basis[key] = cell, max(check.seeds, basis.get(key, (cell, 0))[1])
        estimate, over = check.estimate if complete else None, "images" if given else "seeds"
        checks.append(replace(check, estimate=estimate, judged=profile.name != "smoke", over=over))
    known = basis and all(seeds for _, seeds in basis.values())
    rates = [core_seconds(record) / seeds for cell, seeds in basis.values() if known and (record := store.record(cell))]
    return replace(claim, checks=checks, seconds=sum(rates) if known else None)


def costs(cells: Sequence[Cell], store: Reader) -> dict[str, str]:
    """Return the numbers of trainings and of measurements, and the core-minutes that those on record took."""
    measured = {identity(cell) for cell in cells}
    trainings = [cell for cell in closure(cells) if identity(cell) not in measured]
    words = {}
    for name, some in (("trainings", trainings), ("measurements", cells)):
        seconds = [core_seconds(record) for cell in some if (record := store.record(cell)) is not None]
        words[name] = f"{len(some):,}; {len(seconds):,} took {sum(seconds) / 60:,.1f} core-minutes"
    return words


def training_seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    """Return the training seeds of the models that are measured."""
    return tuple(sorted(seed for seed in {cell.factors().get(SEED) for cell in cells} if seed is not None))


def reading(options: Any) -> Any:
    """Return the options of a command that reads: without a store, and if no rows are named, with those of results/."""
    if options.rows is None and options.store == STORE and not STORE.exists() and RESULTS.is_dir():
        say(f"there is no {STORE} here: rows are read from {RESULTS}", err=True)
        return options.model_copy(update={"rows": RESULTS})
    return options


def chosen_rows(options: RowsOptions) -> dict[str, pl.DataFrame]:
    """Return the rows of a study, by table."""
    name, table, chosen = ", ".join(options.names), options.table, select(options)
    if len(chosen.studies) > 1:
        raise UserError(f"{name!r} is several studies: name one; antiphase study list shows them")
    if not (rows := study_rows(chosen.cells, chosen.store)):
        why = f"no rows in {options.place} under profile {options.profile}"
        raise UserError(f"{name}: {why}; {options.next_command('run')} makes them")
    if table is not None and table not in rows:
        raise UserError(f"table {table!r}: expected one of {', '.join(rows)}")
    if table is None and len(rows) > 1 and options.out is not None:
        raise UserError(f"{name} has several tables: name one with --table: {', '.join(rows)}")
    return {key: frame for key, frame in rows.items() if table in (None, key)}


def write_rows(frame: pl.DataFrame, out: Path) -> None:
    """Write rows as CSV or Parquet."""
    if out.suffix not in (".csv", ".parquet"):
        raise UserError(f"{out}: expected a name that ends in .csv or .parquet")
    nested = [column for column, kind in frame.schema.items() if kind.is_nested() or kind == pl.Binary]
    if out.suffix == ".csv" and nested:
        raise UserError(f"{out}: column {nested[0]} does not fit a CSV; expected a name ending in .parquet")
    if out.suffix == ".csv":
        write_text(out, frame.write_csv())
    else:
        write_frame(out, frame)


def pack_studies(options: PackOptions, *, small: bool = True) -> Iterator[tuple[str, int]]:
    """Add the finished cells of studies to rows that ship; yield the name of each and how many were added."""
    chosen, pack = select(options), Pack(options.to)
    if not any(chosen.store.done(cell) for cell in chosen.cells):
        why = "holds no finished cell of these studies"
        raise UserError(f"{options.place}: {why}; {options.next_command('run')} makes them")
    for study in chosen.studies:
        cells, command = study.cells(chosen.profile), _command(options, study)
        yield study.name, add_to_pack(pack, study.name, command, cells, chosen.store, small=small)


def _command(options: StudyOptions, study: Study) -> str:
    files = (name for name in options.names if name.endswith(".py") and Path(name).stem == study.name)
    return shlex.join(["antiphase", "study", "run", next(files, study.name), *options.words])


def results_of(options: StudyOptions) -> list[Result]:
    """Return what the store knows of the studies that the options name."""
    count = len(select(options).studies)
    shares = processes(count)
    batches = in_processes("claims", shares, _every_nth, [(options, first, shares) for first in range(shares)])
    return [batches[place % shares][place // shares] for place in range(count)]


def _every_nth(options: StudyOptions, first: int, step: int) -> list[Result]:
    chosen = select(options)
    studies = chosen.studies[first::step]
    return [result(study, chosen.profile, chosen.store, _command(options, study)) for study in studies]


def processes(studies: int) -> int:
    """Return in how many processes to treat some studies: one if others would take longer to start."""
    return 1 if studies < _MANY else min(_PROCESSES, cpu_count())


def in_processes(title: str, jobs: int, function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """Return the values of a function for tuples of arguments, in order, from ``jobs`` processes; show progress."""
    calls, values = (delayed(function)(*one) for one in arguments), []
    with progress_bar(title, len(arguments), True) as advance:
        for value in Parallel(jobs, return_as="generator", max_nbytes=None)(calls):
            values.append(value)
            advance(1)
    return values
