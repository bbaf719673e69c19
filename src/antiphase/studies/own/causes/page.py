"""The figures of the study, and its first sentence."""

from collections.abc import Callable, Mapping

import polars as pl

from antiphase.budgets import eps_label
from antiphase.statistics.intervals import Estimate, as_difference, as_share
from antiphase.studies.estimation import over
from antiphase.studies.figures import ESTIMATES, Artefact, Panel, Plot, Table
from antiphase.studies.numbers import signed
from antiphase.studies.own.causes.models import (
    CHANGED,
    DIFFVIT,
    EPS,
    MEAN,
    SCALED,
    SERIES,
    STOPPED,
    TRAINED,
    UNIFORM,
)
from antiphase.studies.own.causes.parts import (
    ANGLE,
    HEADS,
    MARGINS,
    NORM,
    PARTS,
    SUBTRACTION,
    TOTAL,
    Matrix,
    Measured,
    mean_of,
)
from antiphase.studies.own.causes.tables import tables
from antiphase.studies.spec import RowsByTable

_AT = 1 / 255  # of the first sentence
_SHORT = (
    "ViT",
    "DiffViT",
    "ViT, norm",
    "λ = 0",
    "no norm",
    "λ = 0, no norm",
    "ViT, wider",
    "ViT, N(0, 0.02)",
    "DiffViT, N(0, 0.02)",
    "ViT, shorter",
)
_LIMITS = (
    "The number of strata that margins are divided into is a choice; a table shows others. What is not identified: how "
    "much of another part works through the margin, since a change of the mechanism moves the margins too; one order "
    "of the steps, since norm and factor act on narrow heads here and on wide ones in the other order (table); and the "
    "scale of the logits, which training fixes only roughly: twice the logits are twice the margins at the same ASR. "
    "The part of the angle is to first order, at the clean images."
)


def draw(rows: RowsByTable) -> Artefact:
    """Draw interventions, controls, what remains at equal margins and losses, and the parts of the difference."""
    plots: list[Plot] = []
    sheets: list[Table] = []
    notes: list[str] = []
    sets = rows["attack"]["data"].unique(maintain_order=True).to_list()
    for data in sets:
        measured, of = Measured(rows, data), f", {data}" if len(sets) > 1 else ""
        if not measured.seeds:
            notes.append(f"No training seed is finished yet{of}.")
            continue
        stem = "-".join(["causes", *([data] if of else [])])
        asr = {name: _rates(measured, name) for name in SERIES}
        matched = {name: _rates(measured, name, matched=True) for name in (*TRAINED, *CHANGED)}
        parts, other, even = (
            _points(measured, values, as_difference)
            for values in (measured.parts, measured.other_order, measured.differences)
        )
        plots += _plots(stem, of, asr, matched, parts, even)
        sheets += tables(measured, stem, of, asr, matched, pl.concat([parts, other]), even)
        notes.append(sentence(parts, of))
    return Artefact(plots, sheets, notes=[*notes, _LIMITS])


def sentence(parts: pl.DataFrame, of: str = "") -> str:
    """Return how the difference in ASR at 1/255 falls into parts, in one sentence.

    Args:
        parts: estimates with columns ``series`` (the part) and ``x`` (ε).
        of: the data set, if there are several.
    """
    own = parts.filter((pl.col("x") - _AT).abs() < 1e-9)
    words = {}
    for row in own.iter_rows(named=True):
        value, interval = signed(Estimate(row["value"], row["low"], row["high"], row["n"]), "points")
        words[row["series"]] = f"{value.removesuffix(' points')} {interval}"
    return (
        f"In a study of its own, of one-layer models{of} ({over(own)}; PGD at {eps_label(_AT)}), the ASR of DiffViT "
        f"minus that of ViT is {words[TOTAL]} points: {words[MARGINS]} from smaller clean margins (the gap between the "
        f"two largest logits); and at equal margins, {words[HEADS]} from half as many heads of twice the width, "
        f"{words[NORM]} from the normalisation and scaling of each head, and {words[SUBTRACTION]} from the "
        f"subtraction, of which {words[ANGLE]} from the angle between the gradients of the two maps."
    )


def _rates(found: Measured, series: str, *, matched: bool = False) -> pl.DataFrame:
    """Return ASR by ε, as measured or standardised to the margins of the twins."""

    def values(eps: float) -> dict[str, Matrix]:
        broken = found.broken(series, eps)
        return {series: found.at_margins(series, broken.astype(float)) if matched else broken}

    return _points(found, values, as_share)


