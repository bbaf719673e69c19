"""The page of an evaluation."""

from pathlib import Path
from typing import Any

from antiphase.evaluation.metrics import TASKS
from antiphase.files import replacing, write_text
from antiphase.report.evaluation.figures import dot_figure, radar_figure
from antiphase.report.evaluation.headline import headline
from antiphase.report.evaluation.wording import difference_sheet, sheets
from antiphase.report.runs.stored import RUN_KEYS, read_json
from antiphase.report.style.families import families, seed_counts
from antiphase.report.style.markup import embedded, environment

_NAMES = {
    "retrieval": "Retrieval",
    "zero-shot": "Zero-shot",
    "probe": "Linear probe",
    "few-shot": "Few-shot",
    "mmvp": "MMVP-VLM",
}
_WORDS = {
    "retrieval": "Image R@k counts the captions whose image is among the first k, text R@k the images of which a "
    "caption is. Candidates that are exactly as similar stand before the right one.",
    "zero-shot": "An image belongs to the class whose mean prompt vector is nearest. Per class is the mean over the "
    "classes’ accuracies, each of which counts alike.",
    "probe": "A linear classifier of frozen features; C is chosen on validation images, of the seed’s draw where none "
    "are published, and the last fit is on training and validation images together. Intervals are over the images.",
    "few-shot": "Every episode has its own classes and images; both models of a pair have the same episodes. Intervals "
    "are over the episodes, which share their images: they say nothing of other images. What another draw of "
    "episodes does is in the standard deviation over seeds.",
    "mmvp": "A pair counts where both statements find their own image of the two; guessing has 25 %.",
}


def write_evaluation_page(directory: Path) -> Path:
    """Write ``report.html`` into the directory of an evaluation, with its figures beside it.

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
    for task, sheet in tables.items():
        its = [r for r in summary["results"] if r["task"] == task]
        draw = radar_figure if task == "mmvp" else dot_figure
        figure = embedded(draw(its, groups), task, f"{TASKS[task]}; the numbers are below")
        for ending, content in figure["files"].items():
            with replacing(directory / f"{task}.{ending}") as temporary:
                temporary.write_bytes(content)
        sections.append(
            {
                "task": task,
                "name": _NAMES[task],
                "title": TASKS[task],
                "words": _WORDS[task],
                "figure": figure,
                "sheet": sheet,
            }
        )
    title, lead = headline(summary)
    page = environment().get_template("evaluation.html").render(
        run=run | {
            "data": ", ".join(run["data"]), "n": sum(run["n"]),
            "data_fingerprint": ", ".join(fingerprint[:12] for fingerprint in run["data_fingerprint"]),
            "settings": {name: _listed(value) for name, value in run["settings"].items()},
        },
        title=title, lead=lead, seeds=seed_counts(groups), sections=sections,
        differences=difference_sheet(summary, groups),
    )  # fmt: skip
    path = directory / "report.html"
    write_text(path, page)
    return path


def _listed(value: Any) -> Any:
    return (", ".join(map(str, value)) or "–") if isinstance(value, list) else value
