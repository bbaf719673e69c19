"""Data sets by name as an evaluation takes them. Imports are local, so that the command line's --help is quick."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.errors import NoSuchSplit, UserError
from antiphase.terminal import say

if TYPE_CHECKING:
    from antiphase.data import ImageSet, PairSet
    from antiphase.evaluation.tasks import Source
    from antiphase.runs.evaluate import Tasks

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper


def asked(tasks: Sequence[str], data: Sequence[str]) -> "tuple[Tasks | None, list[str]]":
    """Return the tasks with the data sets that each is for, None where none was named, and all the data sets.

    ``probe:openmoji`` is for that set, ``probe`` for all. ``paper`` among the data stands for the paper's sets of each
    task; those for vision-language models only if their task is named. Where no data are named they are those of the
    tasks, else openmoji; MMVP's own where it is the only task.

    Raises:
        UserError: an unknown task, or one for a set that is not among the data.

    >>> asked(["retrieval", "probe:digits"], ["openmoji", "digits"])
    ({'retrieval': None, 'probe': ['digits']}, ['openmoji', 'digits'])
    """
    from antiphase.evaluation.tasks import all_tasks, find_task
    from antiphase.registry import TASKS

    found: dict[Any, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(TASKS)}")
        known = found.get(task, [])
        found[task] = None if known is None or not only else [*known, only]
    if PAPER in data:
        learned_first = sorted(all_tasks(), key=lambda task: not task.learns)  # as stored rows are ordered
        of_paper = {
            task.name: task.paper_data for task in learned_first if task.paper_data and not task.answers
        }
        others = [name for name in data if name != PAPER]
        wanted = found or dict.fromkeys(of_paper)
        found = {task: names or [*find_task(task).paper_data, *others] for task, names in wanted.items()}
        data = [name for names in found.values() for name in names or ()]
    named = [name for names in found.values() for name in names or ()]
    if not data:
        defaults = {find_task(task).default_data for task in found}
        data = named or (list(defaults) if len(defaults) == 1 else ["openmoji"])
    odd = next((name for name in named if name not in data), None)
    if odd is not None:
        raise UserError(
            f"task for {odd}: it is not among the data, {', '.join(data)}; name it with --data too"
        )
    return found or None, list(dict.fromkeys(data))


def is_pope(name: str) -> bool:
    """Return whether a data set is questions of POPE.

    >>> [is_pope(name) for name in ("pope", "pope:files", "emoji-pope", "openmoji")]
    [True, True, True, False]
    """
    return name.partition(":")[0] in ("pope", "emoji-pope")


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
        limit: at most this many of it: images of POPE with all their questions; MMVP is always whole.
        train_limit: at most this many images to learn from.
        learned: whether images to learn from are needed; None takes them where they can be had, and says so on
            stderr where they cannot.
        skip_bad: whether unreadable images are left out.
        progress: whether to show progress.

    Raises:
        UserError: what is needed cannot be had.
    """
    from antiphase.data import PAIR_SOURCES, FileImages, PairSet, load_data, load_pairs
    from antiphase.data.hub import has_captions
    from antiphase.data.mmvp import EMOJI_MMVP, emoji_mmvp, load_mmvp
    from antiphase.evaluation.tasks import Source, all_tasks
    from antiphase.vlm.pope import load_questions

    kind, _, path = name.partition(":")
    if kind == "mmvp":
        return Source(load_mmvp(Path(path).expanduser() if path else None, name))
    if name == EMOJI_MMVP:
        return Source(emoji_mmvp(progress=progress))
    if is_pope(name):
        return Source(load_questions(name, limit, progress))
    paired = any(kind == known.partition(":")[0] for known in PAIR_SOURCES)
    if kind == "wds":  # mirrors of both kinds
        paired = has_captions(Path(path).expanduser())

    def load(part: str) -> "ImageSet | PairSet":
        if not paired:
            images = load_data(name, split=part, progress=progress)
            if skip_bad and isinstance(
                images, FileImages
            ):  # among several data sets it is for those that are files
                return images.without_unreadable(progress=progress)
            return images
        pairs = load_pairs(name, split=part, progress=progress)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{name}: shards are a stream to train on; expected pairs in random access")
        return pairs

    def to_learn_from() -> "list[ImageSet | PairSet | None]":
        """Return train and validation; a table of one split only is the test set under every name."""
        found: list[ImageSet | PairSet | None] = []
        for part in ("train", "val"):
            try:
                one = load(part)
            except NoSuchSplit:
                found.append(None)
                continue
            same = one.split == test.split or _same_images(one, test)
            found.append(None if same else one.subset(train_limit, 0))
        return found

    test = load(split)
    if learned is False or test.labels is None:
        return Source(test.subset(limit, 0))
    try:
        train, validation = to_learn_from()
    except UserError as error:
        if learned:
            raise
        lost = " and ".join(f"no {task.name}" for task in all_tasks() if task.learns)
        say(f"antiphase: {lost} on {name}: {error}", err=True)
        train = validation = None
    return Source(test.subset(limit, 0), train, validation)


def _same_images(one: "ImageSet | PairSet", two: "ImageSet | PairSet") -> bool:
    same_place = getattr(one, "root", None) == getattr(two, "root", None)
    return same_place and one.fingerprint() == two.fingerprint()


def left_out(source: "Source") -> list[str]:
    """Return a line for each part of a data set that something was left out of."""
    parts = {"": source.test, " (train)": source.train, " (val)": source.validation}
    found = []
    for part, data in parts.items():
        skipped = getattr(data, "skipped", ())
        if skipped:
            found.append(f"{source.name}{part}: {len(skipped):,} left out, the first: {skipped[0]}")
    return found
