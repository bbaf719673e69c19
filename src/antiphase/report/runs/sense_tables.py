"""The sensitivity of attention in figures and tables, from the stored rows of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from antiphase import reading
from antiphase.budgets import eps_label
from antiphase.report.runs.layer_figures import Panel, layer_figure, single_layer
from antiphase.report.runs.plane_figure import plane_figure
from antiphase.report.style.families import Family
from antiphase.report.style.sheets import Field, Sheet
from antiphase.report.style.wording import ends, number
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.sensitivity.estimators import all_estimators
from antiphase.sensitivity.layer_estimates import ALIGNMENT_SCHEMA, DEPTH_SCHEMA, LIPSCHITZ_SCHEMA
from antiphase.sensitivity.theorem_ratios import places

_SCHEMAS = {"alignment": ALIGNMENT_SCHEMA, "lipschitz": LIPSCHITZ_SCHEMA, "depth": DEPTH_SCHEMA}
_SITES = {"pixels": "at the pixels", "tokens": "at the layer’s tokens", "loss": "along the loss’s gradient"}


@dataclass(frozen=True)
class Chapter:
    """A part of the section: what it is, its figures as (name, figure, caption), its tables."""

    title: str
    words: str
    figures: list[tuple[str, Any, str]]
    sheets: list[Sheet]


def read_rows(directory: Path) -> dict[str, pl.DataFrame]:
    """Read the parts that a run directory has.

    Raises:
        UserError: naming a file that cannot be read or lacks a column.
    """
    found = {}
    for part, schema in _SCHEMAS.items():
        path = directory / f"{part}.parquet"
        if path.exists():
            try:
                found[part] = reading.read_rows(path, "run it again").select(*schema)
            except pl.exceptions.PolarsError as error:
                raise reading.unreadable(path, error, "run it again") from None
    return found


def chapters(
    rows: dict[str, pl.DataFrame], pairs: Sequence[tuple[str, str]], groups: Sequence[Family]
) -> list[Chapter]:
    """Draw and tabulate every part that was measured."""
    colors = {model: family.color for family in groups for model in family.models}
    found = []
    if "alignment" in rows:
        found.append(_alignment(rows["alignment"], pairs, groups, colors))
    if "lipschitz" in rows:
        found.append(_lipschitz(rows["lipschitz"], groups, colors))
    if "depth" in rows:
        found.append(_depth(rows["depth"], groups, colors))
    return found


def _alignment(
    rows: pl.DataFrame, pairs: Sequence[tuple[str, str]], groups: Sequence[Family], colors: dict[str, str]
) -> Chapter:
    frame = sensitivity.alignment(rows)
    # along the loss each model has a cotangent of its own: norms there compare with nothing
    frame = frame.filter((pl.col("site") != "loss") | (pl.col("metric") != "norm"))
    figures, sheets = [], []
    parts: list[tuple[str, list[Panel], str]] = []
    sites = [site for site in _SITES if site in set(frame["site"])]
    for metric, label, level, caption in (
        (
            "cosine",
            "cosθ",
            0.0,
            "Angle between the gradients of the two maps; below 0 they oppose each other.",
        ),
        (
            "below",
            "share below 0",
            None,
            "Share of images and heads whose cosθ lies below 0 (the paper’s Figure 5).",
        ),
        (
            "norm",
            "‖J‖",
            None,
            "Frobenius norm of the combined map’s Jacobian, root mean square over images and heads.",
        ),
    ):
        panels = [
            Panel(
                f"{label} {_SITES[site]}",
                label,
                own,
                level,
                share=metric == "below",
                within=sensitivity.within(metric),
            )
            for site in sites
            if not (own := frame.filter(site=site, metric=metric)).is_empty()
        ]
        if panels:
            parts.append((f"alignment-{metric}", panels, caption))
    if parts and single_layer(everything := [panel for _, panels, _ in parts for panel in panels]):
        caption = "The model has one layer. " + " ".join(
            f"{panels[0].label}: {words}" for _, panels, words in parts
        )
        figures.append(("alignment", layer_figure(everything, groups), caption))
    else:
        figures += [(name, layer_figure(panels, groups), caption) for name, panels, caption in parts]
    for site in sites:
        sheets.append(
            _sheet(
                f"alignment-{site}",
                f"Alignment {_SITES[site]}",
                frame.filter(site=site),
                ["model", "layer"],
                ("cosine", "rho", "amplification", "below", "negative", "positive", "norm"),
                ("cosθ", "ρ", "‖J_DA‖ / ‖J1‖", "below 0, %", "surely below, %", "surely above, %", "‖J_DA‖"),
                colors,
            )
        )
    explained = sensitivity.explanation(rows, list(pairs))
    for site in explained["site"].unique(maintain_order=True):
        own = explained.filter(site=site).with_columns(model=pl.col("model") + " / " + pl.col("against"))
        sheets.append(
            _sheet(
                f"explanation-{site}",
                f"Taken apart {_SITES[site]}, in logarithms",
                own,
                ["model", "layer"],
                ("relative", "by_gamma", "by_rho", "by_cosine", "gamma"),
                ("ln ‖J_DA‖/‖J_base‖", "by γ", "by ρ", "by cosθ", "γ"),
                {},
            )
        )
    figures += _planes(rows, pairs, groups, sheets, colors)
    error = sensitivity.prediction_error(rows)
    theorem = (
        "Theorem 1 predicts ‖J1 − λ·J2‖ from them; measured on the same probes, row by row, it is off by at most "
        f"{error:.0e} of its value. "
        if error
        else ""
    )
    words = (
        "J1 and J2 are the Jacobians of the two maps. cosθ and ρ = ‖J2‖/‖J1‖ are built from inner products "
        "averaged over images and heads. Along the loss’s gradient they are those of ∂loss/∂A carried back to the "
        f"layer’s tokens: what an attack sees. {theorem}Against a "
        "twin, the logarithm of the ratio of norms is the sum of three parts: how large the positive map’s "
        "gradient is (γ), what the second map’s size adds (ρ), and what the angle adds; the angle’s is "
        "positive where the gradients oppose each other."
    )
    return Chapter("Gradient alignment", words, figures, sheets)


def _planes(
    rows: pl.DataFrame,
    pairs: Sequence[tuple[str, str]],
    groups: Sequence[Family],
    sheets: list[Sheet],
    colors: dict[str, str],
) -> list[tuple[str, Any, str]]:
    """Draw the layers of each differential family in the plane of Theorem 3, and add their table to the sheets."""
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    standard = {model: twin for model, twin in pairs if kind[twin] == "softmax"}
    found = places(rows, {model: standard.get(model) for model in kind if kind[model] == "differential"})
    if found.is_empty():
        return []
    sheets.append(
        _sheet(
            "plane",
            "In the plane of Theorem 3",
            found.sort("model", "layer", maintain_order=True),
            ["model", "layer"],
            ("rho", "cosine", "critical", "gamma", "relative"),
            ("λρ", "cosθ", "cosθ*", "γ", "‖J_DA‖ / ‖J_base‖"),
            colors,
        )
    )
    figures = []
    for at, family in enumerate(group for group in groups if set(group.models) & set(found["model"])):
        twin = all(model in standard for model in family.models)
        against = (
            "below the critical cosine cosθ*, where ‖J_DA‖ > ‖J_base‖, for the γ = ‖J1‖ / ‖J_base‖ of the twin’s layer"
            if twin
            else "where ‖J_DA‖ > ‖J1‖ (Theorem 1). No twin gives γ: γ = 1, and the critical cosine cosθ* is λρ / 2"
        )
        caption = (
            f"{family.name} in the (ρ, θ) plane of Theorem 3, J with respect to the pixels, θ between J1 and λ·J2. "
            f"Shaded: {against}."
        )
        figures.append((f"plane-{at}", plane_figure(found, family), caption))
    return figures


def _lipschitz(rows: pl.DataFrame, groups: Sequence[Family], colors: dict[str, str]) -> Chapter:
    frame = sensitivity.means(rows, ["model", "of", "layer", "estimator"], ["value"])
    maps = frame.filter(of="map")
    shown = [e for e in all_estimators() if e.panel and e.name in set(maps["estimator"])]
    panels = [Panel(e.name, "L", maps.filter(estimator=e.name), log=True) for e in shown]
    caption = (
        "Local Lipschitz constant of each layer’s map as a function of the pixels, from top to bottom by "
        f"{', by '.join(e.panel for e in shown)}."
    )
    figures = [("lipschitz", layer_figure(panels, groups), caption)]
    wide = frame.with_columns(metric=pl.col("estimator"))
    measured = [e for e in all_estimators() if e.name in set(wide["metric"])]
    names = [e.name for e in measured]
    sheets = [
        _sheet(f"lipschitz-{of}", title, wide.filter(of=of), keys, names, names, colors)
        for of, title, keys in (
            ("map", "Each layer’s combined map, root mean square over heads", ["model", "layer"]),
            ("logits", "The logits", ["model"]),
        )
    ]
    words = (
        f"Means over {rows['sample'].n_unique()} images, L2 → L2, within an L∞ ball of "
        f"{eps_label(rows['eps'][0])}. The constant is the steepest slope from the image to any point of the ball. "
        + " ".join(f"{e.name.capitalize()}: {e.estimates}." for e in measured)
    )
    return Chapter("Local Lipschitz constants", words, figures, sheets)


def _depth(rows: pl.DataFrame, groups: Sequence[Family], colors: dict[str, str]) -> Chapter:
    keys = ["model", "perturbation", "eps", "stage"]
    frame = pl.concat(
        [sensitivity.means(rows, keys, ["gain", "lipschitz", "alpha"]), sensitivity.cancellation(rows)]
    )
    largest = float(rows["eps"].max())  # pyright: ignore
    shown = frame.filter(eps=largest).with_columns(layer=pl.col("stage") - 1)
    at = f"at ε = {eps_label(largest)}"
    figures = []
    for metric, label, level, log, caption in (
        (
            "gain",
            "‖Δ(d)‖ / ‖Δ(d−1)‖",
            1.0,
            True,
            "What each block makes of a perturbation; 0 is the embedding.",
        ),
        (
            "alpha",
            "gain / L(d)",
            None,
            True,
            "The gain over the block’s operator norm, its largest possible gain.",
        ),
        (
            "cancellation",
            "‖ΔA1−λΔA2‖ / √(‖ΔA1‖²+λ²‖ΔA2‖²)",
            1.0,
            False,
            "Below 1 a perturbation’s traces in the two maps cancel, above 1 they add up.",
        ),
    ):
        panels = [
            Panel(f"{'PGD' if kind == 'pgd' else 'Uniform noise'} {at}", label, own, level, log, "block")
            for kind in ("noise", "pgd")
            if not (own := shown.filter(metric=metric, perturbation=kind)).is_empty()
        ]
        if panels:
            figures.append((f"depth-{metric}", layer_figure(panels, groups), caption))
    sheets = []
    for (kind, eps), block in frame.group_by(["perturbation", "eps"], maintain_order=True):
        name = "PGD’s perturbation" if kind == "pgd" else "Uniform noise"
        sheets.append(
            _sheet(
                f"depth-{kind}-{eps * 255:g}",
                f"{name}, ε = {eps_label(float(eps))}",
                block,
                ["model", "stage"],
                ("gain", "lipschitz", "alpha", "cancellation"),
                ("gain", "L(d)", "gain / L(d)", "cancellation"),
                colors,
            )
        )
    words = (
        "‖Δ(d)‖ is the size of the perturbation after block d, its gain ‖Δ(d)‖ / ‖Δ(d−1)‖. L(d) is the operator "
        "norm of the block’s Jacobian at the clean tokens, the largest possible gain of a small perturbation. "
        "Their ratio is far below 1 for standard attention too, since few perturbations lie along the direction "
        "that a block stretches most. It is not the α(d) of the paper’s equation (5), which is to come from "
        "cancellation: the study theory-depth measures that. The cancellation of the two maps is in the last "
        "column."
    )
    return Chapter("A perturbation’s way through the depth", words, figures, sheets)


_PERCENT = {"below", "negative", "positive", "undecided"}


def _sheet(
    name: str,
    title: str,
    frame: pl.DataFrame,
    keys: list[str],
    metrics: Sequence[str],
    heads: Sequence[str],
    colors: dict[str, str],
) -> Sheet:
    """Tabulate estimates: models and layers down, metrics across."""
    rows = []
    for key, block in frame.group_by(keys, maintain_order=True):
        found = {row["metric"]: row for row in block.iter_rows(named=True)}
        model = str(key[0])
        cells = tuple(_cell(found.get(metric), 100.0 if metric in _PERCENT else 1.0) for metric in metrics)
        place = (Field(str(int(key[1]) + (keys[1] == "layer"))),) if len(key) > 1 else ()  # pyright: ignore
        rows.append((Field(model, color=colors.get(model, ""), kind="name"), *place, *cells))
    columns = ("model", *({"layer": "layer", "stage": "block"}[key] for key in keys[1:]), *heads)
    return Sheet(name, title, columns, tuple(rows), frame.write_csv())


def _cell(row: dict[str, Any] | None, scale: float) -> Field:
    if row is None:
        return Field("–")

    def text(end: float) -> str:
        size = scale * end
        return number(size, 0 if abs(size) >= 100 else 1 if scale > 1 else 3)

    return Field(text(row["value"]), (ends(row["low"], row["high"], text, " to "),))
