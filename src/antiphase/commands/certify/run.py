"""Randomised smoothing of a model, or of a model and its twin: rows on disk as they come, shared among processes."""

import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import nn

from antiphase.attacks.engine.oracle import attacked
from antiphase.commands.certify.estimated_radius import estimate_radii
from antiphase.commands.certify.options import CertifyOptions
from antiphase.commands.lineup import Lineup, load_lineup
from antiphase.commands.run_files import described, write_run
from antiphase.data import ImageSet
from antiphase.evaluation.rates import clean_accuracy, not_above_chance
from antiphase.models.card import card_of
from antiphase.models.class_names import in_model_order
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.sensitivity.smoothing import Smoothing, smooth
from antiphase.statistics.intervals import paired_difference, proportion
from antiphase.store import Cache, slice_size

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
    """Smooth each model on the same images and write the run directory; return rows and summary.

    It then holds ``rows.parquet`` (a row for each model and image), ``summary.json``, ``run.json`` and ``cells/``, from
    which a killed run resumes. Under torchrun the processes share the images.
    """
    began = time.monotonic()
    cards = {name: card_of(model) for name, model in lineup.by_name.items()}
    data, warnings = in_model_order(list(cards.values()), lineup.data)
    lineup = replace(lineup, data=data)
    lineup.check_fit()
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
    name: str,
    model: nn.Module,
    data: ImageSet,
    smoothing: Smoothing,
    options: CertifyOptions,
    process: Process,
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
    return pl.DataFrame(
        numbers, dict.fromkeys(("radius", "value", "low", "high"), pl.Float64) | {"n": pl.Int64}
    )


def round_radii(smoothing: Smoothing) -> list[float]:
    """Return the multiples of σ/2 from 0 to the largest radius that the number of samples allows."""
    return [half * smoothing.sigma / 2 for half in range(int(2 * smoothing.reach / smoothing.sigma) + 1)]


def summarise_certificates(rows: pl.DataFrame, smoothing: Smoothing) -> dict[str, Any]:
    """Return what the rows say of each model, and the paired differences of the first from the second if there are two.

    In ``mean_radius``, the average certified radius, wrong and undecided images count as 0.
    """
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
