"""The page of a sensitivity run, and its console tables."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from antiphase.files import write_text
from antiphase.report.runs.page import drawn
from antiphase.report.runs.sense_tables import chapters, read_rows
from antiphase.report.runs.stored import RUN_KEYS, read_json
from antiphase.report.style.console import ruled_table
from antiphase.report.style.families import Family, families, seed_counts
from antiphase.report.style.markup import environment
from antiphase.report.style.wording import console_interval, ends, number
from antiphase.sensitivity.estimators import all_estimators
from antiphase.sensitivity.layer_estimates import within
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate, mean_over_seeds

_COLUMNS = {"cosine": "cosθ", "rho": "ρ", "amplification": "J_DA/J1", "below": "cosθ<0, %", "norm": "‖J‖"}


def write_sense_report(directory: Path) -> Path:
    """Write ``report.html`` into the directory of a sensitivity run, from its stored files.

    Returns:
        The path of the page.

    Raises:
        UserError: A file is missing or cannot be read.
    """
    summary = read_json(directory / "summary.json", ("models", "pairs"))
    run = read_json(directory / "run.json", RUN_KEYS)
    groups = families(summary["models"])
    pairs = [(model, against) for model, against in summary["pairs"]]
    title, lead = headline(summary)
    page = (
        environment()
        .get_template("sense.html")
        .render(
            run=run,
            title=title,
            lead=lead,
            seeds=seed_counts(groups),
            sensitivity=[drawn(chapter) for chapter in chapters(read_rows(directory), pairs, groups)],
        )
    )
    path = directory / "report.html"
    write_text(path, page)
    return path


def headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return title and lead: how the gradients of A1 and A2 align in the first layer, at the pixels.

    They are about the first differential family, and the first layer since the paper sees the strongest effect there
    (Figure 5). Several models get the mean over training seeds and Student's t interval, a single model its interval
    over the images.
    """
    model = next((m["name"] for m in summary["models"] if m["attention"] == "differential"), None)
    if model is None or "alignment" not in summary:
        return f"Sensitivity of the attention of {summary['models'][0]['name']}", "See the tables below."
    family = next(group for group in families(summary["models"]) if model in group.models)
    alignment = _over_seeds(summary["alignment"], family)
    layers = sorted({layer for layer, _ in alignment})
    first = layers[0]
    cosine, share, rho = (alignment[first, metric] for metric in ("cosine", "below", "rho"))
    which = f"layer {first + 1} of {family.name}" if len(layers) > 1 else family.name
    seeds = len(family.models)
    (sign,) = decide([cosine], seeds=seeds)
    title = {
        -1: f"The gradients of A1 and A2 oppose each other in {which}",
        0: f"It is undecided whether the gradients of A1 and A2 oppose each other in {which}",
        1: f"The gradients of A1 and A2 point in similar directions in {which}",
    }[sign]
    few = f"; fewer than {LEAST_SEEDS} decide nothing" if seeds < LEAST_SEEDS else ""
    over = f", mean of {seeds} seeds{few}" if seeds > 1 else ""
    lead = (
        f"With respect to the pixels, cosθ = {_interval(cosine, 3)}{over}, below 0 for {100 * share.value:.0f} % of "
        f"images and heads; ρ = {_interval(rho, 2)}. The gradient of A1 − λ·A2 is "
        f"{alignment[first, 'amplification'].value:.2f} times as large as that of A1 alone."
    )
    explained = _over_seeds(summary["explanation"], family)
    if (first, "relative") in explained:
        parts = {name: explained[first, f"by_{name}"].value for name in ("gamma", "rho", "cosine")}
        words = {
            "gamma": "the gradient of A1 (γ)",
            "rho": "the size of A2’s gradient (ρ)",
            "cosine": "the angle (cosθ)",
        }
        most = max(parts, key=lambda name: abs(parts[name]))
        ratio = explained[first, "relative"]
        value = number(math.exp(ratio.value), 2)
        between = ends(ratio.low, ratio.high, lambda end: number(math.exp(end), 2), " to ")
        lead += f" The map is {value} times as sensitive ({between}) as that of the standard twin; "
        lead += f"{words[most]} contributes most."
    return title, lead


def _over_seeds(rows: Sequence[Mapping[str, Any]], family: Family) -> dict[tuple[int, str], Estimate]:
    """Return the estimates of a family with respect to the pixels, by layer and metric."""
    found: dict[tuple[int, str], list[Estimate]] = {}
    for row in rows:
        if row["model"] in family.models and row["site"] == "pixels":
            low, high = (
                end if row[name] is None else row[name]
                for name, end in (("low", -math.inf), ("high", math.inf))
            )
            estimate = Estimate(math.nan if row["value"] is None else row["value"], low, high, row["n"])
            found.setdefault((row["layer"], row["metric"]), []).append(estimate)
    return {
        key: within(key[1])(mean_over_seeds([each.value for each in each_seed]))
        if len(each_seed) > 1
        else each_seed[0]
        for key, each_seed in found.items()
    }


def _interval(estimate: Estimate, digits: int) -> str:
    between = ends(estimate.low, estimate.high, lambda end: number(end, digits), " to ")
    return f"{number(estimate.value, digits)} ({between})"


def sense_table(summary: Mapping[str, Any]) -> Table:
    """Tabulate the alignment by layer for a console of 80 columns."""
    table = ruled_table("Gradient alignment by layer [95 % interval over images]")
    table.add_column("", overflow="fold", min_width=14)
    for label in _COLUMNS.values():
        table.add_column(label, justify="right", no_wrap=True)
    frame = pl.DataFrame(summary.get("alignment", []), infer_schema_length=None)
    if frame.is_empty():
        return table
    for (model, layer, site), block in frame.group_by(["model", "layer", "site"], maintain_order=True):
        found = {row["metric"]: row for row in block.iter_rows(named=True)}
        cells = [_console_cell(found.get(metric), 100.0 if metric == "below" else 1.0) for metric in _COLUMNS]
        name = Text.assemble((str(model), "bold"), f"\nlayer {int(layer) + 1}, {site}")  # pyright: ignore
        table.add_row(name, *cells)
    return table


def lipschitz_table(summary: Mapping[str, Any]) -> Table:
    """Tabulate local Lipschitz constants: one row per model and layer or logits, one column per estimator."""
    frame = pl.DataFrame(summary.get("lipschitz", []), infer_schema_length=None)
    table = ruled_table("Local Lipschitz constant with respect to the pixels, L2 → L2")
    names = [estimator.name for estimator in all_estimators() if estimator.console]
    table.add_column("model", overflow="fold")
    table.add_column("of")
    for name in names:
        table.add_column(name, justify="right")
    if frame.is_empty():
        return table
    for (model, of, layer), block in frame.group_by(["model", "of", "layer"], maintain_order=True):
        found = {row["estimator"]: row for row in block.iter_rows(named=True)}
        place = "logits" if of == "logits" else f"map {int(layer) + 1}"  # pyright: ignore
        table.add_row(str(model), place, *(_console_cell(found.get(name), 1.0) for name in names))
    return table


def _console_cell(row: Mapping[str, Any] | None, scale: float) -> Text:
    if row is None or row["value"] is None:
        return Text("–")
    size = abs(row["value"])
    digits = 0 if scale > 1 else 3 if size < 0.01 else 2 if size < 10 else 1  # five columns fit 80 characters
    return Text.assemble(
        (number(scale * row["value"], digits), "bold"),
        (f"\n{console_interval(row['low'], row['high'], lambda end: number(scale * end, digits))}", "dim"),
    )
