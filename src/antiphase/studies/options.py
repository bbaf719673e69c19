"""The options of ``antiphase study …``; imports neither torch nor polars, so that --help is quick."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from antiphase.errors import UserError
from antiphase.runs.options.base import Options, Typed
from antiphase.runs.options.fields import BatchSize, Device, Directory, Quiet

Names = Annotated[
    tuple[str, ...],
    Typed(argument=True),
    Field(description="Studies, a paper (robustness, diffclip), a file of your own, or all."),
]
Name = Annotated[str, Typed(argument=True), Field(description="Study, or a file of your own.")]
ProfileName = Annotated[
    Literal["smoke", "laptop", "paper"],
    Field(
        description="Size: smoke takes seconds, laptop suits 2 cores, paper has the paper's data and sizes."
    ),
]
Seeds = Annotated[
    int | None,
    Field(
        ge=1, le=1000, description="Number of training seeds. If not given: 3, and 1 for the profile smoke."
    ),
]
StoreFolder = Annotated[Directory, Field(description="Directory of rows and checkpoints.")]
AsJson = Annotated[bool, Typed(flags=("--json",)), Field(description="Print JSON instead of a table.")]
RowsFolder = Annotated[
    Path | None,
    Field(description="Directory of rows that ship (study pack), read in place of the store."),
]
STORE = Path("antiphase-store")
RESULTS = Path("results")


class ListOptions(Options):
    """List the studies: there is nothing to choose."""


class StudyOptions(Options):
    """Some studies under a profile, and the store of their results."""

    names: Names
    profile: ProfileName = "laptop"
    seeds: Seeds = None
    store: StoreFolder = STORE
    rows: RowsFolder = None

    @property
    def place(self) -> Path:
        """The folder that is read."""
        return self.store if self.rows is None else self.rows


class AnyStudyOptions(StudyOptions):
    """The same, of all studies where none is named."""

    names: Names = ("all",)


class RunOptions(StudyOptions):
    """Run every cell that is not in the store yet."""

    rows: Annotated[
        Path | None,
        Field(description="Directory of rows that ship; measurements that are there are not run again."),
    ] = None

    jobs: Annotated[
        int,
        Typed(flags=("--jobs", "-j")),
        Field(ge=1, description="Worker processes that share the cells; with SLURM, jobs."),
    ] = 1
    executor: Annotated[
        Literal["local", "slurm"],
        Field(description="Where the workers run: on this machine, or under SLURM (through submitit)."),
    ] = "local"
    slurm: Annotated[
        tuple[str, ...],
        Field(description="Setting of the SLURM jobs, NAME=VALUE as in submitit; repeat for several."),
    ] = ()
    dry_run: Annotated[
        bool,
        Field(
            description="Only build models and settings, compare them with the paper's, and say what would run."
        ),
    ] = False
    batch_size: BatchSize = None
    device: Device = "auto"
    quiet: Quiet = False

    @model_validator(mode="after")
    def _check(self) -> "RunOptions":
        if self.slurm and self.executor != "slurm":
            raise UserError(
                f"--slurm {self.slurm[0]}: is of --executor slurm; give it too or leave --slurm out"
            )
        return self


class RowsOptions(Options):
    """Print or export the rows of a study."""

    name: Name
    profile: ProfileName = "laptop"
    seeds: Seeds = None
    store: StoreFolder = STORE
    rows: RowsFolder = None
    table: Annotated[
        str | None,
        Field(description="Table: attack, accuracy, lipschitz and so on. If not given: all tables."),
    ] = None
    out: Annotated[Path | None, Field(description="File to write, .csv or .parquet.")] = None

    @property
    def study(self) -> StudyOptions:
        """The study whose rows are asked for."""
        return StudyOptions(
            names=(self.name,), profile=self.profile, seeds=self.seeds, store=self.store, rows=self.rows
        )


class ClaimsOptions(AnyStudyOptions):
    """Print every claim with its verdict."""

    into: Annotated[
        Path | None,
        Field(
            description="Markdown file in which to replace the lines between <!-- claims --> and <!-- /claims -->."
        ),
    ] = None
    json_: AsJson = False


class PackOptions(AnyStudyOptions):
    """Add finished cells to the rows that ship."""

    to: Annotated[Directory, Field(description="Directory to add the rows to.")] = RESULTS


class PowerOptions(StudyOptions):
    """Say what the stored rows can decide."""

    json_: AsJson = False


class ReportOptions(AnyStudyOptions):
    """Draw a site from the stored rows."""

    out: Annotated[Directory, Field(description="Directory of the site.")] = Path("antiphase-studies")
    markdown: Annotated[
        Path | None,
        Field(
            description="Markdown file to write the numbers to as well, with a picture of the claims next to it."
        ),
    ] = None
    readme: Annotated[
        Path | None,
        Field(
            description="Markdown file in which to replace the lines between <!-- findings --> and <!-- /findings -->; "
            "with --markdown."
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> "ReportOptions":
        if self.readme is not None and self.markdown is None:
            raise UserError("--readme shows the picture that --markdown writes: give --markdown, too")
        return self


class NewOptions(Options):
    """Write the file of a new study."""

    name: Annotated[
        str,
        Typed(argument=True),
        Field(description="Name of the study; NAME.py is written to the current folder."),
    ]

    @model_validator(mode="after")
    def _check(self) -> "NewOptions":
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise UserError(f"name {self.name!r}: expected small letters, digits and '-', such as my-study")
        return self
