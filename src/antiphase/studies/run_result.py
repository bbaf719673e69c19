"""Results of studies: their finished rows, packed, and what the report makes of them."""

import io
import tempfile
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
_CHOSEN = {"names", "profile", "seeds", "models", "baseline"}


def studied(options: StudyOptions) -> Result:
    """Return the finished cells of studies as a result: packed rows, ``claims.parquet``, and which studies they are."""
    chosen = options.model_dump(include=_CHOSEN)
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        list(pack_studies(PackOptions(**chosen, store=options.store, rows=options.rows, to=Path(name))))
        files = {path.name: path.read_bytes() for path in sorted(Path(name).glob("*.parquet"))}
        studies = results_of(StudyOptions(**chosen, rows=Path(name)))
    if any(study.claims for study in studies):
        table = io.BytesIO()
        pl.read_csv(claims_csv(studies).encode(), infer_schema_length=None).write_parquet(table)
        files["claims.parquet"] = table.getvalue()
    files[_CHOICE] = options.model_dump_json(include=_CHOSEN).encode()
    return StudyResult("study run", files, options.place.resolve())


class StudyResult(Result):
    """The finished rows of studies, packed, and what the report makes of them."""

    main_table = "claims"
    needs = (CELLS_FILE, _CHOICE)

    @classmethod
    def open(cls, folder: Path, command: str) -> Result:
        """Return the studies in a store, in packed rows or in a saved result: the finished ones, if any is."""
        if (folder / _CHOICE).exists():
            return read_result(folder, command)
        place: dict[str, Any] = {"rows": folder} if (folder / CELLS_FILE).exists() else {"store": folder}
        found: dict[str, dict[str, list[bool]]] = {}
        for name in ("paper", "laptop", "smoke"):
            chosen = select(StudyOptions(names=("all",), profile=name, **place))
            store, size = chosen.store, chosen.profile
            found[name] = {one.name: [store.done(cell) for cell in one.cells(size)] for one in chosen.studies}
        profile, done = max(found.items(), key=lambda pair: sum(map(sum, pair[1].values())))
        # studies share cells: one that was run may have made some of another's
        names = tuple(study for study, cells in done.items() if all(cells))
        names = names or tuple(study for study, cells in done.items() if any(cells))
        if not any(map(any, done.values())):
            raise UserError(
                f"{folder}: holds no finished cell of a study that comes with antiphase; for one of your own, call "
                "antiphase.study with its file and this store"
            )
        return studied(StudyOptions(names=names, profile=profile, **place))

    @cached_property
    def studies(self) -> list[Study]:
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
        tables = [*claims_sheets(self.studies), *map(table_sheet, drawn)]
        return [Section("studies", "Studies", tables=tables)]

    def figure(self) -> Figure:
        """Draw the first plot of a single study, else all claims."""
        plots = [plot for study in self.studies if study.artefact for plot in study.artefact.plots]
        alone = plots and len(self.studies) == 1
        return plot_figure(plots[0]) if alone else forest_figure(forest_lines(self.studies))

    def differences(self, other: Any) -> pl.DataFrame:
        raise UserError("compare: studies compare models in their claims: see frame()")

    def write_report(self, folder: Path) -> Path:
        return write_site(results_of(StudyOptions(**self.read_json(_CHOICE), rows=folder)), folder)
