"""``antiphase export``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.cli.options import directory
from antiphase.commands.export import run_export
from antiphase.runs.folders import run_folder


@app.command()
def export(
    model: Annotated[
        str, typer.Argument(help="A run directory, diffclip:PATH#lambda_init=0.8, hub:USER/NAME.")
    ],
    out: Annotated[
        Path | None, typer.Option(parser=directory, metavar="DIRECTORY", help="Directory to write.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="antiphase, or released: DiffCLIP's keys, for the authors' code.")
    ] = "antiphase",
    push: Annotated[
        str | None, typer.Option(help="Repository of the hub, USER/NAME, to put our layout into.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
) -> None:
    """Write a model as safetensors, in our layout or the released one, or put it on the hub.

    **Examples**

    antiphase export diffclip:checkpoint_best.pt#lambda_init=0.8 --out models/diffclip

    antiphase export runs/diffclip --layout released --out models/released

    antiphase export runs/diffclip --push somebody/diffclip-openmoji
    """
    if out is None:
        run_export(model, None, layout, push, private=not public)
        return
    with run_folder(out, "export"):
        run_export(model, out, layout, push, private=not public)
