"""Randomised smoothing of a model, or of a model and its twin: rows on disk as they come, shared among processes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from rich.text import Text
from torch import Tensor, nn

from antiphase.attacks.engine.oracle import attacked
from antiphase.commands.certify import CertifyOptions
from antiphase.commands.lineup import Lineup, described, load_lineup, write_run
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import ABOUT_SCHEMA, BATCH_SIZE, Part, Rows, entries, rows_of, sense
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.rates import clean_accuracy, not_above_chance
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.report import figure as figures
from antiphase.report.figure import Family, colors_of, families
from antiphase.report.page import Headline, Plot, Section, answer, quoted_place, text
from antiphase.report.table import Field, Table, difference_field, estimate_field, rate_field, tabulate
from antiphase.report.words import estimate_of, number
from antiphase.sensitivity.layer_estimates import layer_parts, radius_parts, radius_ratios
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.lipschitz import Linearisation, power_iteration
from antiphase.sensitivity.smoothing import Smoothing, smooth
from antiphase.sensitivity.theory import estimated_radius, margins
from antiphase.statistics.decisions import decide
from antiphase.statistics.intervals import as_size, jackknife, paired_difference, proportion
from antiphase.store import Cache, slice_size, write_frame

CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_CELL_SCHEMA: dict[str, Any] = dict.fromkeys(
    ("sample", "clean_prediction", "prediction", "radius", "top", "count"), pl.Int64
)
_CELL_SCHEMA |= {"radius": pl.Float64}
_ABOUT_SCHEMA = {"model": pl.String, "attention": pl.String, "seed": pl.Int64}
_SETTINGS_SCHEMA = {"sigma": pl.Float64, "select": pl.Int64, "samples": pl.Int64, "alpha": pl.Float64}
_SETTINGS_SCHEMA |= {"smoothing_seed": pl.Int64}
CERTIFY_SCHEMA = _ABOUT_SCHEMA | {"sample": pl.Int64, "label": pl.Int64} | _CELL_SCHEMA | _SETTINGS_SCHEMA


def run(options: CertifyOptions, command: str = "") -> None:
    """Load what the options name and certify it."""
    names = [field.name for field in fields(Smoothing)]
    smoothing = Smoothing(**{name: getattr(options, name) for name in names})
    pair = {"model": (options.model,), "against": (options.against,) if options.against else ()}
    certify(load_lineup(options.model_copy(update=pair)), smoothing, options, command)


def certify(
    lineup: Lineup, smoothing: Smoothing, options: CertifyOptions, command: str = ""
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Smooth each model on the same images and write the run directory; return rows and summary."""
    began = time.monotonic()
    lineup, warnings = lineup.ordered()
    data, cards = lineup.data, {name: card_of(model) for name, model in lineup.by_name.items()}
    how = (data, smoothing, options, this_process())
    rows = pl.concat(smoothed_rows(*named, *how) for named in lineup.by_name.items())
    outputs = {name: card.classes for name, card in cards.items()}
    summary = summarise_certificates(rows, smoothing)
    summary |= {
        "warnings": lineup.doubts() + warnings + not_above_chance(clean_accuracy(rows), outputs),
        "data": data.name,
        "data_fingerprint": data.fingerprint(),
        "models": [entry | {"num_classes": outputs[entry["name"]]} for entry in summary["models"]],
        "specifications": {name: card.spec for name, card in cards.items()},
    }
    if options.estimated:
        summary["estimated"] = estimate_radii(lineup, options)
    settings, doubts = asdict(smoothing), summary["warnings"]
    write_run(lineup, options, summary, {"rows": rows}, settings, doubts, command, began)
    return rows, summary


