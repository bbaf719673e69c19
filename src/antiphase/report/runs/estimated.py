"""Console tables of estimated radii: margin over Lipschitz constant, and the ratio that equation (6) predicts."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from antiphase.report.table import ruled_table
from antiphase.report.words import console_interval, number

_MODELS = {"margin": "margin m", "constant": "L of logits", "printed": "m / L", "radius": "m / (√2·L)"}
_RATIOS = {
    "margin": "Δm",
    "constant": "L",
    "measured": "R",
    "corrected": "(6) corrected",
    "printed": "(6) printed",
}


def estimated_tables(estimated: Mapping[str, Any]) -> list[Table]:
    """Tabulate the summary of :func:`antiphase.runs.estimated.estimate_radii` for a console of 80 columns."""
    images = estimated["settings"]["images"]
    table = _table(f"Estimated L2 radius, NOT certified, mean of {images} images [95 % interval]")
    for title in _MODELS.values():
        table.add_column(title, justify="right")
    for model in estimated["models"]:
        table.add_row(Text(model["name"], "bold"), *(_cell(model[name]) for name in _MODELS))
    ratios = estimated.get("ratios", ())
    if not ratios:
        return [table]
    names = [model["name"] for model in estimated["models"]]
    compared = _table(f"{names[0]} / {names[1]}, geometric means; R is predicted by equation (6)")
    shown = {name: title for name, title in _RATIOS.items() if any(row["metric"] == name for row in ratios)}
    for title in shown.values():
        compared.add_column(title, justify="right", no_wrap=True)
    by_layer: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in ratios:
        by_layer.setdefault(row["layer"], {})[row["metric"]] = row
    for layer, found in by_layer.items():
        label = f"layer {layer + 1}" if "corrected" in shown else ""
        compared.add_row(Text(label, "bold"), *(_cell(found[name]) for name in shown))
    return [table, compared]


def _table(title: str) -> Table:
    table = ruled_table(title)
    table.add_column("", overflow="fold")
    return table


def _cell(row: Mapping[str, Any]) -> Text:
    if row["value"] is None:
        return Text("–")
    digits = 3 if abs(row["value"]) < 10 else 1
    return Text.assemble(
        (number(row["value"], digits), "bold"),
        (f"\n{console_interval(row['low'], row['high'], lambda end: number(end, digits))}", "dim"),
    )
