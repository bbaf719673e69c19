"""Randomised smoothing of a model, or of a model and its twin: rows on disk as they come, shared among processes.

A cell is one model on one set of images, known by the hash of what affects its rows.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import nn

from antiphase.attacks.engine.oracle import attacked
from antiphase.commands.lineup import check_fit, load_lineup, short_names
from antiphase.commands.record import run_record
from antiphase.data import ImageSet
from antiphase.evaluation.rates import clean_accuracy, not_above_chance
from antiphase.files import write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.models.class_names import in_model_order
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.runs.estimated import estimate_radii
from antiphase.runs.options.certify import CertifyOptions
from antiphase.sensitivity.smoothing import Smoothing, smooth
from antiphase.statistics.intervals import paired_difference, proportion
from antiphase.store import Cache, slice_size, write_frame

CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_CELL_SCHEMA = {
    "sample": pl.Int64,
    "clean_prediction": pl.Int64,
    "prediction": pl.Int64,
    "radius": pl.Float64,
    "top": pl.Int64,
    "count": pl.Int64,
}
CERTIFY_SCHEMA = {
    "model": pl.String,
    "attention": pl.String,
    "seed": pl.Int64,
    "sample": pl.Int64,
    "label": pl.Int64,
    "clean_prediction": pl.Int64,
    "prediction": pl.Int64,
    "radius": pl.Float64,
    "top": pl.Int64,
    "count": pl.Int64,
    "sigma": pl.Float64,
    "select": pl.Int64,
    "samples": pl.Int64,
    "alpha": pl.Float64,
    "smoothing_seed": pl.Int64,
}


def curve(
    radius: Float[np.ndarray, " samples"],
    correct: Bool[np.ndarray, " samples"],
    radii: Sequence[float] | Float[np.ndarray, " radii"],
) -> pl.DataFrame:
    """Return the certified accuracy at each r, the share of images with a right prediction and R ≥ r.

    An abstention is no right prediction, so that the curve starts at the share of images that are predicted
    rightly and certified at all.

    Args:
        radius: R of each image, one or more.
        correct: whether its label is predicted.
        radii: the values of r, at least 0.

    Returns:
        Columns ``radius, value, low, high, n``, with Wilson's 95 % intervals.

    >>> curve(np.array([0.0, 0.3, 0.5]), np.array([False, True, True]), [0.0, 0.4])["value"].round(3).to_list()
    [0.667, 0.333]
    """
    counts = [int(np.sum(correct & (radius >= r))) for r in radii]
    at = {count: proportion(count, len(radius)) for count in set(counts)}  # a step has one height
    numbers = [
        (float(r), at[k].value, at[k].low, at[k].high, at[k].n) for r, k in zip(radii, counts, strict=True)
    ]
    schema = {"radius": pl.Float64, "value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "n": pl.Int64}
    return pl.DataFrame(numbers, schema=schema, orient="row")


def round_radii(smoothing: Smoothing) -> list[float]:
    """Return the multiples of σ/2 from 0 to the largest radius that the number of samples allows.

    >>> round_radii(Smoothing(0.25, samples=1000))
    [0.0, 0.125, 0.25, 0.375, 0.5]
    """
    return [half * smoothing.sigma / 2 for half in range(int(2 * smoothing.reach / smoothing.sigma) + 1)]


def run(options: CertifyOptions, command: str = "") -> tuple[pl.DataFrame, dict[str, Any]]:
    """Load what the options name, certify it and write the run directory; return rows and summary.

    The summary also has ``estimated``, see :func:`~antiphase.runs.estimated.estimate_radii`.

    Args:
        options: of the smoothing.
        command: for the record.
    """
    began = time.monotonic()
    names = ("sigma", "select", "samples", "alpha", "seed", "precision")
    smoothing = Smoothing(**{name: getattr(options, name) for name in names})
    pair = {"model": (options.model,), "against": (options.against,) if options.against else ()}
    lineup = load_lineup(options.model_copy(update=pair))
    ours, twins, data = lineup.models, lineup.twins, lineup.data
    rows, summary = certify(
        [*ours, *twins],
        data,
        smoothing,
        options.out,
        batch_size=options.batch_size,
        progress=not options.quiet,
    )
    names = [model["name"] for model in summary["models"]]
    if options.estimated:
        summary["estimated"] = estimate_radii(
            names,
            [*ours, *twins],
            in_model_order([card_of(ours[0])], data)[0],
            options.out,
            limit=options.estimated,
            seed=options.seed,
            process=this_process(),
            progress=not options.quiet,
        )
    if this_process().first:
        write_json(options.out / "summary.json", summary)
        record = run_record(
            [*ours, *twins],
            names,
            data,
            asdict(smoothing),
            summary["warnings"],
            command,
            time.monotonic() - began,
            options.record(),
        )
        write_json(options.out / "run.json", record)
    return rows, summary


def certify(
    models: Sequence[nn.Module],
    data: ImageSet,
    smoothing: Smoothing,
    out: Path,
    *,
    batch_size: int | None = None,
    progress: bool = True,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Smooth each model on the same images and write rows and summary; return both.

    ``out`` then holds ``rows.parquet`` (a row for each model and image), ``summary.json`` and ``cells/``,
    from which a killed run resumes. Under torchrun the processes share the images.

    Args:
        models: one loaded model, or a model and its twin, with their cards.
        data: images and labels.
        smoothing: σ and the numbers of draws.
        out: directory, made if missing.
        batch_size: noisy copies through a model at once; affects no result.
        progress: whether to show progress bars on stderr.

    Raises:
        UserError: if models and data do not fit each other.
    """
    process = this_process()
    cards = [card_of(model) for model in models]
    data, warnings = in_model_order(cards, data)
    warnings = doubts_about(models[:1], models[1:], data) + warnings
    for card in cards:
        check_fit(card, data)
    names = short_names(cards)
    cells = [
        _open(name, model, data, smoothing, out, process) for name, model in zip(names, models, strict=True)
    ]
    for cell in cells:
        title = f"{cell.name} σ={smoothing.sigma:g}" if progress else ""
        _fill(cell, data, smoothing, batch_size, process, title)
    rows = pl.concat([_collect(cell, data, smoothing) for cell in cells])
    outputs = {name: card.num_classes for name, card in zip(names, cards, strict=True)}
    summary = summarise_certificates(rows, smoothing) | {
        "warnings": warnings + not_above_chance(clean_accuracy(rows), outputs),
        "data": data.name,
        "data_fingerprint": data.fingerprint(),
        "specifications": {name: card_of(model).spec for name, model in zip(names, models, strict=True)},
    }
    if process.first:
        write_frame(out / "rows.parquet", rows)
        write_json(out / "summary.json", summary)
    return rows, summary


