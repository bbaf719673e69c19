"""One self-contained page from the stored files of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antiphase.budgets import eps_label
from antiphase.commands.sense.result import SenseResult, sensitivity_sections
from antiphase.files import replacing, write_text
from antiphase.report.figure import rate_figure, seed_counts
from antiphase.report.page import embedded, environment
from antiphase.report.runs.attacks import felled_sheets, norm_sheets
from antiphase.report.runs.gallery import AttackGallery, cards, has_hard_pixels, magnification
from antiphase.report.runs.headline import headlines
from antiphase.report.runs.pope_page import write_pope_page
from antiphase.report.runs.stored import StoredRun, read_json, read_run
from antiphase.report.runs.tables import difference_sheets, lambda_sheet, models_sheet, rate_sheets
from antiphase.report.words import settings_text

# metric: (name, name on a tab, definition)
_RATES = {
    "asr": ("Attack success rate", "ASR", "broken / all"),
    "asr_correct": (
        "Attack success rate on correctly classified images",
        "ASR, correct only",
        "correct and broken / correct",
    ),
    "robust_accuracy": ("Robust accuracy", "Robust accuracy", "correct and not broken / all"),
}


def write_report(directory: Path) -> Path:
    """Write ``report.html``, ``asr.svg``, ``asr.png`` and ``asr.pdf`` into a run directory; of POPE, its own page.

    The page is self-contained. It depends only on ``summary.json``, ``rows.parquet``, ``run.json`` and, if present,
    ``gallery.safetensors``: the same files give the same bytes.

    Returns:
        The path of the page.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    if "pope" in read_json(directory / "summary.json", ("models",)):
        return write_pope_page(directory)
    run = read_run(directory)
    figures = {metric: _figure(run, metric) for metric in ("asr", "robust_accuracy")}
    for ending, content in figures["asr"]["files"].items():
        with replacing(directory / f"asr.{ending}") as temporary:
            temporary.write_bytes(content)

    page = (
        environment()
        .get_template("report.html")
        .render(
            run=run.run | {"settings": {name: _shown(value) for name, value in run.run["settings"].items()}},
            headlines=headlines(run),
            seeds=seed_counts(run.families),
            singles=any(len(family.models) == 1 for family in run.families),
            figures=figures,
            models=models_sheet(run),
            rates=[(metric, *words, rate_sheets(run, metric)) for metric, words in _RATES.items()],
            differences=difference_sheets(run),
            lambdas=lambda_sheet(run),
            norms=norm_sheets(run),
            felled=felled_sheets(run),
            gallery=_gallery(run.gallery, run) if run.gallery else None,
            sensitivity=[
                drawn(section)
                for section in sensitivity_sections(_sensed(directory), run.pairs, run.families)
            ],
        )
    )
    path = directory / "report.html"
    write_text(path, page)
    return path


def _shown(setting: Any) -> Any:
    return settings_text(setting) if isinstance(setting, dict) else setting


def _sensed(directory: Path) -> SenseResult:
    return SenseResult(
        "sense", {path.name: path.read_bytes() for path in directory.glob("alignment.parquet")}
    )


def drawn(chapter: Any) -> dict[str, Any]:
    """Return a chapter in the form that the templates expect."""
    figures = [
        (
            embedded(
                plot.figure, plot.name, f"{chapter.title}: {plot.name}; the table below has the numbers"
            ),
            plot.caption,
        )
        for plot in chapter.plots
    ]
    return {
        "title": chapter.title,
        "words": chapter.words,
        "figures": figures,
        "sheets": [table for panel in chapter.panels for table in panel.tables],
    }


def _figure(run: StoredRun, metric: str) -> dict[str, Any]:
    figure = rate_figure(run.results, run.mean_results, run.families, metric)
    return embedded(
        figure, metric, f"{_RATES[metric][0]} over ε for each model; the table below has the numbers"
    )


def _gallery(gallery: AttackGallery, run: StoredRun) -> Mapping[str, Any]:
    return {
        "cards": cards(gallery),
        "eps": eps_label(gallery.eps),
        "magnification": magnification(gallery),
        "hard_pixels": has_hard_pixels(gallery),
        "colors": {model: family.color for family in run.families for model in family.models},
    }
