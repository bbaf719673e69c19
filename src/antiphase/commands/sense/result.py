"""The result of ``antiphase sense``: headline, figures and tables from the stored rows."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import polars as pl

from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense.figures import Axis, layer_figure, plane_figure
from antiphase.errors import UserError
from antiphase.files import unreadable
from antiphase.report.figure import Family, colors_of, families, seed_counts
from antiphase.report.page import Headline, Panel, Plot, Section
from antiphase.report.table import Field, Table, estimate_field
from antiphase.report.words import ends, number
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.sensitivity.lipschitz import all_estimators
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate, mean_over_seeds
from antiphase.terminal import eps_label

_WORDS = tomllib.loads((files("antiphase.commands.sense") / "words.toml").read_text(encoding="utf-8"))
_SCHEMAS = {
    "alignment": sensitivity.ALIGNMENT_SCHEMA,
    "lipschitz": sensitivity.LIPSCHITZ_SCHEMA,
    "depth": sensitivity.DEPTH_SCHEMA,
}
_SITES = {"pixels": "at the pixels", "tokens": "at the layer’s tokens", "loss": "along the loss’s gradient"}
_KINDS = {"noise": "uniform noise", "pgd": "PGD’s perturbation"}
_PERCENT = {"below", "negative", "positive", "undecided"}
# columns of tables: their heads by metric
_ALIGNMENT = {
    "cosine": "cosθ",
    "rho": "ρ",
    "amplification": "‖J_DA‖ / ‖J1‖",
    "below": "below 0, %",
    "negative": "surely below, %",
    "positive": "surely above, %",
    "norm": "‖J_DA‖",
}
_EXPLANATION = {
    "relative": "ln ‖J_DA‖/‖J_base‖",
    "by_gamma": "by γ",
    "by_rho": "by ρ",
    "by_cosine": "by cosθ",
    "gamma": "γ",
}
_PLANE = {"rho": "λρ", "cosine": "cosθ", "critical": "cosθ*", "gamma": "γ", "relative": "‖J_DA‖ / ‖J_base‖"}
_DEPTH = {"gain": "gain", "lipschitz": "L(d)", "alpha": "gain / L(d)", "cancellation": "cancellation"}
_CONSOLE = {"model", "layer", "cosθ", "ρ", "‖J_DA‖ / ‖J1‖", "below 0, %"}


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
        return sensitivity.layer_differences(*combined_rows(self, other, "alignment"))

    def console(self) -> list[Any]:
        columns = _CONSOLE | {estimator.name for estimator in all_estimators() if estimator.console}
        return [
            table.console([column for column in table.columns if column in columns])
            for table in self.all_tables()
            if table.name.startswith(("alignment-", "lipschitz-"))
        ]


def sensitivity_sections(
    result: Result, pairs: Sequence[tuple[str, str]], groups: Sequence[Family]
) -> list[Section]:
    """Draw and tabulate every part that a run has rows of; an audit may have some, too.

    Raises:
        UserError: naming a file that lacks a column.
    """
    sections = []
    for part, schema in _SCHEMAS.items():
        if part not in result.tables:
            continue
        try:
            rows = result.frame(part).select(*schema)
        except pl.exceptions.PolarsError as error:
            raise unreadable(f"{part}.parquet", error, "run it again") from None
        match part:
            case "alignment":
                sections.append(_alignment(rows, pairs, groups))
            case "lipschitz":
                sections.append(_lipschitz(rows, groups))
            case _:
                sections.append(_depth(rows, groups))
    return sections


def _section(
    part: str,
    groups: Sequence[Family],
    figures: Sequence[tuple[str, Any, str]],
    tables: Sequence[Table],
    **numbers: Any,
) -> Section:
    words, seeds = _WORDS[part], seed_counts(groups)
    sentences = [words["words"].format(**numbers), _WORDS["intervals"]]
    if seeds:
        sentences.append(_WORDS["seeds"].format(seeds=seeds))
    panels = [Panel(f"sheet-{table.name}", table.title.split(",")[0], [table]) for table in tables]
    plots = [Plot(*figure) for figure in figures]
    return Section(
        part, words["title"], " ".join(sentences), plots, panels=panels, in_navigation=words["short"]
    )


def _alignment(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]], groups: Sequence[Family]) -> Section:
    frame = sensitivity.alignment(rows)
    # along the loss each model has a cotangent of its own: norms there compare with nothing
    frame = frame.filter((pl.col("site") != "loss") | (pl.col("metric") != "norm"))
    sites = [site for site in _SITES if site in set(frame["site"])]
    panels = [
        [
            Axis(f"{label} {_SITES[site]}", own, level, within=sensitivity.within(metric))
            for site in sites
            if not (own := frame.filter(site=site, metric=metric)).is_empty()
        ]
        for metric, label, level in (
            ("cosine", "cosθ", 0.0),
            ("below", "share below 0", None),
            ("norm", "‖J‖", None),
        )
    ]
    figures = [
        ("alignment", layer_figure([row for row in panels if row], groups), _WORDS["alignment"]["caption"])
    ]
    tables = [
        _table(f"alignment-{site}", f"Alignment {_SITES[site]}", frame.filter(site=site), _ALIGNMENT, groups)
        for site in sites
    ]
    explained = sensitivity.explanation(rows, list(pairs))
    for site in explained["site"].unique(maintain_order=True):
        own = explained.filter(site=site).with_columns(model=pl.col("model") + " / " + pl.col("against"))
        title = f"Taken apart {_SITES[site]}, in logarithms"
        tables.append(_table(f"explanation-{site}", title, own, _EXPLANATION, groups))
    kind = dict(rows.select("model", "attention").unique().iter_rows())
    standard = {model: twin for model, twin in pairs if kind[twin] == "softmax"}
    plane = sensitivity.places(
        rows, {model: standard.get(model) for model in kind if kind[model] == "differential"}
    )
    if not plane.is_empty():
        plane = plane.sort("model", "layer", maintain_order=True)
        tables.append(_table("plane", "In the plane of Theorem 3", plane, _PLANE, groups))
    for place, family in enumerate(group for group in groups if set(group.models) & set(plane["model"])):
        where = _WORDS["alignment"]["twin" if standard.keys() >= set(family.models) else "no_twin"]
        caption = _WORDS["alignment"]["plane"].format(family=family.name, where=where)
        figures.append((f"plane-{place}", plane_figure(plane, family), caption))
    return _section("alignment", groups, figures, tables, error=sensitivity.prediction_error(rows))


def _lipschitz(rows: pl.DataFrame, groups: Sequence[Family]) -> Section:
    frame = sensitivity.means(rows, ["model", "of", "layer", "estimator"], ["value"])
    frame = frame.with_columns(metric=pl.col("estimator"))
    maps, logits = (frame.filter(of=of) for of in ("map", "logits"))
    measured = [estimator for estimator in all_estimators() if estimator.name in set(frame["metric"])]
    panels = [
        Axis(f"L by {estimator.panel}", own, log=True)
        for estimator in measured
        if estimator.panel and not (own := maps.filter(metric=estimator.name)).is_empty()
    ]
    figure = layer_figure([panels[start : start + 2] for start in range(0, len(panels), 2)], groups)
    heads = {estimator.name: estimator.name for estimator in measured}
    title = "Each layer’s combined map, root mean square over heads"
    return _section(
        "lipschitz",
        groups,
        [("lipschitz", figure, _WORDS["lipschitz"]["caption"])],
        [
            _table("lipschitz-map", title, maps, heads, groups),
            _table("lipschitz-logits", "The logits", logits, heads, groups, place=None),
        ],
        images=rows["sample"].n_unique(),
        radius=eps_label(rows["eps"][0]),
        estimators=" ".join(f"{e.name.capitalize()}: {e.estimates}." for e in measured),
    )


def _depth(rows: pl.DataFrame, groups: Sequence[Family]) -> Section:
    keys = ["model", "perturbation", "eps", "stage"]
    frame = pl.concat(
        [sensitivity.means(rows, keys, ["gain", "lipschitz", "alpha"]), sensitivity.cancellation(rows)]
    )
    eps = frame["eps"].unique().sort().to_list()
    shown = frame.filter(eps=eps[-1]).with_columns(layer=pl.col("stage") - 1)
    panels = [
        [
            Axis(f"{label}, {words}", own, level, log, "block")
            for kind, words in _KINDS.items()
            if not (own := shown.filter(metric=metric, perturbation=kind)).is_empty()
        ]
        for metric, label, level, log in (
            ("gain", "‖Δ(d)‖ / ‖Δ(d−1)‖", 1.0, True),
            ("alpha", "gain / L(d)", None, True),
            ("cancellation", "cancellation", 1.0, False),
        )
    ]
    figure = layer_figure([row for row in panels if row], groups)
    tables = [
        _table(
            f"depth-{kind}-{size * 255:g}",
            f"{_KINDS[str(kind)][0].upper()}{_KINDS[str(kind)][1:]}, ε = {eps_label(float(size))}",
            block,
            _DEPTH,
            groups,
            place="stage",
        )
        for (kind, size), block in frame.group_by(["perturbation", "eps"], maintain_order=True)
    ]
    caption = _WORDS["depth"]["caption"].format(eps=eps_label(eps[-1]))
    return _section("depth", groups, [("depth", figure, caption)], tables)


def _table(
    name: str,
    title: str,
    frame: pl.DataFrame,
    heads: Mapping[str, str],
    groups: Sequence[Family],
    place: str | None = "layer",
) -> Table:
    """Tabulate estimates: models and layers or stages down, metrics across."""
    colors, rows = colors_of(groups), []
    for key, block in frame.group_by(["model", place] if place else ["model"], maintain_order=True):
        estimates = {row["metric"]: row for row in block.iter_rows(named=True)}
        model, *places = key
        numbers = [Field(str(at + (place == "layer"))) for at in places]
        cells = (_cell(estimates.get(metric), 100.0 if metric in _PERCENT else 1.0) for metric in heads)
        rows.append((Field(model, color=colors.get(model, ""), kind="name"), *numbers, *cells))
    columns = ("model", *({"layer": ["layer"], "stage": ["block"]}.get(place or "", [])), *heads.values())
    return Table(name, title, columns, tuple(rows), frame.write_csv())


def _cell(row: Mapping[str, Any] | None, scale: float) -> Field:
    def text(end: float) -> str:
        size = scale * end
        return number(size, 0 if abs(size) >= 100 else 1 if scale > 1 else 3)

    return Field("–") if row is None else estimate_field(row["value"], row["low"], row["high"], text)


def headline(summary: Mapping[str, Any]) -> Headline:
    """Say how the gradients of A1 and A2 align in the first layer, at the pixels.

    They are about the first differential family, and the first layer since the paper sees the strongest effect there
    (Figure 5). Several models get the mean over training seeds and Student's t interval, a single model its interval
    over the images.
    """
    words = _WORDS["headline"]
    model = next((m["name"] for m in summary["models"] if m["attention"] == "differential"), None)
    if model is None or "alignment" not in summary:
        return Headline(words["none"].format(model=summary["models"][0]["name"]), words["no_lead"])
    family = next(group for group in families(summary["models"]) if model in group.models)
    estimates = _over_seeds([*summary["alignment"], *summary["explanation"]], family)
    layers = {layer for layer, _ in estimates}
    first, which, seeds = min(layers), family.name, len(family.models)
    if len(layers) > 1:
        which = words["layer"].format(layer=first + 1, family=which)
    first_layer = {metric: estimate for (layer, metric), estimate in estimates.items() if layer == first}
    (sign,) = decide([first_layer["cosine"]], seeds=seeds)
    lead = words["lead"].format(
        cosine=_interval(first_layer["cosine"], 3),
        over=words["over"].format(seeds=seeds, least=LEAST_SEEDS) if seeds > 1 else "",
        share=100 * first_layer["below"].value,
        rho=_interval(first_layer["rho"], 2),
        amplification=first_layer["amplification"].value,
    )
    if (ratio := first_layer.get("relative")) is not None:
        most = max(("gamma", "rho", "cosine"), key=lambda part: abs(first_layer[f"by_{part}"].value))
        lead += words["twin"].format(ratio=_interval(ratio, 2, math.exp), most=words[most])
    return Headline(words[("undecided", "similar", "opposed")[sign]].format(which=which), lead)


def _over_seeds(rows: Sequence[Mapping[str, Any]], family: Family) -> dict[tuple[int, str], Estimate]:
    """Return the estimates of a family with respect to the pixels, by layer and metric."""
    groups: dict[tuple[int, str], list[Estimate]] = {}
    for row in rows:
        if row["model"] in family.models and row["site"] == "pixels":
            value, low, high = (
                default if row[name] is None else row[name]
                for name, default in (("value", math.nan), ("low", -math.inf), ("high", math.inf))
            )
            groups.setdefault((row["layer"], row["metric"]), []).append(Estimate(value, low, high, row["n"]))
    return {
        (layer, metric): sensitivity.within(metric)(mean_over_seeds([one.value for one in estimates]))
        if len(estimates) > 1
        else estimates[0]
        for (layer, metric), estimates in groups.items()
    }


def _interval(estimate: Estimate, digits: int, scale: Any = float) -> str:
    def text(end: float) -> str:
        return number(scale(end), digits)

    return f"{text(estimate.value)} ({ends(estimate.low, estimate.high, text, ' to ')})"
