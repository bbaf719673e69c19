"""Certified radii by randomised smoothing: rows on disk as they come, shared among processes; and estimated radii.

The latter, margin over Lipschitz constant (sensitivity paper, Appendix B), certify nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int64
from matplotlib.figure import Figure
from torch import Tensor, nn

from antiphase.attacks.engine.oracle import attacked
from antiphase.commands.certify import CertifyOptions
from antiphase.commands.lineup import Lineup, described, load_lineup, write_run
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import Part, Rows, rows_of, sense
from antiphase.data import ImageSet
from antiphase.data.images import content_key
from antiphase.evaluation.metrics import finite
from antiphase.evaluation.rates import MODEL_SCHEMA, Pairs, clean_accuracy, not_above_chance
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.report import figure as figures
from antiphase.report.page import Headline, Plot, Section, answer, quoted_place, text
from antiphase.report.table import Field, Table, difference_field, rate_field, tabulate
from antiphase.report.words import estimate_of, number
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.lipschitz import Linearisation, power_iteration
from antiphase.sensitivity.smoothing import Smoothing, smooth
from antiphase.sensitivity.theory import estimated_radius, margins
from antiphase.statistics.decisions import decide, mcnemar_exact
from antiphase.statistics.intervals import paired_difference, proportion
from antiphase.store import Cache, slice_size

CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_CELL_SCHEMA: dict[str, Any] = dict.fromkeys(("sample", "clean_prediction", "prediction"), pl.Int64)
_CELL_SCHEMA |= {"radius": pl.Float64, "top": pl.Int64, "count": pl.Int64}
_SETTINGS = {"sigma": pl.Float64, "select": pl.Int64, "samples": pl.Int64, "alpha": pl.Float64}
CERTIFY_SCHEMA = MODEL_SCHEMA | {"sample": pl.Int64, "label": pl.Int64} | _CELL_SCHEMA | _SETTINGS
CERTIFY_SCHEMA |= {"smoothing_seed": pl.Int64}

_RADIUS_SCHEMA = MODEL_SCHEMA | dict.fromkeys(("sample", "prediction"), pl.Int64)
_RADIUS_SCHEMA |= dict.fromkeys(("margin", "lipschitz", "slope"), pl.Float64)
"""``margin`` is m of the predicted class, ``lipschitz`` ‖∂logits/∂x‖₂ by power iteration, ``slope`` ‖∂m/∂x‖₂, exact."""


def margin_slopes(
    model: nn.Module, images: Float[Tensor, "batch *shape"]
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the predicted classes y, the margins m = z_y − max_{j≠y} z_j, and ‖∂m/∂x‖₂, exact by one backward pass."""
    with eager_attention():
        linear = Linearisation(model, images)
        with torch.enable_grad():
            logits = linear.y.detach().requires_grad_()  # also those of a model without a slope
            prediction = logits.argmax(1)
            margin = margins(logits, prediction)
            (cotangent,) = torch.autograd.grad(margin.sum(), logits)
        return prediction, margin.detach(), linear.vjp(cotangent).flatten(1).norm(dim=1)


def _radius_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    columns = dict(zip(("prediction", "margin", "slope"), margin_slopes(model, images), strict=True))
    columns |= {"lipschitz": power_iteration(model, images, steps=options.steps, seed=options.seed, ids=ids).value}
    yield rows_of(ids, {name: values[:, None] for name, values in columns.items()})


RADIUS = Part("radius", _RADIUS_SCHEMA, {"steps": "steps", "seed": "seed"}, _radius_rows)


def estimate_radii(lineup: Lineup, options: CertifyOptions) -> pl.DataFrame:
    """Return the rows of ``options.estimated`` images of each model, with the radius m / (√2·L)."""
    sensing = SenseOptions.from_file({"steps": 20, "seed": options.seed}, model=("certify",), quiet=options.quiet)
    place = (lineup.data, sensing, options.out)
    frames = [sense(*named, *place, limit=options.estimated, parts=[RADIUS]) for named in lineup.by_name.items()]
    rows = pl.concat(frame["radius"] for frame in frames)
    margin, constant = (rows[name].to_torch() for name in ("margin", "lipschitz"))
    return rows.with_columns(estimated_radius=estimated_radius(margin, constant, of="logits").numpy())


