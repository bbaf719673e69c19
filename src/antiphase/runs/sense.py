"""A sensitivity run over several models and their twins: rows, summary and record in one directory."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from antiphase.budgets import eps_label
from antiphase.commands.loading import check_twins, load_lineup
from antiphase.commands.record import check_fit, run_record, short_names
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.files import write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.models.kinds import mean_lambdas
from antiphase.processes import this_process
from antiphase.runs.expectation import sense_expectation
from antiphase.runs.options.sense import SenseOptions
from antiphase.runs.sense_model import PARTS, sense
from antiphase.runs.sense_plan import SensePlan
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.store import write_frame

BATCH_SIZE = 8


def run(
    options: SenseOptions, command: str = "", announce: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Load what the options name, measure it and write the run directory; return the summary.

    Args:
        options: what is measured.
        command: for the record.
        announce: told of the expected time before the work starts if it is long; not estimated if None.

    Raises:
        UserError: as :func:`sense_all` does, and if models or data cannot be loaded.
    """
    plan = SensePlan(
        options.probes,
        options.radius,
        options.samples,
        options.steps,
        options.points,
        options.eps,
        options.lipschitz_limit,
        options.seed,
    )
    models, twins, data = load_lineup(
        options.model,
        options.against,
        options.data,
        split=options.split,
        limit=options.limit,
        random_weights=options.random_weights,
        skip_bad=options.skip_bad,
        device=options.device,
        progress=not options.quiet,
        prompt=options.prompt,
    )
    return sense_all(
        models,
        twins,
        data,
        plan,
        options.out,
        parts=options.parts,
        batch_size=options.batch_size,
        command=command,
        options=options.record(),
        announce=announce,
        progress=not options.quiet,
    )


def sense_all(
    models: Sequence[nn.Module],
    twins: Sequence[nn.Module],
    data: ImageSet,
    plan: SensePlan,
    out: Path,
    *,
    parts: Sequence[str] = ("alignment", "lipschitz", "depth"),
    batch_size: int | None = None,
    command: str = "",
    options: Mapping[str, Any] | None = None,
    announce: Callable[[str], None] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure every model on the same images and write the run directory; return the summary.

    ``out`` then holds a Parquet file of rows for each part (``alignment.parquet`` and so on), ``summary.json``,
    ``run.json`` and ``cells/``, from which a killed run resumes. Under torchrun the processes share the images.

    Args:
        models: loaded models, with their cards.
        twins: as many models to compare them with, one each; or none.
        data: images.
        plan: what is measured.
        out: directory, made if missing.
        parts: which of alignment, lipschitz and depth.
        batch_size: images at once; affects no result.
        command: for the record.
        options: likewise.
        announce: told of the expected time before the work starts if it is long; not estimated if None.
        progress: whether to show progress bars on stderr.

    Raises:
        UserError: if models and data do not fit each other, a model has no attention that is known, or ``announce``
            is given and the run would take more than a year.
    """
    began = time.monotonic()
    check_twins(models, twins)
    if not set(parts) <= {part.name for part in PARTS}:
        raise UserError(
            f"parts {', '.join(parts)}: expected some of {', '.join(part.name for part in PARTS)}"
        )
    everyone = [*models, *twins]
    cards = [card_of(model) for model in everyone]
    names = short_names(cards)
    for card in cards:
        check_fit(card, data)
    process = this_process()
    if announce is not None:
        said = sense_expectation(everyone, data, plan, parts, batch_size or BATCH_SIZE)
        if said and process.first:
            announce(said)
    measured = [
        sense(
            name,
            model,
            data,
            plan,
            out,
            parts=parts,
            process=process,
            batch_size=batch_size or BATCH_SIZE,
            progress=progress,
        )
        for name, model in zip(names, everyone, strict=True)
    ]
    rows = {part: pl.concat([each[part] for each in measured]) for part in measured[0]}
    pairs = list(zip(names[: len(models)], names[len(models) :], strict=False))
    if "alignment" in rows:
        _check_depths(rows["alignment"], pairs)
    about = [
        {"name": name, "attention": card.attention, "seed": card.seed, "lambda": mean_lambdas(model)}
        for name, card, model in zip(names, cards, everyone, strict=True)
    ]
    summary = {"models": about, "pairs": [list(pair) for pair in pairs]} | summarise_sensitivity(rows, pairs)
    doubts = doubts_about(models, twins, data)
    summary |= {"warnings": doubts} if doubts else {}
    if process.first:
        for part in PARTS:  # of an earlier run with the same --out
            (out / f"{part.name}.parquet").unlink(missing_ok=True)
        for part, frame in rows.items():
            write_frame(out / f"{part}.parquet", frame)
        settings = {name: value for name, value in asdict(plan).items() if name not in ("eps", "travel")}
        settings |= {"Lipschitz ball": f"L∞, {eps_label(plan.eps)}", "Lipschitz norms": "L2 → L2"}
        settings |= {"parts": ", ".join(parts), "PGD": "20 steps of ε/4, random start, best iterate"}
        settings |= {"perturbations": ", ".join(map(eps_label, plan.travel))}
        seconds = time.monotonic() - began
        record = run_record(everyone, names, data, settings, doubts, command, seconds, options)
        write_json(out / "run.json", record)
        write_json(out / "summary.json", summary)
    return summary


def _check_depths(rows: pl.DataFrame, pairs: Sequence[tuple[str, str]]) -> None:
    depth = dict(rows.group_by("model").agg(pl.col("layer").n_unique()).iter_rows())
    for model, against in pairs:
        if depth[model] != depth[against]:
            raise UserError(
                f"{model} has {depth[model]} attention layers, {against} {depth[against]}: expected as many in a twin"
            )


def summarise_sensitivity(rows: dict[str, pl.DataFrame], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return every estimate with its interval, as rows of tables."""
    found: dict[str, Any] = {}
    if "alignment" in rows:
        frame = rows["alignment"]
        found["alignment"] = entries(sensitivity.alignment(frame))
        found["explanation"] = entries(sensitivity.explanation(frame, list(pairs)))
        found["prediction_error"] = sensitivity.prediction_error(frame)
    if "lipschitz" in rows:
        keys = ["model", "of", "layer", "estimator"]
        found["lipschitz"] = entries(sensitivity.means(rows["lipschitz"], keys, ["value"]))
    if "depth" in rows:
        keys = ["model", "perturbation", "eps", "stage"]
        columns = ["length", "gain", "lipschitz", "alpha"]
        found["depth"] = entries(sensitivity.means(rows["depth"], keys, columns))
        found["cancellation"] = entries(sensitivity.cancellation(rows["depth"]))
    return found


def entries(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, which has no infinity: one image leaves an interval open."""
    numbers = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in ("value", "low", "high")
    ]
    return frame.with_columns(numbers).to_dicts()
