"""Collect the rows, artefact, claims and provenance of a study from a store."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from antiphase.studies.artefact import Artefact
from antiphase.studies.cells import FACTORS
from antiphase.studies.claims import Claim
from antiphase.studies.deviations import note_of, shown_settings
from antiphase.studies.estimation import SEED
from antiphase.studies.identity import identity
from antiphase.studies.results import Result
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study
from antiphase.studies.store import Store


def study_rows(cells: Sequence[Cell], store: Store) -> RowsByTable:
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


def result(study: Study, profile: Profile, store: Store, command: str) -> Result:
    """Return the results of a study under a profile, as far as its finished cells allow.

    Claims are judged only when all cells are finished, so that verdicts do not depend on which seeds finish first, and
    never under the profile ``smoke``. An artefact that has no meaning under the profile is the reason alone.
    """
    cells = study.cells(profile)
    done = [cell for cell in cells if store.done(cell)]
    rows = study_rows(done, store)
    whole = {cell.table for cell in cells} <= set(rows)
    records = [record for cell in done if (record := store.record(cell)) is not None]
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(version)
    reason, judged = study.meaningless.get(profile.name), profile.name != "smoke"
    artefact = Artefact(notes=[reason]) if reason else _drawn(study, rows, profile) if whole else None
    claims = _claims(study, rows, len(done) == len(cells), judged) if whole and not reason else ()
    warnings = sorted({warning for record in records for warning in record["warnings"]})
    return Result(
        study.name, study.paper, study.label, study.title, study.text or "", profile.name, _seeds(cells), command,
        len(done), len(cells), artefact, claims,
        {**shown_settings(study, profile), **({"warnings": "; ".join(warnings)} if warnings else {})},
        {name: ", ".join(sorted(each)) for name, each in sorted(versions.items())},
        sorted({record["hardware"] for record in records}), sum(record["seconds"] for record in records),
    )  # fmt: skip


def _seeds(cells: Sequence[Cell]) -> list[int]:
    """Return the training seeds of the models that are measured."""
    found = {cell.factors().get(SEED) for cell in cells}
    return sorted(seed for seed in found if seed is not None)


def _drawn(study: Study, rows: RowsByTable, profile: Profile) -> Artefact:
    """Return the figures and tables, with a note of what deviates from the paper."""
    drawn, note = study.draw(rows), note_of(study, profile)
    return replace(drawn, notes=[*drawn.notes, note]) if note else drawn


def _claims(study: Study, rows: RowsByTable, complete: bool, judged: bool) -> list[Claim]:
    return [
        replace(
            claim,
            checks=[
                replace(check, estimate=check.estimate if complete else None, judged=judged)
                for check in claim.checks
            ],
        )
        for claim in study.claims(rows)
    ]