def run(
    options: CertifyOptions, command: str = "", lineup: Lineup | None = None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Smooth each model on the same images and write the run directory; return rows and summary."""
    smoothing = Smoothing(**{field.name: getattr(options, field.name) for field in fields(Smoothing)})
    pair = {"model": (options.model,), "against": (options.against,) if options.against else ()}
    lineup, began = lineup or load_lineup(options.model_copy(update=pair)), time.monotonic()
    lineup, warnings = lineup.ordered()
    data, cards = lineup.data, {name: card_of(model) for name, model in lineup.by_name.items()}
    how = (data, smoothing, options, this_process())
    rows = pl.concat(smoothed_rows(*named, *how) for named in lineup.by_name.items())
    outputs = {name: card.classes for name, card in cards.items()}
    summary = summarise_certificates(rows, smoothing)
    summary |= {"warnings": lineup.doubts() + warnings + not_above_chance(clean_accuracy(rows), outputs)}
    summary |= {"data": data.name, "data_fingerprint": data.fingerprint()}
    summary["models"] = [entry | {"num_classes": outputs[entry["name"]]} for entry in summary["models"]]
    summary["specifications"] = {name: card.spec for name, card in cards.items()}
    radii = estimate_radii(lineup, options) if options.estimated else None
    if radii is not None:  # as in the mean of certified radii, 0 where the model is wrong
        radii = radii.join(rows.select("model", "sample", "label"), on=["model", "sample"], maintain_order="left")
        counted = radii.with_columns(pl.when(prediction=pl.col("label")).then("estimated_radius").otherwise(0.0))
        for entry in summary["models"]:
            entry |= finite({"estimated_radius": counted.filter(model=entry["name"])["estimated_radius"].mean()})
    settings, doubts = asdict(smoothing), summary["warnings"]
    write_run(lineup, options, summary, {"rows": rows, "estimated_radius": radii}, settings, doubts, command, began)
    return rows, summary


def smoothed_rows(
    name: str, model: nn.Module, data: ImageSet, smoothing: Smoothing, options: CertifyOptions, process: Process
) -> pl.DataFrame:
    """Smooth this process's share of the images that are not on disk yet; return the rows of all."""
    identity = {"version": CELL_VERSION, "model": fingerprint(model), "data": content_key(data)}
    cache = Cache(options.out, asdict(smoothing) | identity, _CELL_SCHEMA, data.ids.tolist(), process)
    title = "" if options.quiet or not process.first else f"{name} σ={smoothing.sigma:g}"
    with cache.filling(slice_size(data.image_shape)) as parts:
        for part in parts:
            images, ids = data.images(part), data.ids[part]
            with attacked(model) as oracle:
                clean = oracle.by_batches(images, None, 64).argmax(1)

            def keep(position: int, verdict: dict[str, Any], ids: Tensor = ids, clean: Tensor = clean) -> None:
                row = {"sample": int(ids[position]), "clean_prediction": int(clean[position]), **verdict}
                cache.journal.append(pl.DataFrame([row], schema=_CELL_SCHEMA))

            how = asdict(smoothing) | {"batch_size": options.batch_size, "progress": title}
            smooth(model, images, **how, ids=ids, on_finished=keep)
    how = {column: getattr(smoothing, column) for column in _SETTINGS}
    rows = pl.DataFrame({"sample": data.ids.numpy()}).join(cache.collect(), on="sample", maintain_order="left")
    return described(rows, CERTIFY_SCHEMA, name, model, data, smoothing_seed=smoothing.seed, **how)


def curve(
    radius: Float[np.ndarray, " samples"], correct: Bool[np.ndarray, " samples"], radii: Sequence[float]
) -> pl.DataFrame:
    """Return the certified accuracy at each r, the share of images with a right prediction and R ≥ r.

    Intervals are Wilson's, 95 %. An abstention is no right prediction, also at r = 0.
    """
    counts = [int(np.sum(correct & (radius >= r))) for r in radii]
    rates = {count: asdict(proportion(count, len(radius))) for count in set(counts)}  # a step has one height
    numbers = [{"radius": float(r), **rates[count]} for r, count in zip(radii, counts, strict=True)]
    return pl.DataFrame(numbers, dict.fromkeys(("radius", "value", "low", "high"), pl.Float64) | {"n": pl.Int64})


def summarise_certificates(rows: pl.DataFrame, smoothing: Smoothing) -> dict[str, Any]:
    """Return what the rows say of each model, and the paired differences of the first from the second."""
    # multiples of σ/2 up to the largest radius that the number of samples allows
    radii = [half * smoothing.sigma / 2 for half in range(int(2 * smoothing.reach / smoothing.sigma) + 1)]
    models = []
    for (name,), block in rows.group_by(["model"], maintain_order=True):
        block = block.sort("sample")
        radius, correct = block["radius"].to_numpy(), (block["prediction"] == block["label"]).to_numpy()
        rates = {"clean_accuracy": (block["clean_prediction"] == block["label"]).sum()}
        rates |= {"smoothed_accuracy": int(correct.sum()), "abstentions": (block["prediction"] < 0).sum()}
        model: dict[str, Any] = {"name": name, "attention": block["attention"][0], "seed": block["seed"][0]}
        model |= {rate: asdict(proportion(int(hits), len(block))) for rate, hits in rates.items()}
        model |= {"mean_radius": float(np.mean(np.where(correct, radius, 0.0)))}
        models.append(model | {"certified_accuracy": curve(radius, correct, radii).to_dicts()})
    first, *twins = (model["name"] for model in models)
    comparisons = paired_differences(rows, [(first, twin) for twin in twins], radii)
    settings = asdict(smoothing) | {"reach": smoothing.reach}
    return {"smoothing": settings, "norm": "l2", "models": models, "comparisons": comparisons}


def paired_differences(rows: pl.DataFrame, pairs: Pairs, radii: Sequence[float]) -> list[dict[str, Any]]:
    """Return the difference of certified accuracy of each pair at each radius, on the same images."""
    differences = []
    for model, against in pairs:
        blocks = [rows.filter(model=name).sort("sample") for name in (model, against)]
        right = [(block["prediction"] == block["label"]).to_numpy() for block in blocks]
        sizes = [block["radius"].to_numpy() for block in blocks]
        for radius in radii:
            certified = [hits & (size >= radius) for hits, size in zip(right, sizes, strict=True)]
            about = {"model": model, "against": against, "radius": radius}
            differences.append(about | asdict(paired_difference(*certified)) | {"p": mcnemar_exact(*certified)})
    return differences


_words = partial(text, "certify.txt")
_ESTIMATED = {"estimated_radius": "estimated R, not certified"}


class CertifyResult(Result):
    """Certified radii of a smoothed model."""

    keys = ("models", "smoothing")

    def headlines(self) -> list[Headline]:
        models, comparisons = self.summary["models"], self.summary["comparisons"]
        named = [model["name"] for model in models]
        values = self.summary["smoothing"] | {"models": models, "n": models[0]["smoothed_accuracy"]["n"]}
        if comparisons:
            shown, signs = comparisons, _decided(comparisons)
            quoted = quoted_place(signs)
            names: dict[str, str] = dict(zip(("model", "against"), named, strict=True))
            title = answer("certify.txt", "title", names, **shown[quoted] | {"decided": signs[quoted]})
        else:
            shown, quoted = models[0]["certified_accuracy"], 0
            signs, names = [1] * len(shown), {"model": named[0]}
            title = answer("certify.txt", "title_alone", names, **models[0]["smoothed_accuracy"])

        def plot() -> Plot:
            marks = enumerate(zip(shown, signs, strict=True))
            rows = [(f"R ≥ {row['radius']:g}", [estimate_of(row)], sign, i == quoted) for i, (row, sign) in marks]
            rates = ([estimate_of(model["clean_accuracy"])] for model in models)
            sides = [(name, self.colors[name], rate) for name, rate in zip(named, rates, strict=True)]
            above, below = "Certified", "Accuracy without smoothing"
            figure = figures.answer_figure(above, rows, below, sides, figures.chance(models))
            return Plot("answer", figure, _words("answer", compared=bool(comparisons)))

        return [Headline(title, _words("lead", **values), _words("condition", **values), plot)]

    def sections(self) -> list[Section]:
        plot = Plot("curve", curve_figure(self.frame("rows"), self.summary), _words("caption"), beside=True)
        tables = [_certified(self.summary["models"], self.colors), *_differences(self.summary["comparisons"])]
        return [Section("certified", "Certified accuracy", plots=[plot], tables=tables)]

    def differences(self, other: Self) -> pl.DataFrame:
        models = [result.summary["models"][0] for result in (self, other)]
        grid, other_grid = ([rate["radius"] for rate in model["certified_accuracy"]] for model in models)
        radii = [radius for radius in sorted({*grid, *other_grid}) if radius <= min(grid[-1], other_grid[-1])]
        return pl.DataFrame(paired_differences(*combined_rows(self, other), radii)).rename({"value": "difference"})


def curve_figure(rows: pl.DataFrame, summary: Mapping[str, Any]) -> Figure:
    """Draw certified accuracy up to the largest radius that the noise samples can certify, with 95 % Wilson bands."""
    smoothing, models = summary["smoothing"], [model["name"] for model in summary["models"]]
    colors = figures.colors_of(figures.families(summary["models"]))
    grid, curves = np.linspace(0, smoothing["reach"], 257).tolist(), []
    for name in models:
        block = rows.filter(model=name)
        correct = (block["prediction"] == block["label"]).to_numpy()
        curves.append(curve(block["radius"].to_numpy(), correct, grid).with_columns(name=pl.lit(name)))
    lines = pl.concat(curves).with_columns(pl.col("value", "low", "high") * 100)
    with figures.new_figure(5.0, 3.6) as figure:
        axes = figure.add_subplot()
        groups = [figures.Family(name, colors[name], (name,)) for name in models]
        drawn = figures.draw_families(axes, lines, "radius", groups, marks=False)
        figures.add_legend(axes, drawn, fontsize=8.5)
        title = f"Smoothed with σ = {smoothing['sigma']:g}, n = {smoothing['samples']:,}, α = {smoothing['alpha']:g}"
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_xlabel("certified L2 radius, in units of the pixel range")
        axes.set_ylabel("certified accuracy (%)")
        axes.set_xlim(0, smoothing["reach"])
        axes.set_ylim(0, 100)
        figures.dress(axes)
    return figure


def _certified(models: Sequence[Mapping[str, Any]], colors: Mapping[str, str]) -> Table:
    numbers = [{"model": model["name"], **rate} for model in models for rate in model["certified_accuracy"]]
    radii = dict.fromkeys(f"{row['radius']:g}" for row in numbers)
    rows = []
    for model in models:
        rates = {"unsmoothed": model["clean_accuracy"], "abstains": model["abstentions"]}
        rates |= {"mean R": {"value": model["mean_radius"]}}
        rates |= {head: {"value": model[name]} for name, head in _ESTIMATED.items() if name in model}
        rates |= zip(radii, model["certified_accuracy"], strict=True)
        about = {"model": model["name"], "color": colors[model["name"]]}
        rows += [about | {"head": head} | rate for head, rate in rates.items()]
    title = f"Certified accuracy at L2 radius, % of {models[0]['clean_accuracy']['n']:,} images"
    heads = {row["head"]: row["head"] for row in rows}
    frame, csv = pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(numbers)
    return tabulate("certified", title, frame, ["model"], "head", _rate, heads, csv)


def _rate(row: Mapping[str, Any]) -> Field:
    text = "∞" if row["value"] is None else number(row["value"], 3)  # an image without a slope
    return Field(text) if row["head"] in ("mean R", *_ESTIMATED.values()) else rate_field(row)


def _decided(comparisons: Sequence[Mapping[str, Any]]) -> list[int]:
    return decide(list(map(estimate_of, comparisons)), [row.get("p") for row in comparisons])


def _differences(comparisons: Sequence[Mapping[str, Any]]) -> list[Table]:
    if not comparisons:
        return []
    frame = pl.DataFrame(comparisons)
    shown = frame.with_columns(
        pl.format("{} − {}", "model", "against").alias("same images"), decided=pl.Series(_decided(comparisons))
    )
    title = "Difference from the twin, points, by L2 radius; pale: not decided"
    return [tabulate("difference", title, shown, ["same images"], "radius", difference_field, "{:g}".format, frame)]
