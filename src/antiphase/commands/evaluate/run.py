"""Every task that several models and data sets allow: rows on disk as they come, shared among processes."""

import dataclasses
import json
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from antiphase import files, registry, terminal
from antiphase.commands.evaluate import EvaluateOptions
from antiphase.commands.lineup import Lineup, write_run
from antiphase.commands.loading import check_twins, find_device, load_models
from antiphase.data import PAIR_SOURCES, FileImages, ImageSet, PairSet, folders, hub, load_data, load_pairs
from antiphase.data.images import content_key
from antiphase.errors import NoSuchSplit, UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import ROW_SCHEMA, summarise_tasks
from antiphase.evaluation.mmvp import EMOJI_MMVP, MmvpSet, emoji_mmvp, load_mmvp
from antiphase.evaluation.rates import not_above_chance
from antiphase.evaluation.tasks import EvaluationTask, Protocol, Source, all_tasks, find_task, task_settings
from antiphase.models.card import card_of, doubts_about, settle_size
from antiphase.models.image_towers import image_tower
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.models.zoo import fingerprint
from antiphase.precision import Precision
from antiphase.processes import Process, this_process
from antiphase.store import Journal, missing
from antiphase.vlm import answers, pope

Tasks = Mapping[str, Collection[str] | None]
"""Tasks, each with the names of the data sets that it is for; None for all."""

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper
_VERSION = 1
_OPTIONS = {"space": "features", "objectives": "objective"}  # settings that the tasks call something else
_WHOLE = {"mmvp", "emoji-mmvp"}  # data that are always whole


