"""Retrieval and zero-shot classification of several dual encoders on several sets: rows, then numbers."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from antiphase.data.pairs import PairSet
from antiphase.errors import UserError
from antiphase.evaluation.encoders import METRICS, ROW_SCHEMA, encoder_metrics, encoder_rows
from antiphase.evaluation.retrieval import Captions
from antiphase.files import digest, replacing, write_json
from antiphase.models.card import card_of
from antiphase.models.lambdas import mean_lambdas
from antiphase.models.zoo import fingerprint
from antiphase.progress import progress_bar
from antiphase.studies.record import run_record, short_names

_VERSION = 1


def evaluate_encoders(
    models: Sequence[nn.Module], sets: Sequence[PairSet], out: Path, *, templates: Sequence[str] | None = None,
    captions: Captions = "all", batch_size: int = 256, command: str = "", progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Measure every model on every set and write the run directory; return the summary.

    ``out`` then holds ``rows.parquet`` (a row for each model, set and caption), ``summary.json``, ``run.json``
    and ``cells/``, from which a killed evaluation goes on: a cell is a model on a set.

    Args:
        models: loaded dual encoders, with their cards.
        sets: images with captions.
        out: directory, made if missing.
        templates: of the class prompts; a set's own prompts, or the paper's template, where not given.
        captions: ``"all"`` of an image retrieve it, or the ``"first"``.
        batch_size: images or captions at a time.
        command: for the record.
        progress: whether to show a progress bar on stderr.

    Raises:
        UserError: a model encodes no text, or two sets or models have the same name.
    """
    began = time.monotonic()
    names = short_names([card_of(model) for model in models])
    titles = [pairs.name for pairs in sets]
    if len(set(titles)) < len(titles):
        raise UserError(f"{', '.join(titles)}: the same set is named twice; expected different ones")
    found = []
    with progress_bar("evaluating", len(models) * len(sets), progress) as advance:
        for name, model in zip(names, models, strict=True):
            for pairs in sets:
                rows = _cell(model, pairs, templates, captions, out, batch_size)
                about = {"model": name, "attention": card_of(model).attention, "data": pairs.name}
                found.append(
                    rows.select(*(pl.lit(value).alias(key) for key, value in about.items()), pl.all())
                )
                advance(1)
    rows = pl.concat(found)
    summary = summarise_encoders(rows) | {
        "models": [
            {
                "name": name,
                "attention": card_of(m).attention,
                "seed": card_of(m).seed,
                "lambda": mean_lambdas(m),
            }
            for name, m in zip(names, models, strict=True)
        ]
    }
    with replacing(out / "rows.parquet") as temporary:
        rows.write_parquet(temporary)
    settings = {"templates": list(templates) if templates else None, "captions": captions}
    record = run_record(models, names, sets[0], settings, [], command, time.monotonic() - began)
    about = {
        "data": titles,
        "data_fingerprint": [pairs.fingerprint() for pairs in sets],
        "n": [len(pairs) for pairs in sets],
    }
    write_json(out / "run.json", record | about)
    write_json(out / "summary.json", summary)
    return summary


def summarise_encoders(rows: pl.DataFrame) -> dict[str, Any]:
    """Return every metric of every model and set, with its 95 % interval."""
    results = []
    for (model, data), its in rows.group_by("model", "data", maintain_order=True):
        for metric, found in encoder_metrics(its).items():
            results.append(
                {
                    "model": model,
                    "data": data,
                    "metric": metric,
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "n": found.n,
                }
            )
    return {"metrics": list(METRICS), "results": results}


def _cell(
    model: nn.Module,
    pairs: PairSet,
    templates: Sequence[str] | None,
    captions: Captions,
    out: Path,
    batch_size: int,
) -> pl.DataFrame:
    """Return the rows of one model on one set, from disk where they are there."""
    identity = digest(str(_VERSION), fingerprint(model), pairs.fingerprint(), captions, *(templates or ("",)))
    path = out / "cells" / f"{identity[:16]}.parquet"
    if path.exists():
        rows = pl.read_parquet(path)
        if dict(rows.schema) == ROW_SCHEMA:
            return rows
    own: dict[str, Any] = {"templates": templates} if templates else {"prompts": pairs.prompts}
    rows = encoder_rows(model, pairs, captions=captions, batch_size=batch_size, **own)
    with replacing(path) as temporary:
        rows.write_parquet(temporary)
    return rows
