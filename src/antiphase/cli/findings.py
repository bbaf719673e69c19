"""``antiphase findings``: its options and examples."""

from pathlib import Path
from typing import Annotated

import typer

from antiphase.cli.app import app


@app.command()
def findings(
    sense: Annotated[Path, typer.Option(help="Directory of antiphase sense, with all three parts.")],
    audit: Annotated[Path, typer.Option(help="Directory of antiphase audit of the same models.")],
    out: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("findings.md"),
) -> None:
    """Write what a family of models of several depths says of the robustness paper's claims, from stored rows.

    **Examples**

    antiphase findings --sense runs/sense --audit runs/audit --out docs/findings.md
    """
    from antiphase.report.findings import write_findings

    print(write_findings(sense, audit, out))