def summarise_certificates(rows: pl.DataFrame, smoothing: Smoothing) -> dict[str, Any]:
    """Return what the rows say of each model, and of the first against the second where there are two.

    For each model: ``clean_accuracy`` of the model itself, ``smoothed_accuracy``, ``abstentions``,
    ``mean_radius`` (wrong and undecided images count as 0: the average certified radius) and
    ``certified_accuracy`` at :func:`round_radii`. ``comparisons``: differences of the latter on the same
    images with Newcombe's interval.
    """
    radii = round_radii(smoothing)
    models, certified = [], []
    for (name,), own in rows.group_by(["model"], maintain_order=True):
        own = own.sort("sample")
        radius, correct = own["radius"].to_numpy(), (own["prediction"] == own["label"]).to_numpy()
        certified.append((name, radius, correct))
        rates = {
            "clean_accuracy": (own["clean_prediction"] == own["label"]).sum(),
            "smoothed_accuracy": int(correct.sum()),
            "abstentions": (own["prediction"] < 0).sum(),
        }
        models.append(
            {"name": name, "attention": own["attention"][0], "seed": own["seed"][0]}
            | {rate: asdict(proportion(int(hits), len(own))) for rate, hits in rates.items()}
            | {"mean_radius": float(np.mean(np.where(correct, radius, 0.0)))}
            | {"certified_accuracy": curve(radius, correct, radii).to_dicts()}
        )
    comparisons = []
    for name, radius, correct in certified[1:]:
        first, own_radius, own_correct = certified[0]
        for r in radii:
            difference = paired_difference(own_correct & (own_radius >= r), correct & (radius >= r))
            comparisons.append({"model": first, "against": name, "radius": r, **asdict(difference)})
    settings = asdict(smoothing) | {"reach": smoothing.reach}
    return {"smoothing": settings, "norm": "l2", "models": models, "comparisons": comparisons}


@dataclass(frozen=True)
class _Cell:
    """One model and its rows on disk."""

    name: str
    model: nn.Module
    cache: Cache[str]


def _open(
    name: str, model: nn.Module, data: ImageSet, smoothing: Smoothing, out: Path, process: Process
) -> _Cell:
    what = asdict(smoothing) | {
        "version": CELL_VERSION,
        "model": fingerprint(model),
        "data": data.fingerprint(),
    }
    asked = [(name, sample) for sample in data.ids.tolist()]
    return _Cell(name, model, Cache(out, {name: what}, _CELL_SCHEMA, asked, process))


def _fill(
    cell: _Cell, data: ImageSet, smoothing: Smoothing, batch_size: int | None, process: Process, title: str
) -> None:
    """Smooth this process's share of the missing images."""
    with cell.cache.filling(slice_size(data.image_shape)) as parts:
        for part in parts:
            images, ids = data.images(part), data.ids[part]
            with attacked(cell.model) as oracle:
                batches = images.split(64)
                clean = torch.cat([oracle.predict(batch.to(oracle.device)).cpu() for batch in batches])

            def keep(
                position: int, verdict: dict[str, Any], ids: torch.Tensor = ids, clean: torch.Tensor = clean
            ) -> None:
                row = {"sample": int(ids[position]), "clean_prediction": int(clean[position]), **verdict}
                cell.cache.journals[cell.name].append(pl.DataFrame([row], schema=_CELL_SCHEMA))

            smooth(
                cell.model,
                images,
                **asdict(smoothing),
                ids=ids,
                batch_size=batch_size,
                progress=title if process.first else "",
                on_finished=keep,
            )


def _collect(cell: _Cell, data: ImageSet, smoothing: Smoothing) -> pl.DataFrame:
    """Return the rows of all processes, with what they share and the true labels."""
    rows = cell.cache.collect()[cell.name]
    card = card_of(cell.model)
    shared = {
        "model": cell.name,
        "attention": card.attention,
        "seed": card.seed,
        "sigma": smoothing.sigma,
        "select": smoothing.select,
        "samples": smoothing.samples,
        "alpha": smoothing.alpha,
        "smoothing_seed": smoothing.seed,
    }
    columns = [pl.lit(value, CERTIFY_SCHEMA[name]).alias(name) for name, value in shared.items()]
    labels = pl.DataFrame({"sample": data.ids.numpy(), "label": data.labels.numpy()})
    joined = labels.join(rows, on="sample", maintain_order="left").with_columns(columns)
    return joined.select(*CERTIFY_SCHEMA)
