"""The tables of a run, for the page and for the console."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from antiphase.report.runs.stored import StoredRun
from antiphase.report.style.families import Family
from antiphase.report.style.sheets import Field, Sheet
from antiphase.report.style.wording import (
    attack_label,
    eps_label,
    lambda_range,
    p_text,
    percent,
    percent_range,
    points,
    points_range,
)

_CONSOLE_COLUMNS = 5  # ε that fit next to a name in 80 characters


def models_sheet(run: StoredRun) -> Sheet:
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
    return Sheet("models", "Accuracy on clean images", columns, tuple(rows), table.write_csv())


def rate_sheets(run: StoredRun, metric: str) -> list[Sheet]:
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
        sheets.append(Sheet(f"{metric}-{attack}-{norm}", title, columns, tuple(rows), block.write_csv()))
    return sheets


def difference_sheets(run: StoredRun) -> list[Sheet]:
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
        sheets.append(Sheet(f"differences-{attack}-{norm}", title, columns, tuple(rows), block.write_csv()))
    return sheets


def lambda_sheet(run: StoredRun) -> Sheet | None:
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
    return Sheet("lambda", "λ, mean over the heads of each layer", columns, tuple(rows), table.write_csv())


def console_table(summary: Mapping[str, Any]) -> Table:
    """Tabulate a summary for a console of 80 columns: ASR in percent with intervals, then paired differences.

    More than five ε are split into several blocks.
    """
    outer = Table.grid(padding=(0, 0, 1, 0))
    results = [result for result in summary["results"] if result["metric"] == "asr"]
    for attack, norm in dict.fromkeys((result["attack"], result["norm"]) for result in results):
        mine = [result for result in results if (result["attack"], result["norm"]) == (attack, norm)]
        eps = sorted({result["eps"] for result in mine})
        blocks = -(-len(eps) // _CONSOLE_COLUMNS)
        for block in range(blocks):
            part = eps[block * len(eps) // blocks : (block + 1) * len(eps) // blocks]
            n = max(result["n"] for result in mine)
            title = f"{attack_label(attack, norm)}: attack success rate, % of {n:,} images [95 % interval]"
            outer.add_row(Group(Text(title, "bold"), _console_block(summary, mine, attack, part)))
    return outer


def _console_block(
    summary: Mapping[str, Any], results: Sequence[Mapping[str, Any]], attack: str, eps: Sequence[float]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for e in eps:
        table.add_column(eps_label(e), justify="right", no_wrap=True)

    rate = {(result["model"], result["eps"]): result for result in results}
    for model in summary["models"]:
        name = Text.assemble((model["name"], "bold"), (f"\nclean {percent(model['clean_accuracy'])}", "dim"))
        cells = [_console_cell(rate.get((model["name"], e)), "value", percent) for e in eps]
        table.add_row(name, *cells)
    if summary["comparisons"]:
        table.add_section()
    difference = {
        (c["model"], c["against"], c["eps"]): c for c in summary["comparisons"] if c["attack"] == attack
    }
    for model, against in dict.fromkeys((model, against) for model, against, _ in difference):
        name = Text.assemble((model, "bold"), f"\n− {against}")
        cells = [_console_cell(difference.get((model, against, e)), "difference", points) for e in eps]
        table.add_row(name, *cells)
    return table


def _console_cell(entry: Mapping[str, Any] | None, key: str, written: Callable[[float], str]) -> Text:
    if entry is None:
        return Text("–")
    interval = f"\n[{100 * entry['low']:.1f} {100 * entry['high']:.1f}]".replace("-", "−")
    p_value = f"\n{p_text(entry['p_value'])}" if "p_value" in entry else ""
    return Text.assemble((written(entry[key]), "bold"), (interval + p_value, "dim"))


def _rate_cell(entry: Mapping[str, Any] | None, kind: str = "") -> Field:
    if entry is None:
        return Field("–")
    return Field(percent(entry["value"]), (percent_range(entry["low"], entry["high"]),), kind=kind)


def _difference_cell(entry: Mapping[str, Any] | None) -> Field:
    """Grey the difference out if its interval includes zero."""
    if entry is None:
        return Field("–")
    notes = [points_range(entry["low"], entry["high"])]
    if "image_low" in entry:
        notes = [f"{points_range(entry['image_low'], entry['image_high'])} images", f"{notes[0]} seeds"]
    if "p_value" in entry:
        notes.append(p_text(entry["p_value"]))
    value = entry["difference"] if "difference" in entry else entry["value"]
    kind = "undecided" if entry["low"] <= 0 <= entry["high"] else ""
    return Field(points(value), tuple(notes), kind=kind)


def _by_eps(frame: pl.DataFrame) -> dict[float, dict[str, Any]]:
    return {row["eps"]: row for row in frame.iter_rows(named=True)}


def _of_attack(frame: pl.DataFrame, attack: Any, norm: Any) -> pl.DataFrame:
    return frame.filter((pl.col("attack") == attack) & (pl.col("norm") == norm))


def _colors(groups: Sequence[Family]) -> dict[str, str]:
    return {model: family.color for family in groups for model in family.models}
