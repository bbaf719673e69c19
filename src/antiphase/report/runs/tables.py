"""The tables of a run's page."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.report.figure import Family
from antiphase.report.runs.stored import StoredRun
from antiphase.report.table import Field, Table
from antiphase.report.words import (
    attack_label,
    lambda_range,
    p_text,
    percent,
    percent_range,
    points,
    points_range,
)


def models_sheet(run: StoredRun) -> Table:
    """Tabulate name, attention, training seed, clean accuracy and range of λ of each model."""
    colors = _colors(run.families)
    accuracy = {row["model"]: row for row in run.accuracy.iter_rows(named=True)}
    rows = []
    for model in run.models:
        clean = accuracy[model["name"]]
        rows.append(
            (
                Field(model["name"], color=colors[model["name"]], kind="name"),
                Field(model["attention"], kind="word"),
                Field("–" if model["seed"] is None else str(model["seed"])),
                Field(percent(clean["value"]), (percent_range(clean["low"], clean["high"]),)),
                Field(lambda_range(model["lambda"])),
            )
        )
    described = pl.DataFrame(
        [(model["name"], model["attention"], model["seed"]) for model in run.models],
        schema={"model": pl.String, "attention": pl.String, "seed": pl.Int64},
        orient="row",
    )
    table = described.join(run.accuracy, on="model", how="left")
    columns = ("model", "attention", "seed", "clean accuracy, %", "λ")
    return Table("models", "Accuracy on clean images", columns, tuple(rows), table.write_csv())


def rate_sheets(run: StoredRun, metric: str) -> list[Table]:
    """Tabulate one rate for each attack and norm: one row per model or family mean, one column per ε."""
    colors = _colors(run.families)
    results, means = (frame.filter(pl.col("metric") == metric) for frame in (run.results, run.mean_results))
    sheets = []
    for (attack, norm), block in results.group_by(["attack", "norm"], maintain_order=True):
        eps = block["eps"].unique().sort().to_list()
        rows = []
        for family in run.families:
            for model in family.models:
                name = Field(model, color=colors[model], kind="name")
                found = _by_eps(block.filter(pl.col("model") == model))
                rows.append((name, *(_rate_cell(found.get(e)) for e in eps)))
            mean = _by_eps(_of_attack(means, attack, norm).filter(pl.col("family") == family.name))
            if mean:
                name = Field(f"{family.name}, mean of {len(family.models)}", color=family.color, kind="mean")
                rows.append((name, *(_rate_cell(mean.get(e)) for e in eps)))
        columns = ("model", *map(eps_label, eps))
        title = attack_label(attack, norm)
        sheets.append(Table(f"{metric}-{attack}-{norm}", title, columns, tuple(rows), block.write_csv()))
    return sheets


def difference_sheets(run: StoredRun) -> list[Table]:
    """Tabulate the paired differences of ASR for each attack and norm: one row per pair, one column per ε."""
    colors = _colors(run.families)
    sheets = []
    for (attack, norm), block in run.comparisons.group_by(["attack", "norm"], maintain_order=True):
        eps = block["eps"].unique().sort().to_list()
        rows = []
        for (model, against), pair in block.group_by(["model", "against"], maintain_order=True):
            name = Field(f"{model} − {against}", color=colors[model], kind="name")
            found = _by_eps(pair)
            rows.append((name, *(_difference_cell(found.get(e)) for e in eps)))
        averaged = _of_attack(run.mean_comparisons, attack, norm)
        for (family, against), mean in averaged.group_by(["family", "against_family"], maintain_order=True):
            color = next(group.color for group in run.families if group.name == family)
            name = Field(f"{family} − {against}, mean of {mean['n'].max()}", color=color, kind="mean")
            found = _by_eps(mean)
            rows.append((name, *(_difference_cell(found.get(e)) for e in eps)))
        columns = ("pair", *map(eps_label, eps))
        title = attack_label(attack, norm)
        sheets.append(Table(f"differences-{attack}-{norm}", title, columns, tuple(rows), block.write_csv()))
    return sheets


def lambda_sheet(run: StoredRun) -> Table | None:
    """Tabulate λ by layer; return None if no model has one."""
    colors = _colors(run.families)
    models = [model for model in run.models if model["lambda"]]
    if not models:
        return None
    depth = max(len(model["lambda"]) for model in models)
    rows = [
        (
            Field(model["name"], color=colors[model["name"]], kind="name"),
            *(Field(f"{value:.3f}") for value in model["lambda"]),
            *(Field("–") for _ in range(depth - len(model["lambda"]))),
        )
        for model in models
    ]
    values = [(m["name"], layer, value) for m in models for layer, value in enumerate(m["lambda"], start=1)]
    table = pl.DataFrame(
        values, schema={"model": pl.String, "layer": pl.Int64, "lambda": pl.Float64}, orient="row"
    )
    columns = ("model", *(f"layer {layer}" for layer in range(1, depth + 1)))
    return Table("lambda", "λ, mean over the heads of each layer", columns, tuple(rows), table.write_csv())


def _rate_cell(entry: Mapping[str, Any] | None) -> Field:
    if entry is None:
        return Field("–")
    return Field(percent(entry["value"]), (percent_range(entry["low"], entry["high"]),))


def _difference_cell(entry: Mapping[str, Any] | None) -> Field:
    """Grey the difference out if it is not decided."""
    if entry is None:
        return Field("–")
    notes = [points_range(entry["low"], entry["high"])]
    if "image_low" in entry:
        notes = [f"{points_range(entry['image_low'], entry['image_high'])} images", f"{notes[0]} seeds"]
    if "p_value" in entry:
        notes.append(p_text(entry["p_value"]))
    value = entry["difference"] if "difference" in entry else entry["value"]
    kind = "" if entry["decided"] else "undecided"
    return Field(points(value), tuple(notes), kind=kind)


def _by_eps(frame: pl.DataFrame) -> dict[float, dict[str, Any]]:
    return {row["eps"]: row for row in frame.iter_rows(named=True)}


def _of_attack(frame: pl.DataFrame, attack: Any, norm: Any) -> pl.DataFrame:
    return frame.filter((pl.col("attack") == attack) & (pl.col("norm") == norm))


def _colors(groups: Sequence[Family]) -> dict[str, str]:
    return {model: family.color for family in groups for model in family.models}
