"""The options of ``antiphase study …``; imports neither torch nor polars, so that --help is quick."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from antiphase.commands.command import Command
from antiphase.commands.options import BatchSize, Device, Directory, Options, Quiet, Track, Typed, Words
from antiphase.errors import UserError, shown

RELEASED = "released"  # in `--models`: the pair of the DiffCLIP paper's authors
STORE = Path("antiphase-store")
RESULTS = Path("results")
_KINDS = ("diffclip:", "open_clip:")


def _known_models(specs: tuple[str, ...]) -> tuple[str, ...]:
    for place, spec in enumerate(specs):
        known = spec == RELEASED or (spec.startswith(_KINDS) and spec.partition(":")[2])
        if not (known or (Path(spec).expanduser() / "recipe.json").is_file()):
            expected = "a directory of train-clip, diffclip:PATH#lambda_init=0.8, diffclip:PATH, open_clip:NAME/TAG"
            raise UserError(f"models {shown(spec)}: expected {expected} or {RELEASED}")
        if spec in specs[:place]:
            raise UserError(f"models {shown(spec)}: given twice; give each model once")
    return specs


_STUDIES = Field(description="Studies, a group (robustness, diffclip, own), a file of your own, or all.")
Names = Annotated[tuple[str, ...], Typed(argument=True, metavar="STUDY"), _STUDIES]
_MODELS = (
    "CLIPs to measure instead of training them, separated by commas: directories of train-clip, "
    f"diffclip:PATH#lambda_init=0.8, diffclip:PATH (standard attention), open_clip:NAME/TAG, or {RELEASED} (the "
    "DiffCLIP authors' pair from the hub). A diffclip: model counts as trained on CC3M if its path contains cc3m, "
    "otherwise on CC12M. Several of one kind count as training seeds."
)
GivenModels = Annotated[Words, AfterValidator(_known_models), Field(description=_MODELS)]
_ROWS = (
    "Directory of rows written by study pack, read in place of the store. If not given and there is no store: "
    "results/, if there is one, as in a clone."
)
ReadRows = Annotated[Path | None, Field(description=_ROWS)]


class ListOptions(Options):
    """List the studies of both papers and our own."""


class StudyOptions(Options):
    """Show a study: the paper's numbers, the settings, every cell, and how long the missing ones take.

    **Examples**

    antiphase study show figure-3a --profile paper
    """

    names: Names
    profile: Literal["smoke", "laptop", "paper"] = "laptop"
    """Size: smoke takes seconds, laptop hours on 2 cores; paper has the paper's data and sizes."""
    seeds: int | None = Field(None, ge=1, le=1000)
    """Number of training seeds. If not given: the study's own number, which its page says; 1 for the profile smoke."""
    models: GivenModels = ()
    store: Annotated[Directory, Field(description="Directory of rows and checkpoints.")] = STORE
    rows: Path | None = Field(None, description="Directory of rows written by study pack, read in place of the store.")

    @property
    def place(self) -> Path:
        return self.store if self.rows is None else self.rows

    @property
    def words(self) -> list[str]:
        """The words of a command line that choose this size and these models."""
        words = ["--profile", self.profile, *(["--seeds", str(self.seeds)] if self.seeds else [])]
        return words + (["--models", ",".join(self.models)] if self.models else [])

    def next_command(self, name: str) -> str:
        """Return another command of antiphase study for the same studies, as one types it."""
        words = ["antiphase", "study", name, *self.names, *self.words]
        return shlex.join(words + (["--store", str(self.store)] if self.store != STORE else []))


class AnyStudyOptions(StudyOptions):
    """The same, of all studies where none is named."""

    names: Names = ("all",)


class StatusOptions(AnyStudyOptions):
    """Show for each study how many cells are done, running or damaged.

    **Examples**

    antiphase study status robustness --profile paper
    """


