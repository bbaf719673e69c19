"""A sensitivity run over several models and their twins: rows, summary and record in one directory."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation import sensitivity
from antiphase.files import replacing, write_json
from antiphase.models.lambdas import mean_lambdas
from antiphase.models.zoo import card_of
from antiphase.studies.record import check_fit, run_record, short_names
from antiphase.studies.sense import PARTS, SensePlan, sense
from antiphase.studies.shards import shard

BATCH_SIZE = 8


def sense_all(
    models: Sequence[nn.Module], twins: Sequence[nn.Module], data: ImageSet, plan: SensePlan, out: Path, *,
    parts: Sequence[str] = ("alignment", "lipschitz", "depth"), batch_size: int | None = None, command: str = "",
    progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Measure every model on the same images and write the run directory; return the summary.

    ``out`` then holds a Parquet file of rows for each part (``alignment.parquet`` and so on), ``summary.json``,
    ``run.json`` and ``cells/``, from which a killed run goes on. Under torchrun the processes share the images.

    Args:
        models: loaded models, with their cards.
        twins: as many models to compare them with, one each; or none.
        data: images.
        plan: what is measured.
        out: directory, made if missing.
        parts: which of alignment, lipschitz and depth.
        batch_size: images at once; affects no result.
        command: for the record.
        progress: whether to show progress bars on stderr.

    Raises:
        UserError: if models and data do not fit each other, or a model has no attention that is known.
    """
    began = time.monotonic()
    if twins and len(twins) != len(models):
        raise UserError(f"{len(models)} models against {len(twins)}: expected a twin for each, or none")
    if not set(parts) <= {part.name for part in PARTS}:
        raise UserError(
            f"parts {', '.join(parts)}: expected some of {', '.join(part.name for part in PARTS)}"
        )
    everyone = [*models, *twins]
    cards = [card_of(model) for model in everyone]
    names = short_names(cards)
    for card in cards:
        check_fit(card, data)
    share = shard()
    measured = [
        sense(
            name, model, data, plan, out, parts=parts, shard=share, batch_size=batch_size or BATCH_SIZE,
            progress=progress,
        )
        for name, model in zip(names, everyone, strict=True)
    ]  # fmt: skip
    rows = {part: pl.concat([each[part] for each in measured]) for part in measured[0]}
    pairs = list(zip(names[: len(models)], names[len(models) :], strict=False))
    about = [
        {"name": name, "attention": card.attention, "seed": card.seed, "lambda": mean_lambdas(model)}
        for name, card, model in zip(names, cards, everyone, strict=True)
    ]
    summary = {"models": about, "pairs": [list(pair) for pair in pairs]} | summarise(rows, pairs)
    if share.first:
        write_rows(rows, out)
        settings = {name: value for name, value in asdict(plan).items() if name not in ("eps", "travel")}
        settings |= {"Lipschitz ball": f"L∞, {plan.eps * 255:g}/255", "Lipschitz norms": "L2 → L2"}
        settings |= {"perturbations": ", ".join(f"{eps * 255:g}/255" for eps in plan.travel)}
        record = run_record(everyone, names, data, settings, [], command, time.monotonic() - began)
        write_json(out / "run.json", record)
        write_json(out / "summary.json", summary)
    return summary


def write_rows(rows: dict[str, pl.DataFrame], out: Path) -> None:
    """Write a Parquet file for each part."""
    for part, frame in rows.items():
        with replacing(out / f"{part}.parquet") as temporary:
            frame.write_parquet(temporary)


def summarise(rows: dict[str, pl.DataFrame], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return every estimate with its interval, as rows of tables."""
    found: dict[str, Any] = {}
    if "alignment" in rows:
        frame = rows["alignment"]
        found["alignment"] = sensitivity.alignment(frame).to_dicts()
        found["explanation"] = sensitivity.explanation(frame, list(pairs)).to_dicts()
        found["prediction_error"] = sensitivity.prediction_error(frame)
    if "lipschitz" in rows:
        keys = ["model", "of", "layer", "estimator"]
        found["lipschitz"] = sensitivity.means(rows["lipschitz"], keys, ["value"]).to_dicts()
    if "depth" in rows:
        keys = ["model", "perturbation", "eps", "stage"]
        columns = ["length", "gain", "lipschitz", "alpha"]
        found["depth"] = sensitivity.means(rows["depth"], keys, columns).to_dicts()
        found["cancellation"] = sensitivity.cancellation(rows["depth"]).to_dicts()
    return found
