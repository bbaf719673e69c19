"""``antiphase study``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import BatchSize, Device, Quiet, directory
from antiphase.commands import study as commands

study = typer.Typer(no_args_is_help=True, help="The papers' tables and figures, and studies of your own.")
app.add_typer(study, name="study")

Names = Annotated[
    list[str], typer.Argument(help="Names, a paper (robustness, diffclip), a file of your own, or all.")
]
ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", help="smoke (seconds), laptop (2 cores) or paper (the paper's data and sizes)."
    ),
]
Seeds = Annotated[
    int | None, typer.Option(help="Training seeds; 3, and 1 for smoke, where not given.", min=1, max=1000)
]
StoreFolder = Annotated[
    Path,
    typer.Option("--store", parser=directory, metavar="DIRECTORY", help="Folder of rows and checkpoints."),
]
STORE = Path("antiphase-store")


@study.command("list")
def list_() -> None:
    """List the studies of both papers."""
    commands.list_studies()


@study.command()
def show(
    names: Names, profile: ProfileName = "laptop", seeds: Seeds = None, store: StoreFolder = STORE
) -> None:
    """Show a study: the paper's numbers, the settings, every cell, and how long the missing ones take.

    **Examples**

    antiphase study show table-1

    antiphase study show figure-3a --profile paper
    """
    commands.show_study(names, profile, seeds, store)


@study.command()
def run(
    names: Names,
    profile: ProfileName = "laptop",
    seeds: Seeds = None,
    store: StoreFolder = STORE,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Workers that share the cells; of SLURM, jobs.", min=1)
    ] = 1,
    executor: Annotated[str, typer.Option(help="local, or slurm (by submitit).")] = "local",
    slurm: Annotated[
        list[str] | None, typer.Option(help="Of a SLURM job, NAME=VALUE as submitit takes them; repeat.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Build models and settings, check them against the paper's, say what would run."
        ),
    ] = False,
    batch_size: BatchSize = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Run every cell of some studies that is not in the store yet.

    A killed run goes on with the same command; what is finished is not run again. Several runs may share one store.

    **Examples**

    antiphase study run table-1 --profile smoke

    antiphase study run robustness --profile laptop --jobs 2

    antiphase study run table-3 --profile paper --dry-run

    antiphase study run my-study.py --seeds 5

    torchrun --nproc-per-node 4 -m antiphase study run figure-2a --profile paper

    antiphase study run robustness --profile paper --executor slurm --jobs 8 --slurm timeout_min=600
    """
    commands.run_studies(
        names, profile, seeds, store, quiet, device, batch_size, jobs, executor, slurm or [], dry_run
    )


@study.command()
def status(
    names: Annotated[list[str] | None, typer.Argument(help="As for run; all, where not given.")] = None,
    profile: ProfileName = "laptop",
    seeds: Seeds = None,
    store: StoreFolder = STORE,
) -> None:
    """Show how far each study has come, what is running and what is damaged.

    **Examples**

    antiphase study status

    antiphase study status robustness --profile paper
    """
    commands.show_status(names or ["all"], profile, seeds, store)


@study.command()
def rows(
    name: Annotated[str, typer.Argument(help="A study, or a file of your own.")],
    profile: ProfileName = "laptop",
    seeds: Seeds = None,
    store: StoreFolder = STORE,
    table: Annotated[
        str | None, typer.Option(help="attack, accuracy, lipschitz, …; all, where not given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file to write.")] = None,
) -> None:
    """Print or export the rows that a study is drawn from: one for each image, layer, head or seed.

    **Examples**

    antiphase study rows table-1 --profile smoke

    antiphase study rows figure-2a --table attack --out asr.csv
    """
    commands.export_rows(name, profile, seeds, store, table, out)


@study.command()
def claims(
    names: Annotated[list[str] | None, typer.Argument(help="As for run; all, where not given.")] = None,
    profile: ProfileName = "laptop",
    seeds: Seeds = None,
    store: StoreFolder = STORE,
    into: Annotated[
        Path | None,
        typer.Option(
            help="A Markdown file whose lines between <!-- claims --> and <!-- /claims --> to replace."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Print every claim of the papers with its verdict: holds, fails, undecided, or not run.

    Under the profile smoke no claim is judged.

    **Examples**

    antiphase study claims

    antiphase study claims robustness --json

    antiphase study claims --into docs/findings.md
    """
    from antiphase.commands.study_report import show_claims

    show_claims(names or ["all"], profile, seeds, store, into, json)


@study.command()
def report(
    names: Annotated[list[str] | None, typer.Argument(help="As for run; all, where not given.")] = None,
    profile: ProfileName = "laptop",
    seeds: Seeds = None,
    store: StoreFolder = STORE,
    out: Annotated[
        Path, typer.Option(parser=directory, metavar="DIRECTORY", help="Folder of the site.")
    ] = Path("antiphase-studies"),
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the numbers as one Markdown file.")
    ] = None,
) -> None:
    """Draw a site from the stored rows: an overview with the claims, a page for each table and figure.

    **Examples**

    antiphase study report

    antiphase study report robustness --profile paper --out site --markdown findings.md
    """
    from antiphase.commands.study_report import write_study_report

    write_study_report(names or ["all"], profile, seeds, store, out, markdown)


@study.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the study; NAME.py is written here.")],
) -> None:
    """Write the file of a study of your own, ready to run and to be edited: your model, data, attack.

    **Examples**

    antiphase study new my-study

    antiphase study run my-study.py --profile smoke
    """
    from antiphase.commands.study_new import write_study

    print(write_study(name))
