"""Results of studies: their finished rows, packed, and what the report makes of them."""

import io
import json
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from antiphase.commands.result import Result, read_result
from antiphase.errors import UserError
from antiphase.report.page import Headline, Section
from antiphase.studies.options import PackOptions, StudyOptions
from antiphase.studies.pack import CELLS_FILE
from antiphase.studies.plan import select
from antiphase.studies.report.figures import plot_figure
from antiphase.studies.report.forest import forest_figure, forest_lines
from antiphase.studies.report.site import write_site
from antiphase.studies.report.tables import claims_csv, claims_sheets, table_sheet
from antiphase.studies.report.words import tally
from antiphase.studies.results import Result as Study
from antiphase.studies.results import pack_studies, results_of

_CHOICE = "study.json"
_CHOSEN = ("names", "profile", "seeds", "models", "baseline")
_PROFILES = ("paper", "laptop", "smoke")


def studied(options: StudyOptions) -> Result:
    """Return the finished cells of studies as a result: packed rows, ``claims.parquet``, and which studies they are.

    Raises:
        UserError: none of the cells is finished.
    """
    chosen = options.model_dump(include=set(_CHOSEN))
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        list(pack_studies(PackOptions(**chosen, store=options.store, rows=options.rows, to=Path(name))))
        files = {path.name: path.read_bytes() for path in sorted(Path(name).glob("*.parquet"))}
        claims = _claims(results_of(StudyOptions(**chosen, rows=Path(name))))
    choice = json.dumps(options.model_dump(mode="json", include=set(_CHOSEN)))
    return StudyResult("study run", files | claims | {_CHOICE: choice.encode()}, options.place.resolve())


def _claims(studies: Sequence[Study]) -> dict[str, bytes]:
    if not any(study.claims for study in studies):
        return {}
    table = io.BytesIO()
    pl.read_csv(claims_csv(studies).encode(), infer_schema_length=None).write_parquet(table)
    return {"claims.parquet": table.getvalue()}


class StudyResult(Result):
    """The finished rows of studies, packed, and what the report makes of them."""

    main_table = "claims"
    needs = (CELLS_FILE, _CHOICE)

    @classmethod
    def open(cls, folder: Path, command: str) -> Result:
        """Return the studies in a store, in packed rows or in a saved result: the finished ones, if any is.

        Raises:
            UserError: there is no finished cell of a study that comes with the package.
        """
        if (folder / _CHOICE).exists():
            return read_result(folder, command)
        place: dict[str, Any] = {"rows": folder} if (folder / CELLS_FILE).exists() else {"store": folder}
        most, names, profile = 0, (), _PROFILES[0]
        for name in _PROFILES:
            chosen = select(StudyOptions(names=("all",), profile=name, **place))
            done = {
                study.name: [chosen.store.done(cell) for cell in study.cells(chosen.profile)]
                for study in chosen.studies
            }
            if sum(map(sum, done.values())) > most:
                most, profile = sum(map(sum, done.values())), name
                # studies share cells: one that was run may have made some of another's
                whole = tuple(study for study, cells in done.items() if all(cells))
                names = whole or tuple(study for study, cells in done.items() if any(cells))
        if not most:
            raise UserError(
                f"{folder}: holds no finished cell of a study that comes with antiphase; for one of your own, call "
                "antiphase.study with its file and this store"
            )
        return studied(StudyOptions(names=names, profile=profile, **place))

    @cached_property
    def studies(self) -> list[Study]:
        """What each study found."""
        choice = self.read_json(_CHOICE)
        with self.unpacked() as folder:
            return results_of(StudyOptions(**choice, rows=folder))

    def line(self) -> str:
        names = ", ".join(study.name for study in self.studies[:3]) + " …" * (len(self.studies) > 3)
        done, total = (sum(getattr(study, name) for study in self.studies) for name in ("done", "total"))
        claims = tally([claim for study in self.studies for claim in study.claims])
        return f"{names} under profile {self.studies[0].profile}: {done} of {total} cells; claims: {claims or '–'}"

    def headlines(self) -> list[Headline]:
        return [Headline(self.line())]

    def sections(self) -> list[Section]:
        drawn = [table for study in self.studies if study.artefact for table in study.artefact.tables]
        tables = [*claims_sheets(self.studies, [""] * len(self.studies)), *map(table_sheet, drawn)]
        return [Section("studies", "Studies", tables=tables)]

    def figure(self) -> Figure:
        """Draw the first plot of a single study, else all claims."""
        plots = [plot for study in self.studies if study.artefact for plot in study.artefact.plots]
        alone = plots and len(self.studies) == 1
        return plot_figure(plots[0]) if alone else forest_figure(forest_lines(self.studies))

    def differences(self, other: Any) -> pl.DataFrame:
        """Return the differences of what the claims of both rest on; without an interval, as rows may be shared."""
        keys = ["study", "claim", "check"]
        if any("claims" not in result.tables for result in (self, other)):
            raise UserError("compare: expected studies with claims, of which some are judged in both")
        mine, theirs = (result.frame("claims").drop_nulls("value") for result in (self, other))
        both = mine.join(theirs, on=keys, suffix="_other", maintain_order="left")
        if both.is_empty():
            raise UserError("compare: no claim has a number in both; expected runs of one study")
        verdicts = [pl.when(pl.col("verdict") == pl.col("verdict_other")).then("verdict")]
        told = verdicts[0].otherwise(pl.format("{} and {}", "verdict", "verdict_other"))
        return both.select(
            model=pl.lit("first"),
            against=pl.lit("second"),
            metric=pl.format("{}: {}, {} ({})", *keys, told),
            difference=pl.col("value") - pl.col("value_other"),
            low=pl.lit(None, pl.Float64),
            high=pl.lit(None, pl.Float64),
            n=pl.lit(1),
        )

    def write_report(self, folder: Path) -> Path:
        return write_site(results_of(StudyOptions(**self.read_json(_CHOICE), rows=folder)), folder)
