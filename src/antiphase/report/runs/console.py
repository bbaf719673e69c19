"""What a run prints on the console: the answer, then rates and differences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from rich.console import Group
from rich.table import Table
from rich.text import Text

from antiphase.budgets import eps_label
from antiphase.report.runs.headline import headlines
from antiphase.report.runs.stored import StoredRun
from antiphase.report.table import ruled_table
from antiphase.report.words import attack_label, console_interval, number, p_text, percent, points

_COLUMNS = 5  # ε that fit next to a name in 80 characters


def console_report(run: StoredRun) -> Group:
    """Return the headlines, and a table for each attack, for a console of 80 columns.

    A table has ASR in percent with intervals, then paired differences. Families of several training seeds have one row
    each, their mean; the page lists every model. More than five ε are split into several blocks.
    """
    titles = [Text(f"{headline.title}.\n", "bold") for headline in headlines(run)]
    families = not run.mean_comparisons.is_empty()
    rates, differences = _means(run) if families else _models(run)
    tables = []
    for attack, norm in run.results.select("attack", "norm").unique(maintain_order=True).rows():
        mine, apart = (
            frame.filter(pl.col("attack") == attack, pl.col("norm") == norm) for frame in (rates, differences)
        )
        eps = mine["eps"].unique().sort().to_list()
        n = run.results.filter(pl.col("attack") == attack)["n"].max()
        over = ", mean over training seeds" if families else ""
        title = (
            f"{attack_label(attack, norm)}: % of {n:,} images whose prediction changes{over} [95 % interval]"
        )
        blocks = -(-len(eps) // _COLUMNS)
        for block in range(blocks):
            part = eps[block * len(eps) // blocks : (block + 1) * len(eps) // blocks]
            tables += [Text(title, "bold"), _block(mine, apart, part), Text()]
    return Group(*titles, *tables)


def _models(run: StoredRun) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return rates and differences with columns name, below (a second line), attack, norm, eps, value, low, high."""
    clean = {row["model"]: f"clean {percent(row['value'])}" for row in run.accuracy.iter_rows(named=True)}
    rates = run.results.filter(metric="asr").with_columns(
        name="model", below=pl.col("model").replace_strict(clean, return_dtype=pl.String)
    )
    differences = run.comparisons.with_columns(
        name="model", below=pl.format("− {}", "against"), value="difference"
    )
    return rates, differences


def _means(run: StoredRun) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the same for families: their means, and those of single models."""
    seeds = {family.name: f"{len(family.models)} seeds" for family in run.families}
    means = run.mean_results.filter(metric="asr").with_columns(
        name="family", below=pl.col("family").replace_strict(seeds, return_dtype=pl.String)
    )
    rates, differences = _models(run)
    single = rates.filter(
        ~pl.col("model").is_in([m for f in run.families if len(f.models) > 1 for m in f.models])
    )
    owner = {model: family.name for family in run.families for model in family.models}
    averaged = run.mean_comparisons.with_columns(name="family", below=pl.format("− {}", "against_family"))
    done = set(averaged.select("family", "against_family").rows())
    rest = [(owner[a], owner[b]) not in done for a, b in differences.select("model", "against").rows()]
    return (
        pl.concat([means, single], how="diagonal_relaxed"),
        pl.concat([averaged, differences.filter(pl.Series(rest, dtype=pl.Boolean))], how="diagonal_relaxed"),
    )


def _block(rates: pl.DataFrame, differences: pl.DataFrame, eps: Sequence[float]) -> Table:
    table = ruled_table()
    table.add_column("", overflow="fold")
    for e in eps:
        table.add_column(eps_label(e), justify="right", no_wrap=True)
    for frame, written in ((rates, percent), (differences, points)):
        for (name, below), found in frame.group_by(["name", "below"], maintain_order=True):
            at = {row["eps"]: row for row in found.iter_rows(named=True)}
            table.add_row(
                Text.assemble((str(name), "bold"), (f"\n{below}", "dim")),
                *(_cell(at.get(e), written) for e in eps),
            )
        table.add_section()
    return table


def _cell(entry: Mapping[str, Any] | None, written: Callable[[float], str]) -> Text:
    if entry is None:
        return Text("–")
    interval = f"\n{console_interval(entry['low'], entry['high'], lambda end: number(100 * end, 1))}"
    p_value = f"\n{p_text(entry['p_value'])}" if entry.get("p_value") is not None else ""
    undecided = entry.get("decided") == 0
    return Text.assemble(
        (written(entry["value"]), "dim" if undecided else "bold"), (interval + p_value, "dim")
    )
