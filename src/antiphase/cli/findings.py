"""``antiphase findings``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app
from antiphase.errors import UserError


@app.command()
def findings(
    sense: Annotated[Path, typer.Option(help="Directory of antiphase sense, with all three parts.")],
    audit: Annotated[Path, typer.Option(help="Directory of antiphase audit of the same models.")],
    evaluate: Annotated[
        Path | None,
        typer.Option(help="Directory of antiphase evaluate of CLIPs and DiffCLIPs of several seeds."),
    ] = None,
    clip_audit: Annotated[
        Path | None, typer.Option(help="Directory of antiphase audit of the same CLIPs.")
    ] = None,
    untrained: Annotated[
        Path | None,
        typer.Option(help="Directory of antiphase evaluate --against of CLIPs with random weights."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("findings.md"),
) -> None:
    """Write what a family of models of several depths says of the robustness paper's claims, from stored rows.

    **Examples**

    antiphase findings --sense runs/sense --audit runs/audit --out docs/findings-family.md

    antiphase findings --sense runs/sense --audit runs/audit --evaluate runs/clips --clip-audit runs/clip-audit
    """
    if (evaluate is None) != (clip_audit is None):
        raise UserError("--evaluate and --clip-audit go together: give both or neither")
    from antiphase.report.findings import write_findings

    encoders = None if evaluate is None or clip_audit is None else (evaluate, clip_audit)
    print(write_findings(sense, audit, out, encoders, untrained))
