"""The result of ``antiphase sense``: headline, figures and tables from the stored rows."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.text import Text

from antiphase.commands.result import Result, combined_rows
from antiphase.errors import UserError
from antiphase.files import unreadable
from antiphase.report import figure as figures
from antiphase.report.figure import Family, colors_of, families, seed_counts, shortened
from antiphase.report.page import Headline, Panel, Plot, Section
from antiphase.report.table import Field, OnConsole, Table, estimate_field, tabulate
from antiphase.report.words import estimate_of, interval_text, number, with_interval
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.sensitivity.lipschitz import all_estimators
from antiphase.sensitivity.theory import critical_cosine
from antiphase.statistics import decisions, intervals
from antiphase.terminal import eps_label

_WORDS = tomllib.loads((files("antiphase.commands.sense") / "words.toml").read_text(encoding="utf-8"))
_HEADS, _SITES, _KINDS = (_WORDS[name] for name in ("heads", "sites", "kinds"))
_PERCENT = {"below", "negative", "positive", "undecided", "first", "second", "third"}
_COMPARED = ("alignment", "lipschitz", "depth")  # parts
_CONSOLE = {"model", "layer", "cosθ", "ρ", "‖J_DA‖ / ‖J1‖", "below 0, %", *_HEADS["terms"].values()}


class SenseResult(Result):
    """The sensitivity of the attention of models, layer by layer."""

    main_table = "alignment"
    needs = ("summary.json", "run.json")
    keys = ("models", "pairs")

    def headlines(self) -> list[Headline]:
        return [headline(self.summary)]

    def sections(self) -> list[Section]:
        return sensitivity_sections(self, [(one, two) for one, two in self.summary["pairs"]], self.families)

    def differences(self, other: Result) -> pl.DataFrame:
        compared, faults = [], []
        for part in [part for part in _COMPARED if part in self.tables and part in other.tables]:
            try:
                compared.append(differences_of(part, *combined_rows(self, other, part)).with_columns(part=pl.lit(part)))
            except UserError as error:  # at other ε, or of other layers
                faults.append(error)
        if not compared:
            why = f"compare: expected both to have measured one of {', '.join(_COMPARED)}; see --parts"
            raise faults[0] if faults else UserError(why)
        return pl.concat(compared, how="diagonal")

    def console(self) -> list[Any]:
        columns = _CONSOLE | {estimator.name for estimator in all_estimators() if estimator.console}
        titles = [Text(f"{headline.line}.\n", "bold") for headline in self.headlines()]
        return titles + [
            OnConsole(table, [column for column in table.columns if column in columns])
            for table in self.all_tables()
            if table.name.startswith(("alignment-", "lipschitz-", "terms"))
        ]


def differences_of(part: str, rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Estimate how much larger each number of a part is, by layer; the interval is over the samples."""
    if part == "alignment":
        return sensitivity.layer_differences(rows, pairs)
    if part == "lipschitz":
        layer, site = pl.col("layer").fill_null(-1), pl.format("Lipschitz constant of the {}", "of")
        values = rows.select("model", "sample", "value", layer=layer, site=site, metric="estimator")
    else:
        eps, metrics = pl.col("eps").map_elements(eps_label, pl.String), ["gain", "lipschitz", "alpha"]
        site, layer = pl.format("depth, {}, ε = {}", "perturbation", eps), pl.col("stage") - 1
        values = rows.select("model", "sample", *metrics, layer=layer, site=site)
        values = values.unpivot(metrics, index=["model", "sample", "layer", "site"], variable_name="metric")
    keys, parts = ["site", "layer", "metric"], []
    for pair in pairs:
        left, right = (values.filter(model=name) for name in pair)
        joined = left.join(right, on=[*keys, "sample"], maintain_order="left")
        apart = joined.with_columns(pl.col("value") - pl.col("value_right")).rename({"metric": "of"})
        means = sensitivity.means(apart, ["site", "layer", "of"], ["value"], bounded=False)
        model, against = map(pl.lit, pair)
        parts.append(means.select(pl.exclude("metric", "of"), model=model, against=against, metric="of"))
    return pl.concat(parts).rename({"value": "difference"})


def sensitivity_sections(result: Result, pairs: Sequence[tuple[str, str]], groups: Sequence[Family]) -> list[Section]:
    """Draw and tabulate every part that a run has rows of; an audit may have some, too."""
    sections, seeds = [], seed_counts(groups)
    for part, (schema, draw) in _PARTS.items():
        if part not in result.tables:
            continue
        try:
            rows = result.frame(part).select(*schema)
        except pl.exceptions.PolarsError as error:
            raise unreadable(f"{part}.parquet", error, "run it again") from None
        plots, tables, numbers = draw(rows, pairs, groups)
        words = _WORDS[part]
        sentences = [words["words"].format(**numbers), _WORDS["intervals"]]
        sentences += [_WORDS["seeds"].format(seeds=seeds)] if seeds else []
        panels = [Panel(f"sheet-{table.name}", table.title.split(",")[0], [table]) for table in tables]
        sections.append(Section(part, words["title"], " ".join(sentences), plots, (), panels, "", words["short"]))
    return sections


