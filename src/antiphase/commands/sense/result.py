"""The result of ``antiphase sense``: headline, figures and tables from the stored rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase import reading
from antiphase.budgets import eps_label
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense.figures import Axis, layer_figure, plane_figure, single_layer
from antiphase.errors import UserError
from antiphase.report.figure import Family, families, seed_counts
from antiphase.report.page import Headline, Panel, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.report.words import ends, number
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.sensitivity.layer_estimates import (
    ALIGNMENT_SCHEMA,
    DEPTH_SCHEMA,
    LIPSCHITZ_SCHEMA,
    layer_differences,
    places,
    within,
)
from antiphase.sensitivity.lipschitz import all_estimators
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate, mean_over_seeds

_SCHEMAS = {"alignment": ALIGNMENT_SCHEMA, "lipschitz": LIPSCHITZ_SCHEMA, "depth": DEPTH_SCHEMA}
_SITES = {"pixels": "at the pixels", "tokens": "at the layer’s tokens", "loss": "along the loss’s gradient"}
_NARROW = ("cosθ", "ρ", "‖J_DA‖ / ‖J1‖", "below 0, %")


class SenseResult(Result):
    """The sensitivity of the attention of models, layer by layer."""

    main_table = "alignment"
    keys = ("models", "pairs")

    def headlines(self) -> list[Headline]:
        return [headline(self.summary)]

    def sections(self) -> list[Section]:
        pairs = [(model, against) for model, against in self.summary["pairs"]]
        return sensitivity_sections(self, pairs, families(self.summary["models"]))

    def differences(self, other: Result) -> pl.DataFrame:
        for result in (self, other):
            if "alignment" not in result.tables:
                raise UserError(
                    "compare: the alignment was not measured; expected parts that include alignment"
                )
        return layer_differences(*combined_rows(self, other, "alignment"))

    def console(self) -> list[Any]:
        tables = self.all_tables()
        shown = [
            table.console(("model", "layer", *_NARROW))
            for table in tables
            if table.name.startswith("alignment-")
        ]
        names = ["model", "layer", *(estimator.name for estimator in all_estimators() if estimator.console)]
        for table in tables:
            if table.name.startswith("lipschitz-"):
                shown.append(table.console([name for name in names if name in table.columns]))
        return shown


def sensitivity_sections(
    result: Result, pairs: Sequence[tuple[str, str]], groups: Sequence[Family]
) -> list[Section]:
    """Draw and tabulate every part that a run has rows of; an audit may have some, too.

    Raises:
        UserError: naming a file that lacks a column.
    """
    rows = {}
    for part, schema in _SCHEMAS.items():
        if part in result.tables:
            try:
                rows[part] = result.frame(part).select(*schema)
            except pl.exceptions.PolarsError as error:
                raise reading.unreadable(f"{part}.parquet", error, "run it again") from None
    colors = {model: family.color for family in groups for model in family.models}
    seeds = seed_counts(groups)
    over = "Intervals in tables are over the images, with the weights held fixed."
    if seeds:
        over += (
            f" Thick lines are means over {seeds} training seeds, with Student’s t intervals over the seeds."
        )
    sections = []
    if "alignment" in rows:
        sections.append(_alignment(rows["alignment"], pairs, groups, colors, over))
    if "lipschitz" in rows:
        sections.append(_lipschitz(rows["lipschitz"], groups, colors, over))
    if "depth" in rows:
        sections.append(_depth(rows["depth"], groups, colors, over))
    return sections


def _alignment(
    rows: pl.DataFrame,
    pairs: Sequence[tuple[str, str]],
    groups: Sequence[Family],
    colors: dict[str, str],
    over: str,
) -> Section:
    frame = sensitivity.alignment(rows)
    # along the loss each model has a cotangent of its own: norms there compare with nothing
    frame = frame.filter((pl.col("site") != "loss") | (pl.col("metric") != "norm"))
    figures, sheets = [], []
    parts: list[tuple[str, list[Axis], str]] = []
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
            Axis(
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
    return _section("alignment", "Gradient alignment", f"{words} {over}", figures, sheets, "Alignment")


def _planes(
    rows: pl.DataFrame,
    pairs: Sequence[tuple[str, str]],
    groups: Sequence[Family],
    sheets: list[Table],
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


def _lipschitz(rows: pl.DataFrame, groups: Sequence[Family], colors: dict[str, str], over: str) -> Section:
    frame = sensitivity.means(rows, ["model", "of", "layer", "estimator"], ["value"])
    maps = frame.filter(of="map")
    shown = [e for e in all_estimators() if e.panel and e.name in set(maps["estimator"])]
    panels = [Axis(e.name, "L", maps.filter(estimator=e.name), log=True) for e in shown]
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
    return _section("lipschitz", "Local Lipschitz constants", f"{words} {over}", figures, sheets, "Lipschitz")


def _depth(rows: pl.DataFrame, groups: Sequence[Family], colors: dict[str, str], over: str) -> Section:
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
            Axis(f"{'PGD' if kind == 'pgd' else 'Uniform noise'} {at}", label, own, level, log, "block")
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
    return _section(
        "depth", "A perturbation’s way through the depth", f"{words} {over}", figures, sheets, "Depth"
    )


def _section(
    name: str, title: str, words: str, figures: list[tuple[str, Any, str]], tables: list[Table], short: str
) -> Section:
    panels = [Panel(f"sheet-{table.name}", table.title.split(",")[0], [table]) for table in tables]
    return Section(
        name, title, words, [Plot(*figure) for figure in figures], panels=panels, in_navigation=short
    )


_PERCENT = {"below", "negative", "positive", "undecided"}


def _sheet(
    name: str,
    title: str,
    frame: pl.DataFrame,
    keys: list[str],
    metrics: Sequence[str],
    heads: Sequence[str],
    colors: dict[str, str],
) -> Table:
    """Tabulate estimates: models and layers down, metrics across."""
    rows = []
    for key, block in frame.group_by(keys, maintain_order=True):
        found = {row["metric"]: row for row in block.iter_rows(named=True)}
        model = str(key[0])
        cells = tuple(_cell(found.get(metric), 100.0 if metric in _PERCENT else 1.0) for metric in metrics)
        place = (Field(str(int(key[1]) + (keys[1] == "layer"))),) if len(key) > 1 else ()  # pyright: ignore
        rows.append((Field(model, color=colors.get(model, ""), kind="name"), *place, *cells))
    columns = ("model", *({"layer": "layer", "stage": "block"}[key] for key in keys[1:]), *heads)
    return Table(name, title, columns, tuple(rows), frame.write_csv())


def _cell(row: dict[str, Any] | None, scale: float) -> Field:
    if row is None:
        return Field("–")

    def text(end: float) -> str:
        size = scale * end
        return number(size, 0 if abs(size) >= 100 else 1 if scale > 1 else 3)

    return Field(text(row["value"]), (ends(row["low"], row["high"], text, " to "),))


def headline(summary: Mapping[str, Any]) -> Headline:
    """Say how the gradients of A1 and A2 align in the first layer, at the pixels.

    They are about the first differential family, and the first layer since the paper sees the strongest effect there
    (Figure 5). Several models get the mean over training seeds and Student's t interval, a single model its interval
    over the images.
    """
    model = next((m["name"] for m in summary["models"] if m["attention"] == "differential"), None)
    if model is None or "alignment" not in summary:
        return Headline(
            f"Sensitivity of the attention of {summary['models'][0]['name']}", "See the tables below."
        )
    family = next(group for group in families(summary["models"]) if model in group.models)
    alignment = _over_seeds(summary["alignment"], family)
    layers = sorted({layer for layer, _ in alignment})
    first = layers[0]
    cosine, share, rho = (alignment[first, metric] for metric in ("cosine", "below", "rho"))
    which = f"layer {first + 1} of {family.name}" if len(layers) > 1 else family.name
    seeds = len(family.models)
    (sign,) = decide([cosine], seeds=seeds)
    title = {
        -1: f"The gradients of A1 and A2 oppose each other in {which}",
        0: f"It is undecided whether the gradients of A1 and A2 oppose each other in {which}",
        1: f"The gradients of A1 and A2 point in similar directions in {which}",
    }[sign]
    few = f"; fewer than {LEAST_SEEDS} decide nothing" if seeds < LEAST_SEEDS else ""
    over = f", mean of {seeds} seeds{few}" if seeds > 1 else ""
    lead = (
        f"With respect to the pixels, cosθ = {_interval(cosine, 3)}{over}, below 0 for {100 * share.value:.0f} % of "
        f"images and heads; ρ = {_interval(rho, 2)}. The gradient of A1 − λ·A2 is "
        f"{alignment[first, 'amplification'].value:.2f} times as large as that of A1 alone."
    )
    explained = _over_seeds(summary["explanation"], family)
    if (first, "relative") in explained:
        parts = {name: explained[first, f"by_{name}"].value for name in ("gamma", "rho", "cosine")}
        words = {
            "gamma": "the gradient of A1 (γ)",
            "rho": "the size of A2’s gradient (ρ)",
            "cosine": "the angle (cosθ)",
        }
        most = max(parts, key=lambda name: abs(parts[name]))
        ratio = explained[first, "relative"]
        value = number(math.exp(ratio.value), 2)
        between = ends(ratio.low, ratio.high, lambda end: number(math.exp(end), 2), " to ")
        lead += f" The map is {value} times as sensitive ({between}) as that of the standard twin; "
        lead += f"{words[most]} contributes most."
    return Headline(title, lead)


def _over_seeds(rows: Sequence[Mapping[str, Any]], family: Family) -> dict[tuple[int, str], Estimate]:
    """Return the estimates of a family with respect to the pixels, by layer and metric."""
    found: dict[tuple[int, str], list[Estimate]] = {}
    for row in rows:
        if row["model"] in family.models and row["site"] == "pixels":
            low, high = (
                end if row[name] is None else row[name]
                for name, end in (("low", -math.inf), ("high", math.inf))
            )
            estimate = Estimate(math.nan if row["value"] is None else row["value"], low, high, row["n"])
            found.setdefault((row["layer"], row["metric"]), []).append(estimate)
    return {
        key: within(key[1])(mean_over_seeds([each.value for each in each_seed]))
        if len(each_seed) > 1
        else each_seed[0]
        for key, each_seed in found.items()
    }


def _interval(estimate: Estimate, digits: int) -> str:
    between = ends(estimate.low, estimate.high, lambda end: number(end, digits), " to ")
    return f"{number(estimate.value, digits)} ({between})"
