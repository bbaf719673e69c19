"""Formatting of the numbers of this paper's studies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import ASR, difference
from antiphase.studies.figures import ESTIMATES, Table


def eps_table(found: pl.DataFrame, title: str, name: str, paper: pl.DataFrame | None = None) -> Table:
    """Return a table with series down and ε across.

    Args:
        found: columns ``series, eps`` and those of ``ESTIMATES``.
        title: above it.
        name: of its CSV.
        paper: the paper's numbers, columns ``series, x, value``.
    """
    cells = found.select(
        "series",
        "eps",
        *ESTIMATES,
        row=pl.col("series"),
        column=pl.col("eps").map_elements(eps_label, pl.String),
    )
    return Table(name, title, "model", with_paper(cells, paper, ["series", "eps"]).drop("series", "eps"))


def with_paper(cells: pl.DataFrame, paper: pl.DataFrame | None, keys: list[str]) -> pl.DataFrame:
    """Add the paper's numbers as a column ``paper``; its ``x`` is the last key, matched to six digits."""
    if paper is None or paper.is_empty():
        return cells.with_columns(paper=pl.lit(None, pl.Float64))
    last = keys[-1]
    theirs = paper.select(*keys[:-1], _at=pl.col("x").round_sig_figs(6), paper=pl.col("value"))
    joined = cells.with_columns(_at=pl.col(last).round_sig_figs(6)).join(
        theirs, on=[*keys[:-1], "_at"], how="left", maintain_order="left"
    )
    return joined.drop("_at")


def each_data(rows: pl.DataFrame, claims: Callable[[pl.DataFrame], list[Claim]]) -> list[Claim]:
    """Return the claims of the rows of each data set, joined: a claim has to hold on every one.

    Args:
        rows: of one table, with a column ``data``.
        claims: from the rows of one data set to its claims.
    """
    sets = rows["data"].unique(maintain_order=True).to_list()
    found: dict[str, Claim] = {}
    for data in sets:
        for claim in claims(rows.filter(data=data)):
            own = [replace(one, what=f"{one.what}, {data}") if len(sets) > 1 else one for one in claim.checks]
            before = found[claim.name].checks if claim.name in found else ()
            found[claim.name] = replace(claim, checks=[*before, *own])
    return list(found.values())


def more_fragile(attacks: pl.DataFrame, eps: Sequence[float], **where: Any) -> list[Check]:
    """Return the checks ASR(DiffViT) > ASR(ViT) at each ε, on each data set.

    Args:
        attacks: rows.
        eps: budgets.
        **where: other columns and values that choose the rows of both.
    """
    several = attacks["data"].n_unique() > 1
    words = "".join(f", {name} {value}" for name, value in where.items())
    return [
        Check(
            f"ASR(DiffViT) − ASR(ViT) at {eps_label(at)}{words}" + (f", {data}" if several else ""),
            against(attacks, "DiffViT", "ViT", ASR, eps=at, data=data, **where),
        )
        for data in attacks["data"].unique(maintain_order=True)
        for at in eps
    ]


def against(rows: pl.DataFrame, first: str, second: str, value: pl.Expr, **where: Any) -> Any:
    """Return mean(first series) − mean(second series) among the rows that ``where`` chooses."""
    return difference(rows, {"series": first, **where}, {"series": second, **where}, value)


def apart(
    rows: pl.DataFrame, column: str, first: Any, second: Any, value: pl.Expr, where: Mapping[str, Any]
) -> Any:
    """Return mean(first level of a column) − mean(second level) among the rows that ``where`` chooses."""
    return difference(rows, {**where, column: first}, {**where, column: second}, value)


def table_of(
    found: pl.DataFrame,
    row: pl.Expr,
    column: pl.Expr,
    name: str,
    title: str,
    index: str = "model",
    **more: Any,
) -> Table:
    """Return a table of estimates, rows and columns named by expressions."""
    cells = found.select(*ESTIMATES, row=row, column=column, paper=pl.lit(None, pl.Float64))
    return Table(name, title, index, cells, **more)


def joined(*cells: pl.DataFrame) -> pl.DataFrame:
    """Return the cells of one table from those of several metrics, rows in the order of the first."""
    order = cells[0].select("row").unique(maintain_order=True).with_row_index("_at")
    return pl.concat(cells, how="diagonal").join(order, on="row", maintain_order="left").drop("_at")