_Drawn = tuple[list[Plot], list[Table], dict[str, Any]]  # with the numbers in the words


def _alignment(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]], groups: Sequence[Family]) -> _Drawn:
    words = _WORDS["alignment"]
    # along the loss each model has a cotangent of its own: norms there compare with nothing
    frame = sensitivity.alignment(rows).filter((pl.col("site") != "loss") | (pl.col("metric") != "norm"))
    sites = {site: label for site, label in _SITES.items() if site in frame["site"]}
    quantities = {"cosine": ("cosθ", 0.0), "below": ("below 0", None), "norm": ("‖J‖", None)}
    of_site = {site: frame.filter(site=site) for site in sites}
    panels = [
        [_axis(f"{label} {sites[site]}", block, metric, groups, level) for site, block in of_site.items()]
        for metric, (label, level) in quantities.items()
    ]
    two_maps = bool((rows["second"] != 0).any())
    caption = words["two_maps_caption"] * two_maps + words["caption"]
    plots = [Plot("alignment", _layer_figure(panels, groups), caption)]
    heads, blocks = _HEADS["alignment"], of_site.items()
    tables = [_table(f"alignment-{site}", f"Alignment {sites[site]}", one, heads, groups) for site, one in blocks]
    for (site,), block in sensitivity.explanation(rows, list(pairs)).group_by(["site"], maintain_order=True):
        block = block.with_columns(model=pl.col("model") + " / " + pl.col("against"))
        title = f"Taken apart {_SITES[str(site)]}, in logarithms"
        tables.append(_table(f"explanation-{site}", title, block, _HEADS["explanation"], groups))
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    standard = {model: twin for model, twin in pairs if kind[twin] == "softmax"}
    differential = [model for model in kind if kind[model] == "differential"]
    plane = sensitivity.places(rows, {model: standard.get(model) for model in differential})
    if not plane.is_empty():
        plane = plane.sort("model", "layer", maintain_order=True)
        tables.append(_table("plane", "In the plane of Theorem 3", plane, _HEADS["plane"], groups))
    for place, family in enumerate(group for group in groups if set(group.models) & set(plane["model"])):
        where = words["twin" if standard.keys() >= set(family.models) else "no_twin"]
        caption = words["plane"].format(family=family.name, where=where)
        plots.append(Plot(f"plane-{place}", plane_figure(plane, family), caption))
    about = words["two_maps" if two_maps else "one_map"].format(error=sensitivity.prediction_error(rows))
    return plots, tables, {"about": about}


def _terms(rows: pl.DataFrame, _: Sequence[tuple[str, str]], groups: Sequence[Family]) -> _Drawn:
    frame = sensitivity.terms(rows)
    panels = [[_axis(f"share of {label}", frame, metric, groups, 0.0) for metric, label in _HEADS["terms"].items()]]
    tables = [_table("terms", "Shares of ‖J_DA‖² at the pixels, %", frame, _HEADS["terms"], groups)]
    return [Plot("terms", _layer_figure(panels, groups), _WORDS["terms"]["caption"])], tables, {}


def _lipschitz(rows: pl.DataFrame, _: Sequence[tuple[str, str]], groups: Sequence[Family]) -> _Drawn:
    frame = sensitivity.means(rows, ["model", "of", "layer", "estimator"], ["value"])
    frame = frame.with_columns(metric=pl.col("estimator"))
    maps, logits = (frame.filter(of=target) for target in ("map", "logits"))
    measured = [estimator for estimator in all_estimators() if estimator.name in frame["metric"]]
    shown = [(estimator.panel, estimator.name) for estimator in measured if estimator.panel]
    panels = [_axis(f"L by {panel}", maps, name, groups, log=True) for panel, name in shown]
    figure = _layer_figure([panels[start : start + 2] for start in range(0, len(panels), 2)], groups)
    heads = {estimator.name: estimator.name for estimator in measured}
    tables = [
        _table("lipschitz-map", "Each layer’s combined map, root mean square over heads", maps, heads, groups),
        _table("lipschitz-logits", "The logits", logits, heads, groups, place=""),
    ]
    estimators = " ".join(f"{e.name.capitalize()}: {e.estimates}." for e in measured)
    numbers = {"images": rows["sample"].n_unique(), "radius": eps_label(rows["eps"][0]), "estimators": estimators}
    return [Plot("lipschitz", figure, _WORDS["lipschitz"]["caption"])], tables, numbers


