"""The page of an evaluation."""

from pathlib import Path
from typing import Any

from antiphase.commands.evaluate.result import headline
from antiphase.commands.old import read_json
from antiphase.commands.result import RUN_KEYS
from antiphase.evaluation.tasks import find_task
from antiphase.files import replacing, write_text
from antiphase.report.evaluation.figures import dot_figure, radar_figure
from antiphase.report.evaluation.wording import difference_sheet, sheets
from antiphase.report.figure import families, seed_counts
from antiphase.report.page import embedded, environment


def write_evaluation_page(directory: Path) -> Path:
    """Write ``report.html`` into the directory of an evaluation, with its figures next to it.

    Everything is drawn from ``summary.json`` and ``run.json``.

    Returns:
        The path of the page.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    summary = read_json(directory / "summary.json", ("models", "results", "differences"))
    run = read_json(directory / "run.json", RUN_KEYS)
    groups = families(summary["models"])
    tables = sheets(summary, groups)
    sections = []
    for name, sheet in tables.items():
        task = find_task(name)
        its = [r for r in summary["results"] if r["task"] == name]
        draw = radar_figure if task.radar else dot_figure
        figure = embedded(draw(its, groups), name, f"{task.summary}; the numbers are below")
        for ending, content in figure["files"].items():
            with replacing(directory / f"{name}.{ending}") as temporary:
                temporary.write_bytes(content)
        sections.append(
            {
                "task": name,
                "name": task.title,
                "title": task.summary,
                "words": task.notes,
                "figure": figure,
                "sheet": sheet,
            }
        )
    title, lead = headline(summary)
    page = (
        environment()
        .get_template("evaluation.html")
        .render(
            run=run
            | {
                "data": ", ".join(run["data"]),
                "n": sum(run["n"]),
                "data_fingerprint": ", ".join(fingerprint[:12] for fingerprint in run["data_fingerprint"]),
                "settings": {name: _listed(value) for name, value in run["settings"].items()},
            },
            title=title,
            lead=lead,
            seeds=seed_counts(groups),
            sections=sections,
            differences=difference_sheet(summary, groups),
        )
    )
    path = directory / "report.html"
    write_text(path, page)
    return path


def _listed(value: Any) -> Any:
    return (", ".join(map(str, value)) or "–") if isinstance(value, list) else value
