"""What ``antiphase evaluate`` is asked for: tasks and data sets by their words. Imports are local, for --help."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.errors import NoSuchSplit, UserError

if TYPE_CHECKING:
    from antiphase.data import ImageSet, PairSet
    from antiphase.studies.evaluate import Tasks
    from antiphase.studies.tasks import Source

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper


def asked_tasks(tasks: Sequence[str], data: Sequence[str] | None) -> "Tasks":
    """Return the tasks with the data sets that each is for: ``probe:openmoji`` is for that one, ``probe`` for all.

    >>> asked_tasks(["retrieval", "probe:digits"], None)
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


def data_names(tasks: "Tasks | None", data: Sequence[str] | None) -> list[str]:
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


def load_source(
    name: str,
    split: str,
    limit: int | None,
    train_limit: int | None,
    learned: bool | None,
    skip_bad: bool,
    progress: bool,
) -> "Source":
    """Load the parts of a data set: pairs where it has captions, else labelled images.

    Args:
        name: as of ``--data``.
        split: that is measured.
        limit: at most so many of it.
        train_limit: at most so many images to learn from.
        learned: whether images to learn from are needed; None takes them where they can be had, and says so on
            stderr where they cannot.
        skip_bad: whether unreadable images are left out.
        progress: whether to show progress.

    Raises:
        UserError: what is needed cannot be had.
    """
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
            return load_data(name, split=part, skip_bad=skip_bad, progress=progress)
        pairs = load_pairs(name, split=part, progress=progress)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; expected pairs in random access")
        return pairs

    def other(part: str) -> "ImageSet | PairSet | None":
        if learned is False or test.labels is None:
            return None
        try:
            found = load(part)
        except NoSuchSplit:
            return None
        except UserError as error:
            if learned:
                raise
            print(f"antiphase: no probe and no few-shot on {name}: {error}", file=sys.stderr)
            return None
        same = found.split == test.split or found.fingerprint() == test.fingerprint()
        return None if same else found.subset(train_limit, 0)

    test = load(split)
    return Source(test.subset(limit, 0), other("train"), other("val"))
