"""The figures of the study, and its first sentence."""

from collections.abc import Callable, Mapping

import polars as pl

from antiphase.evaluation.statistics import Estimate, as_difference, as_share
from antiphase.studies.artefact import ESTIMATES, Artefact, Panel, Plot, Table
from antiphase.studies.estimation import over
from antiphase.studies.own.causes.models import DIFFVIT, EPS, MEAN, SCALED, SERIES, STOPPED, TRAINED, UNIFORM
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
from antiphase.studies.papers.robustness.show import eps_name
from antiphase.studies.spec import RowsByTable

_AT = 1 / 255  # of the first sentence
_LIMITS = (
    "What is not identified: how much of another part works through the margin, since a change of the mechanism moves "
    "the margins too; the effect of the order of the steps, since norm and factor are added to narrow heads and the "
    "subtraction to wide ones; and the scale of the logits, which training fixes only roughly: twice the logits are "
    "twice the margins at the same ASR. The part of the angle is to first order, at the clean images."
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
        parts, even = (
            _points(measured, values, as_difference) for values in (measured.parts, measured.differences)
        )
        plots += _plots(stem, of, asr, parts, even)
        sheets += tables(measured, stem, of, asr, parts, even)
        notes.append(sentence(parts, of))
    return Artefact(plots, sheets, notes=[*notes, _LIMITS])


def sentence(parts: pl.DataFrame, of: str = "") -> str:
    """Return how the difference in ASR at 1/255 falls into parts, in one sentence.

    Args:
        parts: estimates with columns ``series`` (the part) and ``x`` (ε).
        of: the data set, if there are several.
    """
    own = parts.filter((pl.col("x") - _AT).abs() < 1e-9)
    words = {
        row["series"]: _signed(row["value"], row["low"], row["high"]) for row in own.iter_rows(named=True)
    }
    return (
        f"At ε = {eps_name(_AT)}{of}, the ASR of DiffViT minus that of ViT is {words[TOTAL]} points ({over(own)}): "
        f"{words[MARGINS]} from smaller clean margins; at equal margins, {words[NORM]} from the norm and the factor "
        f"1 − λ_init, {words[HEADS]} from merging heads in pairs, and {words[SUBTRACTION]} from the subtraction, of "
        f"which {words[ANGLE]} from the angle between the gradients of the two maps."
    )


def _signed(value: float, low: float, high: float) -> str:
    numbers = [f"{100 * each:+.1f}" for each in (value, low, high)]
    plain = [each.replace("-", "−") for each in ("0.0" if each[1:] == "0.0" else each for each in numbers)]
    return f"{plain[0]} [{plain[1].lstrip('+')}, {plain[2].lstrip('+')}]"


def _rates(found: Measured, series: str) -> pl.DataFrame:
    return _points(found, lambda eps: {series: found.broken(series, eps)}, as_share)


def _points(
    found: Measured,
    values: Callable[[float], Mapping[str, Matrix]],
    within: Callable[[Estimate], Estimate],
) -> pl.DataFrame:
    """Return the estimates of several series at every ε: ``series``, ``x`` and those of ``ESTIMATES``."""
    rows = []
    for eps in EPS:
        for series, matrix in values(eps).items():
            one = within(mean_of(matrix))
            rows.append((series, eps, one.value, one.low, one.high, one.n, len(found.seeds)))
    return pl.DataFrame(rows, {"series": pl.String, "x": pl.Float64, **ESTIMATES}, orient="row")


def _plots(
    stem: str, of: str, asr: Mapping[str, pl.DataFrame], parts: pl.DataFrame, even: pl.DataFrame
) -> list[Plot]:
    intervals = f"95 % over {over(parts)}."
    rate, difference = "attack success rate", "difference in ASR"
    factors = {**SCALED, DIFFVIT: 1.0}
    by_factor = [
        _placed(asr[name], pl.lit(factors[name])) for name in sorted(factors, key=lambda each: factors[each])
    ]
    place = pl.col("series").replace_strict(dict(zip(PARTS, map(float, range(len(PARTS))), strict=True)))
    return [
        Plot(
            f"{stem}-interventions", "ASR of trained DiffViTs under PGD after an intervention at test time. Where a "
            "gradient is stopped, only the attacker's backward pass changes; verdicts are the trained model's. Under "
            f"the other interventions clean accuracy falls as well (table). Bands: {intervals}",
            (
                Panel(f"λ × factor{of}", "factor", rate, pl.concat(by_factor), percent=True),
                _bars(asr, {DIFFVIT: "as trained", **{name: name for name in (MEAN, UNIFORM, *STOPPED)}}, of),
            ),
        ),
        Plot(
            f"{stem}-controls", f"ASR of trained controls under PGD. Intervals: {intervals}",
            (_bars(asr, {name: name for name in TRAINED}, of),),
        ),
        Plot(
            f"{stem}-standardised", "ASR of DiffViT minus that of ViT: as measured, with both standardised to the "
            "clean margins of both, and with ViT at DiffViT's training loss. Right: the parts of the difference as "
            f"measured. Bands: {intervals}",
            (
                Panel(f"what remains{of}", "ε", difference, even, scale="eps", percent=True, level=0.0),
                Panel(
                    f"parts{of}", "", difference, _placed(parts, place), kind="bar", ticks=PARTS, percent=True,
                    level=0.0,
                ),
            ),
        ),
    ]  # fmt: skip


def _bars(asr: Mapping[str, pl.DataFrame], names: Mapping[str, str], of: str) -> Panel:
    """Return a panel with a group of bars for each model, at 1/255 and 2/255."""
    shown = [_placed(asr[name], pl.lit(float(at))) for at, name in enumerate(names)]
    points = pl.concat(shown).filter(pl.col("series").is_in([eps_name(eps) for eps in EPS[1:3]]))
    title = f"1/255 and 2/255{of}"
    return Panel(
        title, "", "attack success rate", points, kind="bar", ticks=tuple(names.values()), percent=True
    )


def _placed(points: pl.DataFrame, place: pl.Expr) -> pl.DataFrame:
    """Return points whose series are the ε, at the given places."""
    return points.select(*ESTIMATES, series=pl.col("x").map_elements(eps_name, pl.String), x=place).select(
        "series", "x", *ESTIMATES
    )
