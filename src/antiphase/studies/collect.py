"""Collect the rows, artefact, claims and provenance of a study from a store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from antiphase.errors import UserError, first_line
from antiphase.statistics.seeds_by_images import CrossedEstimate
from antiphase.studies.artefact import Artefact
from antiphase.studies.cells import FACTORS
from antiphase.studies.claims import Check, Claim
from antiphase.studies.deviations import note_of, shown_settings
from antiphase.studies.estimation import SEED
from antiphase.studies.identity import identity
from antiphase.studies.provenance import core_seconds
from antiphase.studies.results import Result
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study, closure
from antiphase.studies.store import Reader


def study_rows(cells: Sequence[Cell], store: Reader) -> RowsByTable:
    """Return the rows of the finished cells by table, with the columns that identify their cells."""
    found: dict[str, list[pl.DataFrame]] = {}
    for cell in cells:
        if not store.done(cell) or (rows := store.rows(cell)) is None:
            continue
        factors = [
            pl.lit(value, FACTORS.get(name)).alias(name)
            for name, value in (dict.fromkeys(FACTORS) | cell.factors()).items()
        ]
        named = rows.with_columns(*factors, cell=pl.lit(identity(cell)))
        found.setdefault(cell.table, []).append(named)
    return {table: pl.concat(frames, how="diagonal_relaxed") for table, frames in found.items()}


def result(study: Study, profile: Profile, store: Reader, command: str, partial: bool = False) -> Result:
    """Return the results of a study under a profile, as far as its finished cells allow.

    Claims are judged only when all cells are finished, so that verdicts do not depend on which seeds finish first, and
    never under the profile ``smoke``. An artefact that has no meaning under the profile is the reason alone.

    Args:
        study: the study.
        profile: its scale.
        store: where its cells are.
        command: the command that makes them.
        partial: whether claims keep estimates from the finished cells while others are missing.

    Raises:
        UserError: The rows are of an older schema.
    """
    cells = study.cells(profile)
    done = [cell for cell in cells if store.done(cell)]
    rows = study_rows(done, store)
    whole = {cell.table for cell in cells} <= set(rows)
    reason = study.meaningless.get(profile.name)
    artefact, claims = _read(study, rows, profile) if whole and not reason else (None, [])
    claims = _claims(
        claims,
        {identity(cell): cell for cell in done},
        store,
        partial or len(done) == len(cells),
        profile.name != "smoke",
    )
    records = [record for cell in done if (record := store.record(cell)) is not None]
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(version)
    warnings = sorted({warning for record in records for warning in record["warnings"]})
    return Result(
        study.name,
        study.paper,
        study.label,
        study.title,
        study.text or "",
        profile.name,
        training_seeds(cells),
        command,
        len(done),
        len(cells),
        Artefact(notes=[reason]) if reason else artefact,
        claims,
        {**shown_settings(study, profile), **({"warnings": "; ".join(warnings)} if warnings else {})},
        {name: ", ".join(sorted(each)) for name, each in sorted(versions.items())},
        sorted({record["hardware"] for record in records}),
        sum(record["seconds"] for record in records),
    )


def training_seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    """Return the training seeds of the models that are measured."""
    found = {cell.factors().get(SEED) for cell in cells}
    return tuple(sorted(seed for seed in found if seed is not None))


def _read(study: Study, rows: RowsByTable, profile: Profile) -> tuple[Artefact, Sequence[Claim]]:
    """Return what a study draws, with a note of what deviates from the paper, and what it claims.

    Raises:
        UserError: The rows lack a column.
    """
    try:
        drawn, claims = study.draw(rows), study.claims(rows)
    except pl.exceptions.ColumnNotFoundError as error:
        lacking = first_line(error).strip("\"'` ")
        raise UserError(
            f"{study.name}: the stored rows are of an older schema and lack a column ({lacking}); run the study again"
        ) from None
    note = note_of(study, profile)
    return replace(drawn, notes=[*drawn.notes, note]) if note else drawn, claims


def _claims(
    found: Sequence[Claim], cells: Mapping[str, Cell], store: Reader, complete: bool, judged: bool
) -> list[Claim]:
    """Return claims with what their verdicts depend on besides the estimates: completeness, seeds, cost."""

    def own(check: Check) -> list[Cell]:
        """Return the cells behind a check; all of the study's where the rows do not tell."""
        known = check.estimate.cells if isinstance(check.estimate, CrossedEstimate) else ()
        return [cells[cell] for cell in known if cell in cells] or list(cells.values())

    def completed(check: Check) -> Check:
        given = check.seeds == 1 and not any(cell.needs() for cell in own(check))
        return replace(
            check,
            estimate=check.estimate if complete else None,
            judged=judged,
            over="images" if given and own(check) else "seeds",
            seconds=seconds_per_seed(own(check), store, check.seeds),
        )

    return [
        replace(
            claim,
            checks=[completed(check) for check in claim.checks],
            seconds=seconds_per_seed(
                [cell for check in claim.checks for cell in own(check)],
                store,
                min((check.seeds for check in claim.checks), default=0),
            ),
        )
        for claim in found
    ]


def seconds_per_seed(cells: Sequence[Cell], store: Reader, seeds: int) -> float | None:
    """Return the recorded core-seconds of cells and their trainings, divided by a number of training seeds."""
    records = [store.record(cell) for cell in closure(cells, identity)]
    if not records or not seeds:
        return None
    return sum(core_seconds(record) for record in records if record is not None) / seeds