def _points(
    found: Measured, values: Callable[[float], Mapping[str, Matrix]], within: Callable[[Estimate], Estimate]
) -> pl.DataFrame:
    """Return the estimates of several series at every ε: ``series``, ``x`` and those of ``ESTIMATES``."""
    rows = []
    for eps in EPS:
        for series, matrix in values(eps).items():
            one = within(mean_of(matrix))
            rows.append((series, eps, one.value, one.low, one.high, one.n, len(found.seeds)))
    return pl.DataFrame(rows, {"series": pl.String, "x": pl.Float64, **ESTIMATES}, orient="row")


def _plots(
    stem: str,
    of: str,
    asr: Mapping[str, pl.DataFrame],
    matched: Mapping[str, pl.DataFrame],
    parts: pl.DataFrame,
    even: pl.DataFrame,
) -> list[Plot]:
    intervals = f"95 % over {over(parts)}."
    rate, difference = "attack success rate", "difference in ASR"
    place = pl.col("series").replace_strict(dict(zip(PARTS, map(float, range(len(PARTS))), strict=True)))
    return [
        Plot(
            f"{stem}-lambda",
            "ASR of trained DiffViTs under PGD with λ times a factor, as measured and standardised "
            f"to the clean margins of both twins. Away from 1, clean accuracy falls (table). Bands: {intervals}",
            (
                Panel(f"as measured{of}", "factor of λ", rate, _by_factor(asr), percent=True),
                Panel(f"at equal margins{of}", "factor of λ", rate, _by_factor(matched), percent=True),
            ),
        ),
        Plot(
            f"{stem}-maps",
            "ASR of trained DiffViTs under PGD with another A2, and against an attacker whose gradient "
            "passes some maps by; the verdicts are then those of the trained model. With another A2, clean accuracy "
            f"falls as well (table). Intervals: {intervals}",
            (_bars(asr, {DIFFVIT: "as trained", **{name: name for name in (MEAN, UNIFORM, *STOPPED)}}, of),),
        ),
        Plot(
            f"{stem}-controls",
            "ASR of the twins and of trained controls under PGD: ViT with norm and factor, DiffViT "
            "with λ frozen at 0 or without norm and factor, ViT with one more hidden unit, other initial weights, ViT "
            f"trained for two thirds of the epochs. Intervals: {intervals}",
            (_bars(asr, dict(zip(TRAINED, _SHORT, strict=True)), of),),
        ),
        Plot(
            f"{stem}-remaining",
            "ASR of DiffViT minus that of ViT: as measured, with both standardised to the clean "
            f"margins of both, and with ViT at DiffViT's training loss. Bands: {intervals}",
            (Panel(f"DiffViT − ViT{of}", "ε", difference, even, scale="eps", percent=True, level=0.0),),
        ),
        Plot(
            f"{stem}-parts",
            "Parts of the difference in ASR, DiffViT minus ViT; margins, norm and factor, heads and "
            f"subtraction add up to it, and the angle is a part of the subtraction. Intervals: {intervals}",
            (
                Panel(
                    f"DiffViT − ViT{of}",
                    "",
                    difference,
                    _placed(parts, place),
                    kind="bar",
                    ticks=PARTS,
                    percent=True,
                    level=0.0,
                ),
            ),
        ),
    ]


def _by_factor(rates: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    factors = {**SCALED, DIFFVIT: 1.0}
    ordered = sorted(factors, key=lambda name: factors[name])
    return pl.concat(_placed(rates[name], pl.lit(factors[name])) for name in ordered)


def _bars(asr: Mapping[str, pl.DataFrame], names: Mapping[str, str], of: str) -> Panel:
    """Return a panel with a group of bars for each model, at 1/255 and 2/255."""
    shown = [_placed(asr[name], pl.lit(float(at))) for at, name in enumerate(names)]
    points = pl.concat(shown).filter(pl.col("series").is_in([eps_label(eps) for eps in EPS[1:3]]))
    title = f"1/255 and 2/255{of}"
    return Panel(
        title, "", "attack success rate", points, kind="bar", ticks=tuple(names.values()), percent=True
    )


def _placed(points: pl.DataFrame, place: pl.Expr) -> pl.DataFrame:
    """Return points whose series are the ε, at the given places."""
    return points.select(*ESTIMATES, series=pl.col("x").map_elements(eps_label, pl.String), x=place).select(
        "series", "x", *ESTIMATES
    )
