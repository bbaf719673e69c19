"""Tables of what single attacks did: the norms at which samples fell, and which attack of an ensemble felled them."""

import polars as pl

from antiphase.report.runs.stored import StoredRun
from antiphase.report.style.sheets import Field, Sheet
from antiphase.report.style.wording import attack_label, eps_label


def norm_sheets(run: StoredRun) -> list[Sheet]:
    """Tabulate the ε at which the ASR reaches each level: models down, levels across. Empty for other attacks."""
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
    return [Sheet("norms", title, columns, tuple(rows), frame.write_csv())]


def felled_sheets(run: StoredRun) -> list[Sheet]:
    """Tabulate how many images each attack of an ensemble felled: models and attacks down, ε across."""
    counts = run.felled
    if counts.is_empty():
        return []
    eps = counts["eps"].unique().sort().to_list()
    rows = []
    for (model, attack), block in counts.group_by(["model", "felled_by"], maintain_order=True):
        found = dict(block.select("eps", "n").iter_rows())
        rows.append((Field(f"{model}: {attack}", kind="name"), *(Field(str(found.get(e, 0))) for e in eps)))
    columns = ("images felled by", *map(eps_label, eps))
    return [
        Sheet(
            "felled",
            "The attack that did it, in the order of trying",
            columns,
            tuple(rows),
            counts.write_csv(),
        )
    ]


def _norm_cell(row: dict) -> Field:
    if row["eps"] is None:
        return Field("not reached")
    high = "∞" if row["high"] is None else f"{row['high']:.4g}"
    return Field(f"{row['eps']:.4g}", (f"{row['low']:.4g} to {high}",))
