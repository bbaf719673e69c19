"""The audit: clean accuracy, λ and attack success over several ε, for one model or for models and their twins."""

import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from antiphase.attacks import Threat, pgd
from antiphase.attacks.oracle import Oracle
from antiphase.attacks.threat import Norm
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.rates import ROW_SCHEMA, summarise
from antiphase.files import digest, replacing, write_json
from antiphase.models.lambdas import mean_lambdas
from antiphase.models.zoo import ModelCard, card_of, fingerprint
from antiphase.studies.gallery import Gallery, write_gallery
from antiphase.studies.journal import Journal

DEFAULT_EPS = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_GALLERY_SIZE = 6
_SLICE_BYTES = 2**28  # of images in memory at once


@dataclass(frozen=True)
class Settings:
    """How an audit attacks; the defaults are those the papers leave open, declared.

    Attributes:
        eps: budgets, in units of the [0, 1] pixel.
        norm: of the budgets.
        steps: of PGD; each is ε/4 long.
        restarts: random starts of a sample that stands.
        seed: of the random starts.
        batch_size: rows through the model at once; affects no result.
    """

    eps: tuple[float, ...] = DEFAULT_EPS
    norm: Norm = "linf"
    steps: int = 20
    restarts: int = 1
    seed: int = 0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not self.eps or len(set(self.eps)) < len(self.eps):
            raise UserError(f"eps {self.eps}: expected at least one budget, and none twice")
        for eps in self.eps:
            Threat(self.norm, eps)
            if not 0 < eps < math.inf:
                raise UserError(f"eps {eps}: expected a positive number, in units of the [0, 1] pixel")


