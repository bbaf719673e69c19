"""The evaluation suite: every task that several models and data sets allow, from features to a summary."""

import dataclasses
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from antiphase.commands.lineup import short_names
from antiphase.commands.record import run_record
from antiphase.data import ImageSet, PairSet
from antiphase.data.mmvp import MmvpSet
from antiphase.data.pairs import content_key
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import ROW_SCHEMA, summarise_tasks
from antiphase.evaluation.rates import not_above_chance
from antiphase.evaluation.tasks import EvaluationTask, Protocol, Source, find_task
from antiphase.files import digest, write_json
from antiphase.models.card import card_of
from antiphase.models.image_towers import image_tower
from antiphase.models.kinds import mean_lambdas
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.models.zoo import fingerprint
from antiphase.precision import Precision
from antiphase.processes import Process
from antiphase.store import missing, read_frame, write_cell, write_frame
from antiphase.terminal import say
from antiphase.vlm.answers import answers_questions

Tasks = Mapping[str, Collection[str] | None]

_VERSION = 1


@dataclass(frozen=True)
class _Cell:
    """One task of one model on one data set; ``path`` is that of its rows, without digest and suffix."""

    task: EvaluationTask
    model: nn.Module
    name: str
    source: Source
    path: Path


def evaluate_models(
    models: Sequence[nn.Module],
    against: Sequence[nn.Module],
    sources: Sequence[Source],
    out: Path,
    store: FeatureStore,
    *,
    tasks: Tasks | None = None,
    protocol: Protocol | None = None,
    doubts: Sequence[str] = (),
    command: str = "",
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure every task of every model on every data set and write the run directory; return the summary.

    ``out`` then holds ``rows.parquet`` (a row for each model, task, data set and image, caption, episode or pair),
    ``summary.json``, ``run.json`` and ``cells/``, from which a killed evaluation resumes: a cell is a task of a model
    on a data set. Under torchrun the processes share the features' parts first and then the cells.

    Args:
        models: loaded models, with their cards.
        against: their twins, one for each, or none.
        sources: data sets.
        out: directory, made if missing.
        store: of features.
        tasks: of ``TASKS``, each with the names of the data sets that it is for, None for all; every task that models
            and data allow where not given.
        protocol: how they are measured; DiffCLIP's where not given.
        doubts: warnings for the record, such as how many images were left out.
        command: for the record.
        options: likewise.

    Raises:
        UserError: a model or data set is named twice, a task was asked for that nothing allows, or a measurement
            fails; the cells that are done are kept.
    """
    began, protocol = time.monotonic(), protocol or Protocol()
    every = [*models, *against]
    names = short_names([card_of(model) for model in every])
    titles = [source.name for source in sources]
    if len(set(titles)) < len(titles):
        raise UserError(f"{', '.join(titles)}: the same set is named twice; expected different ones")
    cells = list(_cells(every, names, sources, out, tasks, protocol, store.precision))
    _check(cells, tasks, sources)
    todo = missing(cells, lambda cell: _stored(cell.path) is not None, store.process)
    todo.sort(key=lambda cell: cell.task.name)  # so that each process has its share of the probes
    if store.process.count > 1:
        for cell in todo:  # every process makes its parts of the features
            warm(cell.task, cell.model, cell.source, protocol, store)
    alone = dataclasses.replace(store, process=Process(), progress=store.progress and store.process.first)
    for cell in store.process.share(todo):
        write_cell(cell.path, cell.task.measure(cell.model, cell.source, protocol, alone))
    store.process.wait()
    rows = _collect(cells)
    twins = dict(zip(names[: len(models)], names[len(models) :], strict=True)) if against else {}
    mmvp = {source.name: source.test for source in sources if isinstance(source.test, MmvpSet)}
    summary = {"models": [_about(name, model) for name, model in zip(names, every, strict=True)]}
    summary |= summarise_tasks(rows, twins, {name: list(pairs.pattern_names) for name, pairs in mmvp.items()})
    at_chance = _at_chance(summary["results"], sources)
    if store.process.first:
        for line in at_chance:
            say(f"antiphase: warning: {line}", err=True)
        write_frame(out / "rows.parquet", rows)
        settings = json.loads(json.dumps(dataclasses.asdict(protocol))) | {
            "tasks": list(dict.fromkeys(cell.task.name for cell in cells)),
            "precision": ", ".join(dict.fromkeys(_precision(cell.task, store.precision) for cell in cells)),
        }
        record = run_record(
            every,
            names,
            sources[0].test,
            settings,
            _doubts(every, names, doubts, protocol) + at_chance,
            command,
            time.monotonic() - began,
            options,
        )
        tests = [source.test for source in sources]
        record |= {"data": titles, "n": [len(test) for test in tests], "against": list(twins.values())}
        record |= {"data_fingerprint": [test.fingerprint() for test in tests]}
        write_json(out / "run.json", record)
        write_json(out / "summary.json", summary)
    return summary


def warm(
    task: EvaluationTask, model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore
) -> None:
    """Compute this process's parts of the image features that a task needs; texts are quick."""
    if task.answers:
        return
    learned = (source.train, source.validation) if task.learns else ()
    for data in (source.test, *learned):
        if isinstance(data, ImageSet | PairSet):
            store.image_features(model, data)


def _cells(
    models: Sequence[nn.Module],
    names: Sequence[str],
    sources: Sequence[Source],
    out: Path,
    tasks: Tasks | None,
    protocol: Protocol,
    precision: Precision,
) -> Iterator[_Cell]:
    prints = [fingerprint(model) for model in models]
    for source in sources:
        for name in source.tasks():
            if tasks is not None and (
                name not in tasks or source.name not in (tasks[name] or (source.name,))
            ):
                continue
            task = find_task(name)
            able = [fits(task, model) for model in models]
            if not any(able):
                continue
            if why := task.too_small(source, protocol):
                if tasks is not None:
                    raise UserError(why)
                say(f"antiphase: left out: {why}", err=True)
                continue
            told = _identity(task, source, protocol)
            for model, title, own, fit in zip(models, names, prints, able, strict=True):
                if fit:
                    identity = digest(str(_VERSION), task.name, own, *told, _precision(task, precision))
                    yield _Cell(task, model, title, source, out / "cells" / identity[:16])


def _precision(task: EvaluationTask, wanted: Precision) -> Precision:
    return "float32" if task.answers else wanted  # words are float32's always


def fits(task: EvaluationTask, model: nn.Module) -> bool:
    """Return whether a task can be measured of a model: some ask questions, all others need features."""
    if task.answers or answers_questions(model):
        return task.answers and answers_questions(model)
    return not task.reads_text or is_dual_encoder(model)


def _identity(task: EvaluationTask, source: Source, protocol: Protocol) -> list[str]:
    """Return all that a task's rows depend on, but for the model and the precision."""
    settings: dict[str, Any] = {field: getattr(protocol, field) for field in task.fields}
    settings |= task.resolved(source, protocol)
    learned = (source.train, source.validation) if task.learns else ()
    data = [
        content_key(part) if isinstance(part, ImageSet | PairSet) else part.fingerprint()
        for part in (source.test, *learned)
        if part is not None
    ]
    return [*data, json.dumps(settings, sort_keys=True)]


def _doubts(
    models: Sequence[nn.Module], names: Sequence[str], doubts: Sequence[str], protocol: Protocol
) -> list[str]:
    """Return what a reader is to be warned of."""
    behind = [
        f"{name}: its features are taken behind its projection, before which it cannot be cut"
        for name, model in zip(names, models, strict=True)
        if protocol.space == "raw" and not answers_questions(model) and not image_tower(model).raw
    ]
    return [*doubts, *behind]


def _at_chance(results: Sequence[Mapping[str, Any]], sources: Sequence[Source]) -> list[str]:
    found: list[str] = []
    for source in sources:
        own = [
            {**result, "model": f"{result['model']}, zero-shot on {source.name} ({result['setting']})"}
            for result in results
            if (result["task"], result["data"], result["metric"]) == ("zero-shot", source.name, "top-1")
        ]
        if own and isinstance(source.test, ImageSet | PairSet):
            classes = len(source.test.class_names)
            found += not_above_chance(pl.DataFrame(own), {result["model"]: classes for result in own})
    return found


def _check(cells: Sequence[_Cell], tasks: Tasks | None, sources: Sequence[Source]) -> None:
    done = {cell.task.name for cell in cells}
    for task, names in (tasks or {}).items():
        if task not in done:
            shown = ", ".join(names or (source.name for source in sources))
            able = any(
                task in source.tasks() and source.name in (names or (source.name,)) for source in sources
            )
            lack = "answer no questions in words" if find_task(task).answers else "encode no text"
            why = f"the models {lack}" if able else f"{shown} cannot serve it"
            raise UserError(
                f"task {task} ({find_task(task).summary}): {why}; expected data and a model that can"
            )
    if not cells:
        raise UserError(
            "nothing to measure: the data serve no task of these models; expected training images or a model that "
            "encodes text, and for a vision-language model --data pope, emoji-pope or captions"
        )


def _stored(path: Path) -> pl.DataFrame | None:
    files = sorted(path.parent.glob(f"{path.name}*.parquet"))  # one of before has no digest in its name
    if not files:
        return None
    rows = read_frame(files[-1])
    return rows if dict(rows.schema) == ROW_SCHEMA else None


def _collect(cells: Sequence[_Cell]) -> pl.DataFrame:
    found = []
    for cell in cells:
        rows = _stored(cell.path)
        assert rows is not None
        about = {
            "model": cell.name,
            "attention": card_of(cell.model).attention,
            "task": cell.task.name,
            "data": cell.source.name,
        }
        found.append(rows.select(*(pl.lit(value).alias(key) for key, value in about.items()), pl.all()))
    return pl.concat(found)


def _about(name: str, model: nn.Module) -> dict[str, Any]:
    card = card_of(model)
    return {"name": name, "attention": card.attention, "seed": card.seed, "lambda": mean_lambdas(model)}