def run(options: EvaluateOptions, command: str = "") -> None:
    """Load models and data, measure, and write rows, summary and record."""
    protocol, progress = protocol_of(options), not options.quiet
    tasks, names = requested(options.tasks, options.data)
    check_twins(options.models, options.against)
    if tasks is not None:
        _check_use(options, [find_task(task) for task in tasks], names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place, random = find_device(options.device), options.random_weights
        loaded = load_models([*options.models, *options.against], place, random, answering=True, resize=options.resize)
        if protocol.templates and not any(map(is_dual_encoder, loaded)):
            texts, fix = ", ".join(map(repr, protocol.templates)), "leave out --templates and --prompt"
            raise UserError(f"templates {texts}: none of the models is a CLIP; {fix}")
        learned = None if tasks is None else any(find_task(task).learns for task in tasks)
        parts = (options.split, options.limit, options.train_limit, learned, options.skip_bad, progress)
        sources = [load_source(name, *parts) for name in names]
    if options.skip_bad and not any(isinstance(source.test, FileImages) for source in sources):
        raise UserError(f"--skip-bad: {', '.join(names)}: no labelled image files; leave it out")
    arrays = [isinstance(s.test, ImageSet) and not isinstance(s.test, FileImages) for s in sources]
    if options.resize and all(arrays):
        raise UserError(f"resize {options.resize}: {', '.join(names)}: no image files to resize; leave it out")
    if tasks is None:
        able = dict.fromkeys(task for source in sources for task in source.tasks())
        possible = [task for task in map(find_task, able) if any(fits(task, model) for model in loaded)]
        _check_use(options, possible, names)
    if shape := next((s.test.image_shape for s in sources if isinstance(s.test, ImageSet)), None):
        settle_size(loaded, shape)
    models, twins = loaded[: len(options.models)], loaded[len(options.models) :]
    doubts = [str(warning.message) for warning in caught if warning.category is UserWarning]
    doubts = [*dict.fromkeys(doubts), *doubts_about(models, twins)]
    doubts += [line for source in sources for line in left_out(source)]
    evaluate(models, twins, sources, options, tasks=tasks, doubts=doubts, command=command)


def evaluate(
    models: Sequence[nn.Module],
    twins: Sequence[nn.Module],
    sources: Sequence[Source],
    options: EvaluateOptions,
    *,
    tasks: Tasks | None = None,
    doubts: Sequence[str] = (),
    command: str = "",
) -> dict[str, Any]:
    """Measure every task of every model on every data set and write the run directory; return the summary."""
    began, protocol = time.monotonic(), protocol_of(options)
    lineup = Lineup(models, twins, sources[0].test)
    titles = [source.name for source in sources]
    if len(set(titles)) < len(titles):
        raise UserError(f"{', '.join(titles)}: the same set is named twice; expected different ones")
    cells = list(_cells(lineup, sources, tasks, protocol, options))
    _check_tasks(cells, tasks, sources)
    _measure(cells, protocol, options)
    rows = pl.concat([cell.rows() for cell in cells])
    patterns = {s.name: list(s.test.pattern_names) for s in sources if isinstance(s.test, MmvpSet)}
    summary = {"models": lineup.about()} | summarise_tasks(rows, dict(lineup.pairs), patterns)
    projected = [
        f"{name}: its features are taken behind its projection, before which it cannot be cut"
        for name, model in lineup.by_name.items()
        if protocol.space == "raw" and not answers.answers_questions(model) and not image_tower(model).raw
    ]
    told = [line for cell in cells for line in cell.task.doubts(cell.name, cell.rows(), cell.source, protocol)]
    notes = [*doubts, *_at_chance(summary["results"], sources), *projected, *dict.fromkeys(told)]
    settings = json.loads(json.dumps(vars(protocol))) | options.chosen("resize")
    settings["tasks"] = list(dict.fromkeys(cell.task.name for cell in cells))
    settings["precision"] = ", ".join(dict.fromkeys(_precision(cell.task, options.precision) for cell in cells))
    tests = [source.test for source in sources]
    of_data = {"data": titles, "n": list(map(len, tests)), "against": [twin for _, twin in lineup.pairs]}
    of_data |= {"data_fingerprint": [test.fingerprint() for test in tests]}
    write_run(lineup, options, summary, {"rows": rows}, settings, notes, command, began, **of_data)
    return summary


def _measure(cells: Sequence["_Cell"], protocol: Protocol, options: EvaluateOptions) -> None:
    """Measure the cells that are not on disk; under torchrun the processes share features' parts, then the cells."""
    process, progress = this_process(), not options.quiet
    todo = missing(cells, lambda cell: not cell.journal.rows().is_empty(), process)
    todo.sort(key=lambda cell: cell.task.name)  # so that each process has its share of the probes
    features = options.cache or folders.data_root() / "features"
    store = FeatureStore(features, options.batch_size, options.precision, progress, process)
    if process.count > 1:
        for cell in todo:  # every process makes its parts of the features
            warm(cell.task, cell.model, cell.source, protocol, store)
    alone = dataclasses.replace(store, process=Process(), progress=progress and process.first)
    for cell in process.share(todo):
        cell.journal.append(cell.task.measure(cell.model, cell.source, protocol, alone))
        cell.journal.flush()
    process.wait()


def _check_use(options: EvaluateOptions, tasks: Sequence[EvaluationTask], data: Sequence[str]) -> None:
    """Refuse options that were typed and have no effect."""
    idle = set()
    for setting in task_settings() - task_settings(tasks):
        idle |= {"templates", "prompt"} if setting == "templates" else {_OPTIONS.get(setting, setting)}
    idle |= set() if any(task.learns for task in tasks) else {"train_limit"}
    kinds = {name.partition(":")[0] for name in data}
    idle |= {"split", "skip_bad"} if kinds <= _WHOLE.union(registry.QUESTIONS) else set()
    idle |= {"limit"} if kinds <= _WHOLE else set()
    for name in sorted(filter(options.typed, idle)):
        option, words = name.replace("_", "-"), ", ".join(task.name for task in tasks)
        raise UserError(f"--{option}: has no effect on {words} of {', '.join(data)}; leave it out")


def protocol_of(options: EvaluateOptions) -> Protocol:
    """Return how the options ask the tasks to be measured."""
    settings = {name: getattr(options, _OPTIONS.get(name, name)) for name in sorted(task_settings())}
    prompts = ("\n".join(options.prompt),) if options.prompt else ()
    settings["templates"] = tuple(dict.fromkeys((*options.templates, *prompts)))
    settings["objectives"] = tuple(dict.fromkeys(options.objective))
    return Protocol(**settings)


def protocol_with(settings: Mapping[str, Any]) -> Protocol:
    """Return the protocol of the default options, but for some settings by the names that the tasks have for them."""
    if odd := sorted(settings.keys() - task_settings()):
        raise UserError(f"protocol {odd[0]!r}: expected some of {', '.join(sorted(task_settings()))}")
    chosen = {_OPTIONS.get(name, name): value for name, value in settings.items()}
    return protocol_of(EvaluateOptions(models=("any",), **chosen))


@dataclass(frozen=True)
class _Cell:
    task: EvaluationTask
    model: nn.Module
    name: str
    source: Source
    journal: Journal

    def rows(self) -> pl.DataFrame:
        """Return the rows that are stored, with what tells them from those of other cells."""
        about = {"model": self.name, "attention": card_of(self.model).attention}
        about |= {"task": self.task.name, "data": self.source.name}
        return self.journal.rows().select(*(pl.lit(value).alias(column) for column, value in about.items()), pl.all())


def warm(task: EvaluationTask, model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> None:
    """Compute this process's parts of the image features that a task needs; texts are quick."""
    for data in () if task.answers else _used(task, source):
        if isinstance(data, ImageSet | PairSet):
            store.image_features(model, data)


def _used(task: EvaluationTask, source: Source) -> list[Any]:
    learned = (source.train, source.validation) if task.learns else ()
    return [source.test, *(part for part in learned if part is not None)]


def fits(task: EvaluationTask, model: nn.Module) -> bool:
    """Return whether a task can be measured of a model: some ask questions, all others need features."""
    if task.answers or answers.answers_questions(model):
        return task.answers and answers.answers_questions(model)
    return not task.reads_text or is_dual_encoder(model)


def _cells(
    lineup: Lineup, sources: Sequence[Source], tasks: Tasks | None, protocol: Protocol, options: EvaluateOptions
) -> Iterator[_Cell]:
    prints = {name: fingerprint(model) for name, model in lineup.by_name.items()}
    for source in sources:
        for task in map(find_task, source.tasks()):
            named = dict.fromkeys(source.tasks()) if tasks is None else tasks
            if task.name not in named or source.name not in (named[task.name] or (source.name,)):
                continue
            able = {name: model for name, model in lineup.by_name.items() if fits(task, model)}
            if able and (why := task.too_small(source, protocol)):
                if tasks is not None:
                    raise UserError(why)
                terminal.say(f"antiphase: left out: {why}", err=True)
                continue
            settings = {field: getattr(protocol, field) for field in task.fields}
            settings |= task.resolved(source, protocol) | options.chosen("resize")
            parts = _used(task, source)
            data = [content_key(one) if isinstance(one, ImageSet | PairSet) else one.fingerprint() for one in parts]
            told = (*data, json.dumps(settings, sort_keys=True), _precision(task, options.precision))
            for name, model in able.items():
                identity = files.digest(str(_VERSION), task.name, prints[name], *told)
                journal = Journal(options.out / "cells" / identity[:16], ROW_SCHEMA, this_process().rank)
                yield _Cell(task, model, name, source, journal)


def _precision(task: EvaluationTask, precision: Precision) -> Precision:
    return "float32" if task.answers else precision  # words are float32's always


def _check_tasks(cells: Sequence[_Cell], tasks: Tasks | None, sources: Sequence[Source]) -> None:
    for task, names in (tasks or {}).items():
        if all(cell.task.name != task for cell in cells):
            data = [source for source in sources if not names or source.name in names]
            why = f"{', '.join(names or (source.name for source in sources))} cannot serve it"
            if any(task in source.tasks() for source in data):
                why = f"the models {'answer no questions in words' if find_task(task).answers else 'encode no text'}"
            raise UserError(f"task {task} ({find_task(task).summary}): {why}; expected data and a model that can")
    if not cells:
        expected = "expected training images or a model that encodes text, and for a vision-language model --data"
        why = f"the data serve no task of these models; {expected} pope, emoji-pope or captions"
        raise UserError(f"nothing to measure: {why}")


def _at_chance(results: Sequence[Mapping[str, Any]], sources: Sequence[Source]) -> list[str]:
    tests: dict[str, Any] = {source.name: source.test for source in sources}
    top = [row for row in results if (row["task"], row["metric"]) == ("zero-shot", "top-1")]
    rows = [{**row, "model": f"{row['model']}, zero-shot on {row['data']} ({row['setting']})"} for row in top]
    classes = {row["model"]: len(tests[row["data"]].class_names) for row in rows}
    return not_above_chance(pl.DataFrame(rows, infer_schema_length=None), classes) if rows else []


def requested(tasks: Sequence[str], data: Sequence[str]) -> tuple[Tasks | None, list[str]]:
    """Return the tasks with the data sets that each is for, None where none was named, and all the data sets.

    ``probe:openmoji`` is for that set, ``probe`` for all. ``paper`` among the data stands for the paper's sets of each
    task; those for vision-language models only if their task is named. Where no data are named they are those of the
    tasks, else openmoji; MMVP's own where it is the only task.
    """
    sets: dict[str, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in registry.TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(registry.TASKS)}")
        known = sets.get(task, [])
        sets[task] = None if known is None or not only else [*known, only]
    if PAPER in data:
        learned_first = sorted(all_tasks(), key=lambda task: not task.learns)  # as stored rows are ordered
        of_paper = [task.name for task in learned_first if task.paper_data and not task.answers]
        others = [name for name in data if name != PAPER]
        requests = sets or dict.fromkeys(of_paper)
        sets = {task: names or [*find_task(task).paper_data, *others] for task, names in requests.items()}
        data = [name for names in sets.values() for name in names or ()]
    named = [name for names in sets.values() for name in names or ()]
    if not data:
        defaults = {find_task(task).default_data for task in sets}
        data = named or (list(defaults) if len(defaults) == 1 else ["openmoji"])
    if odd := next((name for name in named if name not in data), None):
        raise UserError(f"task for {odd}: it is not among the data, {', '.join(data)}; name it with --data too")
    return sets or None, list(dict.fromkeys(data))


def load_source(
    name: str,
    split: str,
    limit: int | None,
    train_limit: int | None,
    learned: bool | None,
    skip_bad: bool,
    progress: bool,
) -> Source:
    """Load the parts of a data set: pairs where it has captions, else labelled images.

    ``learned``: whether images to learn from are needed; None: where they can be had, else a line on stderr.
    """
    kind, _, path = name.partition(":")
    if kind == "mmvp":
        return Source(load_mmvp(Path(path).expanduser() if path else None, name))
    if name == EMOJI_MMVP:
        return Source(emoji_mmvp(progress=progress))
    if kind in registry.QUESTIONS:
        return Source(pope.load_questions(name, limit, progress))
    paired = any(kind == known.partition(":")[0] for known in PAIR_SOURCES)
    if kind == "wds":  # mirrors of both kinds
        paired = hub.has_captions(Path(path).expanduser())

    def load(part: str) -> ImageSet | PairSet:
        if not paired:
            images = load_data(name, split=part, progress=progress)
            if skip_bad and isinstance(images, FileImages):  # among several data sets some are no files
                return images.without_unreadable(progress=progress)
            return images
        pairs = load_pairs(name, split=part, progress=progress)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; expected pairs in random access")
        return pairs

    def to_learn_from(part: str) -> ImageSet | PairSet | None:
        """Return a split; a table of one split only is the test set under every name."""
        try:
            images = load(part)
        except NoSuchSplit:
            return None
        same_place = getattr(images, "root", None) == getattr(test, "root", None)
        same = images.split == test.split or (same_place and images.fingerprint() == test.fingerprint())
        return None if same else images.subset(train_limit, 0)

    test = load(split)
    if learned is False or test.labels is None:
        return Source(test.subset(limit, 0))
    try:
        train, validation = to_learn_from("train"), to_learn_from("val")
    except UserError as error:
        if learned:
            raise
        lost = " and ".join(f"no {task.name}" for task in all_tasks() if task.learns)
        terminal.say(f"antiphase: {lost} on {name}: {error}", err=True)
        train = validation = None
    return Source(test.subset(limit, 0), train, validation)


def left_out(source: Source) -> list[str]:
    """Return a line for each part of a data set that something was left out of."""
    return [line for data in (source.test, source.train, source.validation) for line in getattr(data, "left_out", ())]