def _depth(rows: pl.DataFrame, _: Sequence[tuple[str, str]], groups: Sequence[Family]) -> _Drawn:
    means = sensitivity.means(rows, ["model", "perturbation", "eps", "stage"], ["gain", "lipschitz", "alpha"])
    frame = pl.concat([means, sensitivity.cancellation(rows)])
    largest = frame["eps"].max()
    shown = frame.filter(eps=largest).with_columns(layer=pl.col("stage") - 1)
    panels = []
    for metric, label, *how in (
        ("gain", "‖Δ(d)‖ / ‖Δ(d−1)‖", 1.0, True),
        ("alpha", "gain / L(d)", None, True),
        ("cancellation", "cancellation", 1.0, False),
    ):
        kinds = ((f"{label}, {words}", shown.filter(perturbation=kind)) for kind, words in _KINDS.items())
        panels.append([_axis(title, block, metric, groups, *how, "block") for title, block in kinds])
    tables = []
    for (kind, size), block in frame.group_by(["perturbation", "eps"], maintain_order=True):
        words, eps = _KINDS[str(kind)], float(str(size))
        title = f"{words[0].upper()}{words[1:]} at ε = {eps_label(eps)}"
        tables.append(_table(f"depth-{kind}-{eps * 255:g}", title, block, _HEADS["depth"], groups, "stage"))
    caption = _WORDS["depth"]["caption"].format(eps=eps_label(float(str(largest))))
    return [Plot("depth", _layer_figure(panels, groups), caption)], tables, {}


_PARTS = {
    "alignment": (sensitivity.ALIGNMENT_SCHEMA, _alignment),
    "terms": (sensitivity.TERMS_SCHEMA, _terms),
    "lipschitz": (sensitivity.LIPSCHITZ_SCHEMA, _lipschitz),
    "depth": (sensitivity.DEPTH_SCHEMA, _depth),
}


def _axis(title: str, rows: pl.DataFrame, metric: str, groups: Sequence[Family], *args: Any, **kw: Any) -> figures.Axis:
    frame = rows.filter(metric=metric).select("model", "value", "low", "high", layer=pl.col("layer") + 1)
    return figures.Axis(title, figures.with_means(frame, groups, ["layer"], sensitivity.within(metric)), *args, **kw)


def _layer_figure(rows: Sequence[Sequence[figures.Axis]], groups: Sequence[Family]) -> Figure:
    shown = [[panel for panel in row if not panel.frame.is_empty()] for row in rows]
    return figures.layer_figure([row for row in shown if row], groups)


def _table(
    name: str, title: str, frame: pl.DataFrame, heads: dict[str, str], groups: Sequence[Family], place: str = "layer"
) -> Table:
    def field(row: Mapping[str, Any]) -> Field:
        scale, digits = (100.0, 1) if row["metric"] in _PERCENT else (1.0, 3)

        def text(end: float) -> str:
            return number(scale * end, 0 if abs(scale * end) >= 100 else digits)

        return estimate_field(row["value"], row["low"], row["high"], text)

    shown = frame.with_columns(color=pl.col("model").replace_strict(colors_of(groups), default=""))
    if place == "layer":
        shown = shown.with_columns(pl.col("layer") + 1)
    head = {"layer": ["layer"], "stage": ["block"]}.get(place, [])
    shown = shown.rename({"stage": "block"}, strict=False)
    return tabulate(name, title, shown, ["model", *head], "metric", field, heads, frame)