def smoothed_rows(
    name: str, model: nn.Module, data: ImageSet, smoothing: Smoothing, options: CertifyOptions, process: Process
) -> pl.DataFrame:
    """Smooth this process's share of the images that are not on disk yet; return the rows of all."""
    identity = {"version": CELL_VERSION, "model": fingerprint(model), "data": data.fingerprint()}
    wanted = [(name, sample) for sample in data.ids.tolist()]
    cache = Cache(options.out, {name: asdict(smoothing) | identity}, _CELL_SCHEMA, wanted, process)
    title = "" if options.quiet or not process.first else f"{name} σ={smoothing.sigma:g}"
    with cache.filling(slice_size(data.image_shape)) as parts:
        for part in parts:
            images, ids = data.images(part), data.ids[part]
            with attacked(model) as oracle:
                batches = images.split(64)
                clean = torch.cat([oracle.predict(batch.to(oracle.device)).cpu() for batch in batches])

            def keep(
                position: int, verdict: dict[str, Any], ids: torch.Tensor = ids, clean: torch.Tensor = clean
            ) -> None:
                row = {"sample": int(ids[position]), "clean_prediction": int(clean[position]), **verdict}
                cache.journals[name].append(pl.DataFrame([row], schema=_CELL_SCHEMA))

            how = asdict(smoothing) | {"batch_size": options.batch_size, "progress": title}
            smooth(model, images, **how, ids=ids, on_finished=keep)
    how = {column: getattr(smoothing, column) for column in ("sigma", "select", "samples", "alpha")}
    samples = pl.DataFrame({"sample": data.ids.numpy()})
    rows = samples.join(cache.collect()[name], on="sample", maintain_order="left")
    return described(rows, CERTIFY_SCHEMA, name, model, data, smoothing_seed=smoothing.seed, **how)


def curve(
    radius: Float[np.ndarray, " samples"],
    correct: Bool[np.ndarray, " samples"],
    radii: Sequence[float] | Float[np.ndarray, " radii"],
) -> pl.DataFrame:
    """Return the certified accuracy at each r, the share of images with a right prediction and R ≥ r.

    Intervals are Wilson's, 95 %. An abstention is no right prediction, also at r = 0.

    >>> curve(np.array([0.0, 0.3, 0.5]), np.array([False, True, True]), [0.0, 0.4])["value"].round(3).to_list()
    [0.667, 0.333]
    """
    counts = [int(np.sum(correct & (radius >= r))) for r in radii]
    rates = {count: asdict(proportion(count, len(radius))) for count in set(counts)}  # a step has one height
    numbers = [{"radius": float(r), **rates[count]} for r, count in zip(radii, counts, strict=True)]
    return pl.DataFrame(numbers, dict.fromkeys(("radius", "value", "low", "high"), pl.Float64) | {"n": pl.Int64})


def round_radii(smoothing: Smoothing) -> list[float]:
    """Return the multiples of σ/2 from 0 to the largest radius that the number of samples allows."""
    return [half * smoothing.sigma / 2 for half in range(int(2 * smoothing.reach / smoothing.sigma) + 1)]


def summarise_certificates(rows: pl.DataFrame, smoothing: Smoothing) -> dict[str, Any]:
    """Return what the rows say of each model, and the paired differences of the first from the second."""
    radii = round_radii(smoothing)
    models = []
    for (name,), block in rows.group_by(["model"], maintain_order=True):
        block = block.sort("sample")
        radius, correct = block["radius"].to_numpy(), (block["prediction"] == block["label"]).to_numpy()
        rates = {
            "clean_accuracy": (block["clean_prediction"] == block["label"]).sum(),
            "smoothed_accuracy": int(correct.sum()),
            "abstentions": (block["prediction"] < 0).sum(),
        }
        models.append(
            {"name": name, "attention": block["attention"][0], "seed": block["seed"][0]}
            | {rate: asdict(proportion(int(hits), len(block))) for rate, hits in rates.items()}
            | {"mean_radius": float(np.mean(np.where(correct, radius, 0.0)))}
            | {"certified_accuracy": curve(radius, correct, radii).to_dicts()}
        )
    first, *twins = (model["name"] for model in models)
    comparisons = paired_differences(rows, [(first, twin) for twin in twins], radii)
    settings = asdict(smoothing) | {"reach": smoothing.reach}
    return {"smoothing": settings, "norm": "l2", "models": models, "comparisons": comparisons}


def paired_differences(
    rows: pl.DataFrame, pairs: Sequence[tuple[str, str]], radii: Sequence[float]
) -> list[dict[str, Any]]:
    """Return the difference of certified accuracy of each pair at each radius, on the same images."""
    differences = []
    for model, against in pairs:
        blocks = [rows.filter(model=name).sort("sample") for name in (model, against)]
        right = [(block["prediction"] == block["label"]).to_numpy() for block in blocks]
        sizes = [block["radius"].to_numpy() for block in blocks]
        for radius in radii:
            held = [hits & (size >= radius) for hits, size in zip(right, sizes, strict=True)]
            about = {"model": model, "against": against, "radius": radius}
            differences.append(about | asdict(paired_difference(*held)))
    return differences


