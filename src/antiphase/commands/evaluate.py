"""What ``antiphase evaluate`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from antiphase.commands.loading import find_device
from antiphase.errors import NoSuchSplit, UserError

if TYPE_CHECKING:
    from antiphase.data import ImageSet, PairSet
    from antiphase.studies.evaluate import Tasks
    from antiphase.studies.tasks import Protocol, Source

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper


def run_evaluation(
    models: list[str], against: list[str], tasks: list[str] | None, data: list[str] | None, out: Path, *, split: str,
    limit: int | None, train_limit: int | None, protocol: "Protocol", random_weights: bool, cache: Path | None,
    batch_size: int, precision: str, device: str, quiet: bool,
) -> None:  # fmt: skip
    """Load models and data, measure, write rows, summary and report, and print the tables."""
    from antiphase.data.root import data_root
    from antiphase.models.zoo import load_model
    from antiphase.report.evaluation import console_tables
    from antiphase.report.evaluation_page import write_evaluation_page
    from antiphase.studies.evaluate import evaluate_models
    from antiphase.studies.features import FeatureStore
    from antiphase.studies.shards import shard

    asked = _asked(tasks, data) if tasks else None
    if precision not in ("float32", "bf16"):
        raise UserError(f"precision {precision!r}: expected float32 or bf16")
    if against and len(against) != len(models):
        raise UserError(f"{len(models)} models against {len(against)}: expected a twin for each")
    place = find_device(device)
    loaded = [
        load_model(spec, random_weights=random_weights and spec.startswith(("timm:", "open_clip:"))).to(place)
        for spec in map(str.strip, [*models, *against])
    ]
    learned = asked is None or not {"probe", "few-shot"}.isdisjoint(asked)
    sources = [
        _source(name, split, limit, train_limit, learned, not quiet) for name in _data_names(asked, data)
    ]
    store = FeatureStore(
        cache or data_root() / "features", batch_size=batch_size, precision=_precision(precision), progress=not quiet,
        shard=shard(),
    )  # fmt: skip
    summary = evaluate_models(
        loaded[: len(models)], loaded[len(models) :], sources, out, store, tasks=asked,
        protocol=protocol, command=shlex.join(["antiphase", *sys.argv[1:]]),
    )  # fmt: skip
    if not store.shard.first:
        return
    page = write_evaluation_page(out)
    console = Console()
    for table in console_tables(summary):
        console.print(table)
    print(f"report: {page}")


def make_protocol(
    templates: list[str],
    captions: str,
    space: str,
    objectives: list[str],
    seeds: int,
    episodes: int,
    iterations: int,
) -> "Protocol":
    """Return the protocol that the options describe.

    Raises:
        UserError: a word that is none of those expected.
    """
    from antiphase.studies.tasks import Protocol

    if captions not in ("all", "first"):
        raise UserError(f"captions {captions!r}: expected all or first")
    if space not in ("raw", "projected"):
        raise UserError(f"features {space!r}: expected raw (before the projection) or projected")
    for objective in objectives:
        if objective not in ("norm", "squared"):
            raise UserError(f"objective {objective!r}: expected norm or squared")
    return Protocol(
        templates=tuple(templates), captions=captions, space=space, objectives=tuple(objectives),  # type: ignore[arg-type]
        seeds=seeds, episodes=episodes, iterations=iterations,
    )  # fmt: skip


def _precision(name: str) -> Literal["float32", "bf16"]:
    return "bf16" if name == "bf16" else "float32"


def _asked(tasks: Sequence[str], data: Sequence[str] | None) -> "Tasks":
    """Return the tasks with the data sets that each is for: ``probe:openmoji`` is for that one, ``probe`` for all.

    >>> _asked(["retrieval", "probe:digits"], None)
    {'retrieval': None, 'probe': ['digits']}
    """
    from antiphase.evaluation.metrics import TASKS

    found: dict[Any, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(TASKS)}")
        if only and data is not None and only not in data:
            raise UserError(
                f"task {word}: {only} is not among the data, {', '.join(data)}; name it with --data too"
            )
        found[task] = [*(found.get(task) or ()), only] if only else None
    return found


def _data_names(tasks: "Tasks | None", data: Sequence[str] | None) -> list[str]:
    """Return the names of the data sets: those asked for, the paper's where that is asked for, else openmoji."""
    from antiphase.data.published import IMAGENET_SETS, PROBE_SETS, RETRIEVAL_SETS

    of_paper = {
        "probe": PROBE_SETS, "few-shot": PROBE_SETS, "retrieval": RETRIEVAL_SETS, "zero-shot": IMAGENET_SETS,
        "mmvp": ("mmvp",),
    }  # fmt: skip
    if data is None:
        named = [name for names in (tasks or {}).values() for name in names or ()]
        return list(dict.fromkeys(named)) or (["mmvp"] if tasks and list(tasks) == ["mmvp"] else ["openmoji"])

    def names() -> Iterator[str]:
        for name in map(str.strip, data):
            if name == PAPER:
                for task in tasks or of_paper:
                    yield from of_paper[task]
            else:
                yield name

    return list(dict.fromkeys(names()))


def _source(
    name: str, split: str, limit: int | None, train_limit: int | None, learned: bool, progress: bool
) -> "Source":
    """Load the parts of a data set: pairs where it has captions, else labelled images."""
    from antiphase.data import PAIR_SOURCES, PairSet, load_data, load_pairs
    from antiphase.data.emoji_mmvp import NAME as EMOJI_MMVP
    from antiphase.data.emoji_mmvp import emoji_mmvp
    from antiphase.data.mmvp import load_mmvp
    from antiphase.data.wds import has_captions
    from antiphase.studies.tasks import Source

    kind, _, path = name.partition(":")
    if kind == "mmvp":
        return Source(load_mmvp(Path(path).expanduser() if path else None))
    if name == EMOJI_MMVP:
        return Source(emoji_mmvp(progress=progress))
    paired = any(kind == known.partition(":")[0] for known in PAIR_SOURCES)
    if kind == "wds":  # mirrors of both kinds
        paired = has_captions(Path(path).expanduser())

    def load(part: str) -> "ImageSet | PairSet":
        if not paired:
            return load_data(name, split=part, progress=progress)
        pairs = load_pairs(name, split=part, progress=progress)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; expected pairs in random access")
        return pairs

    def other(part: str) -> "ImageSet | PairSet | None":
        if not learned or test.labels is None:
            return None
        try:
            found = load(part)
        except NoSuchSplit:
            return None
        same = found.split == test.split or found.fingerprint() == test.fingerprint()
        return None if same else found.subset(train_limit, 0)

    test = load(split)
    return Source(test.subset(limit, 0), other("train"), other("val"))