def plane_figure(places: pl.DataFrame, family: Family) -> Figure:
    """Draw cosθ over λρ in each layer, the region below the critical cosine shaded, for the layer's γ (Theorem 3)."""
    family_places = places.filter(pl.col("model").is_in(family.models))
    layers = family_places["layer"].unique().sort().to_list()
    reach = 1.25 * max(1.0, *family_places.filter(metric="rho")["value"].fill_nan(0.0).to_list())
    columns = min(2, len(layers))
    rows = -(-len(layers) // columns)
    with figures.new_figure(5.0, 0.6 + 2.2 * rows) as figure:
        for place, layer in enumerate(layers, start=1):
            axes = figure.add_subplot(rows, columns, place)
            _draw_plane(axes, family_places.filter(layer=layer), family.color, reach)
            axes.set_title(f"layer {layer + 1}", loc="left", fontsize=9.5)
        figure.supxlabel("λρ")
        figure.supylabel("cosθ")
    return figure


def _draw_plane(axes: Axes, places: pl.DataFrame, color: str, reach: float) -> None:
    rhos, cosines, gammas = (places.filter(metric=name).sort("model") for name in ("rho", "cosine", "gamma"))
    rho, cosine = (float(np.mean(frame["value"].to_numpy())) for frame in (rhos, cosines))
    gamma = float(np.exp(np.mean(np.log(gammas["value"].to_numpy()))))
    if np.isfinite(gamma):
        across = np.linspace(1e-3, reach, 201)
        edge = np.clip(critical_cosine(gamma, 1.0, across), -1.0, 1.0)
        axes.fill_between(across, -1.0, edge, color="#f1d9c9", lw=0, zorder=0)
        axes.plot(across, edge, color="#b08a70", lw=0.9, zorder=1)
        text = f"γ = {number(gamma, 2)}, cosθ* = {number(float(critical_cosine(gamma, 1.0, rho)), 2)}"
        axes.text(0.97, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=7.5)
    if len(rhos) > 1:
        axes.plot(rhos["value"], cosines["value"], "o", ms=3.0, mew=0, color=color, alpha=0.5)
    else:
        across, down = (
            [(frame["value"] - frame["low"]).clip(0), (frame["high"] - frame["value"]).clip(0)]
            for frame in (rhos, cosines)
        )
        axes.errorbar([rho], [cosine], down, across, color=color, elinewidth=1.1, capsize=2.0)
    axes.plot([rho], [cosine], "D", ms=5.5, color=color)
    axes.axhline(0.0, **figures.LEVEL)
    axes.set_xlim(0.0, reach)
    axes.set_ylim(-1.0, 1.0)
    axes.spines[["top", "right"]].set_visible(False)


def headline(summary: Mapping[str, Any]) -> Headline:
    """Say how the gradients of A1 and A2 align at the pixels in the first layer (Figure 5)."""
    words = _WORDS["headline"]
    model = next((m["name"] for m in summary["models"] if m["attention"] == "differential"), None)
    if model is None or "alignment" not in summary:
        return Headline(words["none"].format(model=summary["models"][0]["name"]), words["no_lead"])
    family = next(group for group in families(summary["models"]) if model in group.models)
    rows = [row for row in (*summary["alignment"], *summary["explanation"]) if row["model"] in family.models]
    rows = [row for row in rows if row["site"] == "pixels"]
    layers = {row["layer"] for row in rows}
    first, which, seeds = min(layers), shortened(family.name, 14), len(family.models)
    if len(layers) > 1:
        which = words["layer"].format(layer=first + 1, family=which)
    of_models: dict[int, dict[str, list[intervals.Estimate]]] = {layer: {} for layer in sorted(layers)}
    for row in rows:
        of_models[row["layer"]].setdefault(row["metric"], []).append(estimate_of(row))
    cosines = {layer: of_metric["cosine"] for layer, of_metric in of_models.items()}
    of_first, within = of_models[first].items(), sensitivity.within
    first_layer = {metric: figures.mean_line("", estimates, within(metric)).estimate for metric, estimates in of_first}
    (sign,) = decisions.decide([first_layer["cosine"]], seeds=seeds)
    over = words["over"].format(seeds=seeds, least=decisions.LEAST_SEEDS) if seeds > 1 else ""
    values: Any = {"cosine": _interval(first_layer["cosine"], 3), "rho": _interval(first_layer["rho"], 2)}
    values |= {"share": 100 * first_layer["below"].value, "amplification": first_layer["amplification"].value}
    lead = words["lead"].format(over=over, **values)
    if (ratio := first_layer.get("relative")) is not None:
        most = max(("gamma", "rho", "cosine"), key=lambda part: abs(first_layer[f"by_{part}"].value))
        lead += words["twin"].format(ratio=_interval(ratio, 2, math.exp), most=words[most])
    cosine = figures.Forest("", (), scale=1.0, digits=2).number(first_layer["cosine"])
    title = words[("undecided", "similar", "opposed")[sign]].format(which=which, cosine=cosine)
    return Headline(title, lead, plot=lambda: _cosine_plot(family, cosines))


def _cosine_plot(family: Family, cosines: Mapping[int, list[intervals.Estimate]]) -> Plot:
    within, lines = sensitivity.within("cosine"), []
    for layer, estimates in cosines.items():
        line = figures.mean_line(f"layer {layer + 1}", estimates, within, marked=not lines)
        (sign,) = decisions.decide([line.estimate], seeds=len(estimates))
        lines.append(replace(line, color=family.color if sign else figures.UNDECIDED))
    forest = figures.Forest(f"cosθ, {shortened(family.name)}", lines, 0.0, scale=1.0, digits=3)
    return Plot("answer", figures.forest_figure([forest]), _WORDS["headline"]["answer"])


def _interval(estimate: intervals.Estimate, digits: int, scale: Any = float) -> str:
    def text(end: float) -> str:
        return number(scale(end), digits)

    return with_interval(text(estimate.value), interval_text(estimate.low, estimate.high, text))