def audit(
    models: Sequence[nn.Module],
    twins: Sequence[nn.Module],
    data: ImageSet,
    settings: Settings,
    out: Path,
    *,
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Attack every model on the same images and write the run directory; return the summary.

    ``out`` then holds ``rows.parquet`` (a row for each model, ε and image), ``summary.json``,
    ``run.json`` (settings, versions, hardware), ``gallery.safetensors`` and ``cells/``, from which a killed
    audit goes on: a cell is one model at one ε, known by the hash of what affects its rows.

    Args:
        models: loaded models, with their cards.
        twins: as many models to compare them with, one each; or none.
        data: images and labels.
        settings: of the attack.
        out: directory, made if missing.
        command: for the record.
        progress: whether to show progress bars on stderr.

    Raises:
        UserError: if models and data do not fit each other.
    """
    began = time.monotonic()
    if twins and len(twins) != len(models):
        raise UserError(f"{len(models)} models against {len(twins)}: expected a twin for each, or none")
    everyone = [*models, *twins]
    names = _names([card_of(model) for model in everyone])
    for model in everyone:
        _check_fit(card_of(model), data)
    cells = []
    for name, model in zip(names, everyone, strict=True):
        prints = fingerprint(model)
        cells += [
            _attack_cell(name, model, prints, data, eps, settings, out, progress) for eps in settings.eps
        ]
    rows = pl.concat(cells)
    cards = [
        {"name": name, "attention": card_of(m).attention, "seed": card_of(m).seed, "lambda": mean_lambdas(m)}
        for name, m in zip(names, everyone, strict=True)
    ]
    pairs = list(zip(names[: len(models)], names[len(models) :], strict=False))
    summary = summarise(rows, cards, pairs)
    with replacing(out / "rows.parquet") as temporary:
        rows.write_parquet(temporary)
    shown = [0, len(models)] if twins else [0]
    gallery = _gallery([everyone[i] for i in shown], [names[i] for i in shown], data, settings)
    if gallery is None:
        (out / "gallery.safetensors").unlink(missing_ok=True)
    else:
        write_gallery(out / "gallery.safetensors", gallery)
    write_json(out / "run.json", _record(everyone, names, data, settings, command, time.monotonic() - began))
    write_json(out / "summary.json", summary)
    return summary


def _names(cards: Sequence[ModelCard]) -> list[str]:
    """Short names where they tell the models apart, whole specifications where not."""
    for names in ([card.name for card in cards], [card.spec for card in cards]):
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{cards[0].spec}: the same model is named twice; expected different ones")


def _check_fit(card: ModelCard, data: ImageSet) -> None:
    if card.image_shape != data.image_shape:
        raise UserError(
            f"{card.spec} takes images of shape {card.image_shape}, {data.name} gives {data.image_shape}; "
            "give data that fits with --data"
        )
    if len(data) and int(data.labels.max()) >= card.num_classes:
        raise UserError(
            f"{card.spec} tells {card.num_classes} classes apart, {data.name} has {len(data.class_names)}; "
            "give data that fits with --data"
        )


def _attack_cell(
    name: str, model: nn.Module, prints: str, data: ImageSet, eps: float, settings: Settings, out: Path,
    progress: bool,
) -> pl.DataFrame:  # fmt: skip
    """Return the rows of one model at one ε: those on disk, and the missing ones attacked now."""
    card = card_of(model)
    what = {
        "version": CELL_VERSION, "model": prints, "data": data.fingerprint(), "attack": "pgd", "eps": eps,
        "norm": settings.norm, "steps": settings.steps, "restarts": settings.restarts, "seed": settings.seed,
    }  # fmt: skip
    journal = Journal(out / "cells" / digest(json.dumps(what, sort_keys=True))[:16], ROW_SCHEMA)
    held = journal.rows()
    missing = torch.tensor([int(i) not in set(held["sample"]) for i in data.ids]).nonzero().flatten()

    for part in _slices(missing, data.image_shape):
        images, labels, ids = data.images(part), data.labels[part], data.ids[part]

        def keep(
            positions: Tensor, results: dict[str, Tensor], ids: Tensor = ids, labels: Tensor = labels
        ) -> None:
            columns = {
                "model": name, "attention": card.attention, "seed": card.seed, "attack": "pgd",
                "norm": settings.norm, "eps": eps, "attack_seed": settings.seed,
                "sample": ids[positions].numpy(), "label": labels[positions].numpy(),
            } | {key: results[key][positions].numpy() for key in _MEASURED}  # fmt: skip
            journal.append(pl.DataFrame(columns, schema_overrides=ROW_SCHEMA).select(*ROW_SCHEMA))

        try:
            pgd(
                model, images, None, Threat(settings.norm, eps), steps=settings.steps,
                restarts=settings.restarts, seed=settings.seed, ids=ids, batch_size=settings.batch_size,
                on_finished=keep, progress=f"{name} ε={eps * 255:g}/255" if progress else "",
            )  # fmt: skip
        finally:  # whatever stops the attack, finished samples are kept
            journal.flush()
    rows = journal.rows().sort("sample")
    if len(missing):
        journal.compact(rows)
    # a cell is known by what was measured; the name it goes by may be another one this time
    return rows.with_columns(model=pl.lit(name), seed=pl.lit(card.seed, pl.Int64))


_MEASURED = ("clean_prediction", "prediction", "success", "distance", "forwards", "backwards")


def _slices(positions: Tensor, shape: tuple[int, int, int]) -> Iterator[Tensor]:
    size = max(1, _SLICE_BYTES // (4 * math.prod(shape)))
    return iter(positions.split(size)) if len(positions) else iter(())


def _gallery(
    models: Sequence[nn.Module], names: Sequence[str], data: ImageSet, settings: Settings
) -> Gallery | None:
    """Attack again the first images that all models get right, one a class, at the middle ε."""
    eps = sorted(settings.eps)[len(settings.eps) // 2]
    chosen: dict[int, int] = {}
    for start in range(0, len(data), 64):
        positions = range(start, min(start + 64, len(data)))
        images, labels = data.images(positions), data.labels[start : start + 64]
        right = torch.stack([_predict(model, images) == labels for model in models]).all(0)
        for position in right.nonzero().flatten().tolist():
            chosen.setdefault(int(labels[position]), start + position)
        if len(chosen) >= _GALLERY_SIZE:
            break
    if not chosen:
        return None
    positions = sorted(chosen.values())[:_GALLERY_SIZE]
    images = data.images(positions)
    results = [
        pgd(
            model, images, None, Threat(settings.norm, eps), steps=settings.steps, restarts=settings.restarts,
            seed=settings.seed, ids=data.ids[positions],
        )
        for model in models
    ]  # fmt: skip
    return Gallery(
        eps=eps, models=tuple(names), class_names=data.class_names, sample=data.ids[positions].numpy(),
        label=data.labels[positions].numpy(), clean=images.numpy(),
        adversarial=tuple(result.adversarial.numpy() for result in results),
        clean_prediction=tuple(result.clean_prediction.numpy() for result in results),
        prediction=tuple(result.prediction.numpy() for result in results),
    )  # fmt: skip


def _predict(model: nn.Module, images: Tensor) -> Tensor:
    oracle = Oracle(model)
    return oracle.predict(images.to(oracle.device)).cpu()


def _record(
    models: Sequence[nn.Module], names: Sequence[str], data: ImageSet, settings: Settings, command: str,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Return what a reader needs to judge the numbers and to make them again."""
    cpu = torch.cpu.get_capabilities().get("cpu_name", platform.processor())
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{cpu}, {torch.get_num_threads()} threads"
    )
    warnings = [f"{len(data.skipped)} unreadable images were left out: {', '.join(data.skipped)}"] * bool(
        data.skipped
    )
    return {
        "command": command,
        "settings": {
            "attack": "PGD", "norm": settings.norm, "ε": [f"{eps * 255:g}/255" for eps in settings.eps],
            "step size": "ε/4", "steps": settings.steps, "random start": "uniform in the ε-ball",
            "restarts": settings.restarts, "iterate kept": "first adversarial, else highest loss",
            "attacked label": "clean prediction", "objective": "cross-entropy", "attack seed": settings.seed,
            "verdicts": "float32",
        },
        "models": dict(zip(names, (card_of(model).spec for model in models), strict=True)),
        "data": data.name,
        "data_fingerprint": data.fingerprint(),
        "n": len(data),
        "seconds": round(seconds, 2),
        "hardware": device,
        "versions": {name: version(name) for name in ("antiphase", "torch", "timm", "numpy")},
        "warnings": warnings,
    }  # fmt: skip
