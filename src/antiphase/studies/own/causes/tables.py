"""The tables of the study."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from antiphase.budgets import eps_label
from antiphase.statistics.intervals import STRATA, Estimate, as_difference, as_share
from antiphase.studies.figures import ESTIMATES, Table
from antiphase.studies.own.causes.models import BARE, DIFFVIT, EPS, LADDER, NORMAL, STOPPED, TRAINED, VIT
from antiphase.studies.own.causes.parts import IN_WORDS, LOGARITHMS, OTHER_ORDER, TINY, Measured, mean_of

Cell = tuple[str, str, Estimate]


def tables(
    found: Measured,
    stem: str,
    of: str,
    asr: Mapping[str, pl.DataFrame],
    matched: Mapping[str, pl.DataFrame],
    parts: pl.DataFrame,
    even: pl.DataFrame,
) -> list[Table]:
    """Return the tables of one data set.

    Args:
        found: the rows.
        stem: beginning of the tables' names.
        of: end of their titles: the data set, if there are several.
        asr: ASR by series and ε.
        matched: the same, standardised to the clean margins of both twins.
        parts: parts of the difference by ε.
        even: differences by ε.
    """
    seeds = len(found.seeds)
    accuracy = [  # with a stopped gradient, clean predictions are the trained model's
        (name, "clean accuracy", as_share(mean_of(found.correct(name))))
        for name in asr
        if name not in STOPPED
    ]
    by_model = pl.concat([_cells(accuracy, seeds), *(_by_eps(block) for block in asr.values())])
    order = pl.DataFrame({"row": list(asr)}).with_row_index("_at")
    by_model = (
        by_model.join(order, on="row", maintain_order="left").sort("_at", maintain_order=True).drop("_at")
    )
    return [
        Table(
            f"{stem}-parts",
            f"Parts of the difference in ASR between one-layer models, DiffViT − ViT{of}",
            "part",
            _by_eps(parts.with_columns(pl.col("series").replace(IN_WORDS | OTHER_ORDER))),
        ),
        Table(f"{stem}-remaining", f"Difference in ASR, DiffViT − ViT{of}", "compared", _by_eps(even)),
        Table(
            f"{stem}-strata",
            f"Difference in ASR at equal margins, DiffViT − ViT, by number of strata{of}",
            "strata",
            _cells(_by_strata(found), seeds),
        ),
        Table(f"{stem}-asr", f"Clean accuracy and ASR{of}", "model", by_model),
        Table(
            f"{stem}-matched",
            f"ASR standardised to the clean margins of ViT and DiffViT{of}",
            "model",
            pl.concat(_by_eps(block) for block in matched.values()),
        ),
        Table(
            f"{stem}-distance",
            f"Least perturbation d = c·m / ‖g‖₁ and its factors, geometric means{of}",
            "model",
            _cells(_distances(found), seeds),
            percent=False,
            digits=2,
        ),
        Table(
            f"{stem}-training",
            f"Training loss, clean margin and gradient{of}",
            "model",
            _cells(_training(found), seeds),
            percent=False,
            digits=3,
        ),
        Table(
            f"{stem}-angle",
            f"Gradients through both maps; κ = ‖g‖₁ / ‖g°‖₁{of}",
            "model",
            _cells(_angles(found), seeds),
            percent=False,
            digits=3,
        ),
    ]


def _by_strata(found: Measured) -> Iterable[Cell]:
    """Yield what remains at equal margins for other numbers of strata than the usual one, and for that."""
    for strata in (STRATA // 4, STRATA // 2, STRATA, 2 * STRATA, 4 * STRATA):
        for eps in EPS:
            yield str(strata), eps_label(eps), as_difference(mean_of(found.remaining(eps, strata)))


def _by_eps(points: pl.DataFrame) -> pl.DataFrame:
    column = pl.col("x").map_elements(eps_label, pl.String)
    return points.select(*ESTIMATES, row=pl.col("series"), column=column, paper=pl.lit(None, pl.Float64))


def _cells(found: Iterable[Cell], seeds: int) -> pl.DataFrame:
    rows = [(one.value, one.low, one.high, one.n, seeds, row, column, None) for row, column, one in found]
    return pl.DataFrame(
        rows, {**ESTIMATES, "row": pl.String, "column": pl.String, "paper": pl.Float64}, orient="row"
    )


def _geometric(logarithms: np.ndarray, scale: float = 1.0) -> Estimate:
    """Estimate a geometric mean from logarithms."""
    one = mean_of(logarithms)
    value, low, high = (scale * math.exp(end) for end in (one.value, one.low, one.high))
    return Estimate(value, low, high, one.n)


def _distances(found: Measured) -> Iterable[Cell]:
    """Yield the least perturbation and its factors for the ladder, and their ratio between the twins."""
    logs = {series: found.logarithms(series) for series in LADDER}
    for series, own in logs.items():
        for name in LOGARITHMS:
            first = name == LOGARITHMS[0]
            yield series, f"{name}, 255ths" if first else name, _geometric(own[name], 255.0 if first else 1.0)
    for name in LOGARITHMS:
        column = f"{name}, 255ths" if name == LOGARITHMS[0] else name
        yield "DiffViT / ViT", column, _geometric(logs[DIFFVIT][name] - logs[VIT][name])


def _training(found: Measured) -> Iterable[Cell]:
    for series in TRAINED:
        yield series, "training loss", mean_of(found.losses(series))
        yield series, "margin m", _geometric(np.log(np.maximum(found.margins(series), TINY)))
        yield series, "gradient ‖g‖₁", _geometric(np.log(np.maximum(found.slopes(series), TINY)))


def _angles(found: Measured) -> Iterable[Cell]:
    for series in (DIFFVIT, BARE, NORMAL[DIFFVIT]):
        for name, norms in zip(("‖g_1‖₂", "‖g_2‖₂"), found.lengths(series), strict=True):
            yield series, name, _geometric(np.log(np.maximum(norms, TINY)))
        yield series, "cosθ", mean_of(found.cosines(series))
        yield series, "κ", _geometric(np.log(found.gains(series)))
