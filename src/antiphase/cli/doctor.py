"""``antiphase doctor``: what it prints, and its examples."""

from typing import Any

from rich.table import Table

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.runs.options.rerun import DoctorOptions
from antiphase.terminal import console


@command(app, DoctorOptions)
def doctor(_: DoctorOptions) -> Answer:
    """Show versions, devices, kernels and data, and how to get what is missing.

    Nothing is downloaded. Native kernels are built if they are not there yet.

    **Examples**

    antiphase doctor

    antiphase doctor --json
    """
    from antiphase.runs.doctor import examine

    found = examine()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in _lines(found):
        table.add_row(*line)
    console().print(table)
    return found


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [
        (name, at or "missing: uv sync, or pip install antiphase") for name, at in found["versions"].items()
    ]
    lines += [
        (f"extra {name}", "installed" if at["ok"] else at["fix"]) for name, at in found["extras"].items()
    ]
    for at in found["devices"]:
        more = f", {at['threads']} threads" if "threads" in at else ""
        more += f", {at['memory_gib']} GiB" if "memory_gib" in at else ""
        lines.append((at["device"], f"{at['name']}{more}"))
    kernels, compiled = found["kernels"], found["compile"]
    lines.append(("native kernels", kernels["path"] or f"PyTorch is used instead: {kernels['why']}"))
    lines.append(("--compile", compiled["why"] or "works"))
    lines.append(("data in", f"{found['data_root']}; ANTIPHASE_DATA names another folder"))
    for name, at in found["data"].items():
        lines.append((name, at["fix"] or (f"found, {at['n']:,}" if "n" in at else "found")))
    return lines