STEPS = 20  # of power iteration
RADIUS_SCHEMA = ABOUT_SCHEMA | dict.fromkeys(("sample", "label", "prediction"), pl.Int64)
RADIUS_SCHEMA |= dict.fromkeys(("margin", "lipschitz", "slope"), pl.Float64)
"""``margin`` is m of the predicted class, ``lipschitz`` ‖∂logits/∂x‖₂ by power iteration, ``slope`` ‖∂m/∂x‖₂, exact."""


def margin_slopes(
    model: nn.Module, images: Float[Tensor, "batch *shape"]
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the predicted classes y, the margins m = z_y − max_{j≠y} z_j, and ‖∂m/∂x‖₂, exact by one backward pass."""
    with eager_attention():
        linear = Linearisation(model, images)
        with torch.enable_grad():
            prediction = linear.y.argmax(1)
            margin = margins(linear.y, prediction)
            (cotangent,) = torch.autograd.grad(margin.sum(), linear.y, retain_graph=True)
        return prediction, margin.detach(), linear.vjp(cotangent).flatten(1).norm(dim=1)


def measure_radii(
    name: str,
    model: nn.Module,
    data: ImageSet,
    out: Path,
    *,
    process: Process,
    progress: bool,
    limit: int | None = None,
    **how: int,
) -> pl.DataFrame:
    """Measure margin and local Lipschitz constant of each image not on disk yet; ``how``: steps, seed, batch_size."""
    labels = dict(zip(data.ids.tolist(), data.labels.tolist(), strict=True))

    def rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
        constant = power_iteration(model, images, steps=options.steps, seed=options.seed, ids=ids).value
        columns = dict(zip(("prediction", "margin", "slope"), margin_slopes(model, images), strict=True))
        columns |= {"lipschitz": constant, "label": torch.tensor([labels[sample] for sample in ids.tolist()])}
        yield rows_of(ids, {name: values[:, None] for name, values in columns.items()})

    part = Part("radius", RADIUS_SCHEMA, {"steps": "steps", "seed": "seed"}, rows)
    options = SenseOptions.from_file(how, model=("radius",), quiet=not progress)
    return sense(name, model, data, options, out, limit=limit, process=process, parts=[part])["radius"]


def estimate_radii(lineup: Lineup, options: CertifyOptions) -> dict[str, Any]:
    """Estimate radii as margin over Lipschitz constant; write ``estimated.parquet``, return the summary."""
    out, limit, seed, process = options.out, options.estimated, options.seed, this_process()
    how: dict[str, Any] = {"process": process, "progress": not options.quiet, "limit": limit}
    how |= {"steps": STEPS, "seed": seed, "batch_size": BATCH_SIZE}
    models = lineup.by_name.items()
    rows = [measure_radii(*named, lineup.data, out, **how) for named in models]
    if process.first:
        write_frame(out / "estimated.parquet", pl.concat(rows))
    summary: dict[str, Any] = {
        "settings": {"images": len(rows[0]), "steps": STEPS, "norms": "L2 → L2"},
        "models": [{"name": name, **_means(own)} for name, own in zip(lineup.names, rows, strict=True)],
    }
    if len(rows) < 2:
        return summary
    if [card_of(model).attention for model in lineup.everyone] != ["differential", "softmax"]:
        note = "equation (6) is about a differential model against standard attention"
        return summary | {"ratios": _ratios(None, *rows), "note": note}
    asked = {"parts": ("alignment",), "probes": 16, "seed": seed, "quiet": options.quiet}
    sensing = SenseOptions(model=("certify",), **asked)
    try:
        aligned = [sense(*named, lineup.data, sensing, out, limit=limit)["alignment"] for named in models]
        if len({own["layer"].n_unique() for own in aligned}) > 1:
            raise UserError("the models have different numbers of attention layers")
        return summary | {"ratios": _ratios(layer_parts(*aligned), *rows)}
    except UserError as error:
        return summary | {"ratios": _ratios(None, *rows), "note": f"equation (6) is not evaluated: {error}"}


def _ratios(layers: pl.DataFrame | None, own: pl.DataFrame, base: pl.DataFrame) -> list[dict[str, Any]]:
    usable = [rows.filter(pl.col("margin") > 0, pl.col("lipschitz") > 0) for rows in (own, base)]
    predicted = layers is not None
    if layers is None:
        layers = own.select("sample", layer=pl.lit(0), first=1.0, second=1.0, cross=0.0, base=1.0)
    parts = radius_parts(layers, *usable).drop_nulls()
    if parts.is_empty():
        return []
    ratios = radius_ratios(parts)
    measured = pl.col("metric").is_in(["margin", "constant", "measured"])
    return entries(ratios if predicted else ratios.filter(measured))


def _means(rows: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return means over the images; margin and radius of an image that is classified wrongly count as 0."""
    names = ("margin", "lipschitz", "slope")
    margin, constant, slope = (torch.tensor(rows[name].to_numpy()) for name in names)
    margin = margin * torch.tensor((rows["prediction"] == rows["label"]).to_numpy())
    values = {
        "margin": margin,
        "constant": constant,
        "printed": estimated_radius(margin, constant, of="margin"),
        "radius": estimated_radius(margin, constant, of="logits"),
        "nearest": estimated_radius(margin, slope, of="margin"),
    }
    means = (jackknife(value.numpy()[:, None], lambda mean: mean[..., 0]) for value in values.values())
    lines = entries(pl.DataFrame([asdict(as_size(mean)) for mean in means]))
    return dict(zip(values, lines, strict=True))


_ESTIMATED = {"margin": "margin m", "constant": "L of logits", "printed": "m / L", "radius": "m / (√2·L)"}
_RATIOS = {"margin": "Δm", "constant": "L", "measured": "R", "corrected": "(6) corrected", "printed": "(6) printed"}
_words = partial(text, "certify.txt")


class CertifyResult(Result):
    """Certified radii of a smoothed model."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "smoothing")
    settings_title = "Smoothing"

    def headlines(self) -> list[Headline]:
        models, comparisons = self.summary["models"], self.summary["comparisons"]
        named = [model["name"] for model in models]
        values = self.summary["smoothing"] | {"models": models, "n": models[0]["smoothed_accuracy"]["n"]}
        if comparisons:
            shown, signs = comparisons, decide(list(map(estimate_of, comparisons)))
            quoted = quoted_place(signs)
            names: dict[str, str] = dict(zip(("model", "against"), named, strict=True))
            title = answer("certify.txt", "title", names, **shown[quoted] | {"decided": signs[quoted]})
        else:
            shown, quoted = models[0]["certified_accuracy"], 0
            signs, names = [1] * len(shown), {"model": named[0]}
            title = answer("certify.txt", "title_alone", names, **models[0]["smoothed_accuracy"])

        def plot() -> Plot:
            rows = [
                (f"R ≥ {row['radius']:g}", [estimate_of(row)], sign, place == quoted)
                for place, (row, sign) in enumerate(zip(shown, signs, strict=True))
            ]
            rates = ([estimate_of(model["clean_accuracy"])] for model in models)
            sides = [(name, self.colors[name], rate) for name, rate in zip(named, rates, strict=True)]
            what, below = "Certified", "Accuracy without smoothing"
            figure = figures.answer_figure(what, rows, below, sides, figures.chance(models))
            return Plot("answer", figure, _words("answer", compared=bool(comparisons)))

        return [Headline(title, _words("lead", **values), _words("condition", **values), plot)]

    def sections(self) -> list[Section]:
        figure = curve_figure(self.frame("rows"), self.summary)
        plot = Plot("curve", figure, _words("caption"), beside=True)
        tables = [_certified(self.summary), *_differences(self.summary["comparisons"])]
        sections = [Section("certified", "Certified accuracy", plots=[plot], tables=tables)]
        if estimated := self.summary.get("estimated"):
            words = " ".join([_words("estimated"), *self._notes()])
            sections.append(Section("estimated", "Estimated radii", words, tables=_estimated(estimated)))
        return sections

    def console(self) -> list[Any]:
        return [*super().console(), *map(Text, self._notes())]

    def _notes(self) -> list[str]:
        estimated = self.summary.get("estimated", {})
        return [f"Note: {estimated['note']}."] if "note" in estimated else []

    def differences(self, other: Self) -> pl.DataFrame:
        mine, theirs = (
            [rate["radius"] for rate in result.summary["models"][0]["certified_accuracy"]] for result in (self, other)
        )
        radii = [radius for radius in sorted({*mine, *theirs}) if radius <= min(mine[-1], theirs[-1])]
        differences = paired_differences(*combined_rows(self, other), radii)
        return pl.DataFrame(differences).rename({"value": "difference"})


def curve_figure(rows: pl.DataFrame, summary: Mapping[str, Any]) -> Figure:
    """Draw certified accuracy up to the largest radius that the noise samples can certify, with 95 % Wilson bands."""
    smoothing, models = summary["smoothing"], [model["name"] for model in summary["models"]]
    colors = colors_of(families(summary["models"]))
    grid, curves = np.linspace(0, smoothing["reach"], 257), []
    for name in models:
        block = rows.filter(model=name)
        correct = (block["prediction"] == block["label"]).to_numpy()
        curves.append(curve(block["radius"].to_numpy(), correct, grid).with_columns(name=pl.lit(name)))
    lines = pl.concat(curves).with_columns(pl.col("value", "low", "high") * 100)
    with figures.new_figure(5.0, 3.6) as figure:
        axes = figure.add_subplot()
        groups = [Family(name, colors[name], (name,)) for name in models]
        drawn = figures.draw_families(axes, lines, "radius", groups, marks=False)
        figures.add_legend(axes, drawn, loc="best", fontsize=8.5)
        title = f"Smoothed with σ = {smoothing['sigma']:g}, n = {smoothing['samples']:,}, α = {smoothing['alpha']:g}"
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_xlabel("certified L2 radius, in units of the pixel range")
        axes.set_ylabel("certified accuracy (%)")
        axes.set_xlim(0, smoothing["reach"])
        axes.set_ylim(0, 100)
        figures.dress(axes)
    return figure


def _certified(summary: Mapping[str, Any]) -> Table:
    models = summary["models"]
    colors = colors_of(families(models))
    numbers = [{"model": model["name"], **rate} for model in models for rate in model["certified_accuracy"]]
    radii = dict.fromkeys(f"{row['radius']:g}" for row in numbers)
    rows = [
        {"model": model["name"], "color": colors[model["name"]], "head": head, **rate}
        for model in models
        for head, rate in (
            ("unsmoothed", model["clean_accuracy"]),
            ("abstains", model["abstentions"]),
            ("mean R", {"value": model["mean_radius"]}),
            *zip(radii, model["certified_accuracy"], strict=True),
        )
    ]
    title = f"Certified accuracy at L2 radius, % of {models[0]['clean_accuracy']['n']:,} images"
    heads = {head: head for head in ("unsmoothed", "abstains", "mean R", *radii)}
    frame, csv = _frame(rows), pl.DataFrame(numbers)
    return tabulate("certified", title, frame, ["model"], "head", _rate, heads, csv)


def _rate(row: Mapping[str, Any]) -> Field:
    return Field(number(row["value"], 3)) if row["head"] == "mean R" else rate_field(row)


def _differences(comparisons: Sequence[Mapping[str, Any]]) -> list[Table]:
    if not comparisons:
        return []
    frame = pl.DataFrame(comparisons)
    shown = frame.with_columns(
        pl.format("{} − {}", "model", "against").alias("same images"),
        decided=pl.Series(decide([estimate_of(row) for row in comparisons])),
    )
    title = "Difference from the twin, points, by L2 radius; pale: not decided"
    how = (["same images"], "radius", difference_field, "{:g}".format, frame)
    return [tabulate("difference", title, shown, *how)]


def _estimated(estimated: Mapping[str, Any]) -> list[Table]:
    models = estimated["models"]
    means = [{"model": model["name"], "quantity": name, **model[name]} for model in models for name in _ESTIMATED]
    title = f"Estimated L2 radius, not certified, mean of {estimated['settings']['images']} images"
    tables = [tabulate("estimated", title, _frame(means), ["model"], "quantity", _estimate, _ESTIMATED)]
    if ratios := estimated.get("ratios"):
        frame = _frame(ratios).rename({"metric": "quantity"})
        frame = frame.select("layer", "quantity", "value", "low", "high")
        title, down = " / ".join(model["name"] for model in models) + ", geometric means", "ratio of"
        place = pl.lit("whole models")
        if "printed" in frame["quantity"]:  # every layer predicts the R of the whole model
            title, down = (f"{title}; equation (6) predicts R from the maps of one block", "(6) for the block at")
            place = pl.format("depth {}", pl.col("layer") + 1)
        frame = frame.with_columns(place.alias(down))
        tables.append(tabulate("ratios", title, frame, [down], "quantity", _estimate, _RATIOS))
    return tables


def _frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


def _estimate(row: Mapping[str, Any]) -> Field:
    digits = 3 if row["value"] is None or abs(row["value"]) < 10 else 1
    return estimate_field(row["value"], row["low"], row["high"], lambda end: number(end, digits))