class RunOptions(StudyOptions):
    """Run every cell of some studies that is not in the store yet.

    The same command resumes a killed run; finished cells are not run again. Several runs may share one
    store: each takes cells that no other works on.

    **Examples**

    antiphase study run table-1 --profile smoke
    antiphase study run robustness --profile laptop
    antiphase study run table-3 --profile paper --dry-run
    torchrun --nproc-per-node 4 -m antiphase study run figure-2a --profile paper
    """

    rows: Path | None = None
    """Directory of rows written by study pack; measurements that are there are not run again."""
    dry_run: bool = False
    """Only build models and settings, compare them with the paper's, and say what would run."""
    track: Track = ()
    batch_size: BatchSize = None
    device: Device = "auto"
    quiet: Quiet = False


class RowsOptions(StudyOptions):
    """Print or export the rows that a study is drawn from: one for each image, layer, head or seed.

    **Examples**

    antiphase study rows figure-2a --table attack --out asr.csv
    """

    rows: ReadRows = None
    table: str | None = None
    """Table: attack, accuracy, lipschitz and so on. If not given: all tables."""
    out: Path | None = Field(None, description="File to write, .csv or .parquet.")


class ClaimsOptions(AnyStudyOptions):
    """Print every claim with its verdict: holds, smaller than claimed, contradicted, absent, undecided, or not run.

    An undecided claim is listed with the training seeds and core-hours that a verdict is expected to take.

    Under the profile smoke no claim is judged.

    **Examples**

    antiphase study claims robustness --json
    """

    rows: ReadRows = None


class PackOptions(AnyStudyOptions):
    """Add the rows of finished cells to a directory of small Parquet files, without checkpoints.

    Rows that are there already stay. Several machines may add to one directory; to merge two, pack one into the other.

    **Examples**

    antiphase study pack robustness
    antiphase study pack all --rows other/results --to results
    """

    to: Directory = Field(RESULTS, description="Directory to add the rows to.")


class ReportOptions(AnyStudyOptions):
    """Draw a site from the stored rows: an overview with the claims, a page for each table and figure.

    **Examples**

    antiphase study report robustness --profile paper --out site --markdown findings.md
    antiphase study report --rows results --markdown docs/findings.md --readme README.md
    """

    rows: ReadRows = None
    out: Directory = Field(Path("antiphase-studies"), description="Directory of the site.")
    markdown: Path | None = None
    """Markdown file for answers and claims, with pictures next to it, and studies' pages in a folder of its name."""
    readme: Path | None = None
    """With --markdown: a file in which to replace the lines between `<!-- findings -->` and `<!-- /findings -->`."""

    def model_post_init(self, context: Any, /) -> None:
        for path in (self.markdown, self.readme):  # before the site is written
            if path is not None and path.exists() and not path.is_file():
                raise UserError(f"{path}: is no file; expected the name of a Markdown file")
        if self.readme is not None and self.markdown is None:
            raise UserError("--readme shows the picture that --markdown writes: give --markdown, too")


class NewOptions(Options):
    """Write the file of a study of your own, ready to run and to be edited: your model, data, attack.

    **Examples**

    antiphase study new my-study
    """

    name: Annotated[str, Typed(argument=True, metavar="NAME")]
    """Name of the study; NAME.py is written to the current folder."""

    def model_post_init(self, context: Any, /) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise UserError(f"name {self.name!r}: expected small letters, digits and '-', such as my-study")


_COMMANDS = {"list": ListOptions, "show": StudyOptions, "status": StatusOptions, "rows": RowsOptions}
_COMMANDS |= {"claims": ClaimsOptions, "pack": PackOptions, "report": ReportOptions, "new": NewOptions}
COMMANDS = {
    f"study {name}": Command(f"study {name}", options, f"antiphase.studies.command:_{name}", tabled=name == "report")
    for name, options in _COMMANDS.items()
}
COMMANDS["study run"] = Command(
    "study run", RunOptions, "antiphase.studies.command:_run", "antiphase.studies.report.site:StudyResult", False
)
"""The commands of the group ``study``."""
