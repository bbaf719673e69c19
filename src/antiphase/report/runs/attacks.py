"""Tables of minimal perturbations, and of how many images each attack of an ensemble broke."""

import polars as pl

from antiphase.budgets import eps_label
from antiphase.report.runs.stored import StoredRun
from antiphase.report.table import Field, Table
from antiphase.report.words import attack_label


def norm_sheets(run: StoredRun) -> list[Table]:
    """Tabulate the ε at which the ASR reaches each level: one row per model, one column per level."""
    if not run.norms:
        return []
    frame = pl.DataFrame(run.norms)
    levels = frame["level"].unique().sort().to_list()
    rows = []
    for (model,), block in frame.group_by(["model"], maintain_order=True):
        found = {row["level"]: row for row in block.iter_rows(named=True)}
        rows.append((Field(str(model), kind="name"), *(_norm_cell(found[level]) for level in levels)))
    columns = ("model", *(f"{level:.0%}" for level in levels))
    title = attack_label(frame["attack"][0], frame["norm"][0])
    return [Table("norms", title, columns, tuple(rows), frame.write_csv())]


def felled_sheets(run: StoredRun) -> list[Table]:
    """Tabulate how many images each attack of an ensemble broke: one row per model and attack, one column per ε."""
    counts = run.felled
    if counts.is_empty():
        return []
    eps = counts["eps"].unique().sort().to_list()
    rows = []
    for (model, attack), block in counts.group_by(["model", "felled_by"], maintain_order=True):
        found = dict(block.select("eps", "n").iter_rows())
        rows.append((Field(f"{model}: {attack}", kind="name"), *(Field(str(found.get(e, 0))) for e in eps)))
    columns = ("images broken by", *map(eps_label, eps))
    title = "Number of images broken by each attack, in the order in which the attacks run"
    return [Table("felled", title, columns, tuple(rows), counts.write_csv())]


def _norm_cell(row: dict) -> Field:
    if row["eps"] is None:
        return Field("not reached")
    high = "∞" if row["high"] is None else f"{row['high']:.4g}"
    return Field(f"{row['eps']:.4g}", (f"{row['low']:.4g} to {high}",))
