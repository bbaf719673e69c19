"""Tasks and data sets by name, as an evaluation takes them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from antiphase.commands.evaluate.options import is_pope
from antiphase.data import PAIR_SOURCES, FileImages, ImageSet, PairSet, load_data, load_pairs
from antiphase.data.hub import has_captions
from antiphase.errors import NoSuchSplit, UserError
from antiphase.evaluation.mmvp import EMOJI_MMVP, emoji_mmvp, load_mmvp
from antiphase.evaluation.tasks import Source, all_tasks, find_task
from antiphase.registry import TASKS
from antiphase.terminal import say
from antiphase.vlm.pope import load_questions

Tasks = Mapping[str, Collection[str] | None]
"""Tasks, each with the names of the data sets that it is for; None for all."""

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper


def requested(tasks: Sequence[str], data: Sequence[str]) -> tuple[Tasks | None, list[str]]:
    """Return the tasks with the data sets that each is for, None where none was named, and all the data sets.

    ``probe:openmoji`` is for that set, ``probe`` for all. ``paper`` among the data stands for the paper's sets of each
    task; those for vision-language models only if their task is named. Where no data are named they are those of the
    tasks, else openmoji; MMVP's own where it is the only task.

    Raises:
        UserError: an unknown task, or one for a set that is not among the data.

    >>> requested(["retrieval", "probe:digits"], ["openmoji", "digits"])
    ({'retrieval': None, 'probe': ['digits']}, ['openmoji', 'digits'])
    """
    sets: dict[str, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(TASKS)}")
        known = sets.get(task, [])
        sets[task] = None if known is None or not only else [*known, only]
    if PAPER in data:
        learned_first = sorted(all_tasks(), key=lambda task: not task.learns)  # as stored rows are ordered
        of_paper = [task.name for task in learned_first if task.paper_data and not task.answers]
        others = [name for name in data if name != PAPER]
        sets = {
            task: names or [*find_task(task).paper_data, *others]
            for task, names in (sets or dict.fromkeys(of_paper)).items()
        }
        data = [name for names in sets.values() for name in names or ()]
    named = [name for names in sets.values() for name in names or ()]
    if not data:
        defaults = {find_task(task).default_data for task in sets}
        data = named or (list(defaults) if len(defaults) == 1 else ["openmoji"])
    if odd := next((name for name in named if name not in data), None):
        raise UserError(
            f"task for {odd}: it is not among the data, {', '.join(data)}; name it with --data too"
        )
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

    Args:
        name: as of ``--data``.
        split: that is measured.
        limit: at most this many of it: images of POPE with all their questions; MMVP is always whole.
        train_limit: at most this many images to learn from.
        learned: whether images to learn from are needed; None: where they can be had, else a line on stderr.
        skip_bad: whether unreadable images are left out.
        progress: whether to show progress.

    Raises:
        UserError: what is needed cannot be had.
    """
    kind, _, path = name.partition(":")
    if kind == "mmvp":
        return Source(load_mmvp(Path(path).expanduser() if path else None, name))  # pyright: ignore[reportArgumentType]
    if name == EMOJI_MMVP:
        return Source(emoji_mmvp(progress=progress))  # pyright: ignore[reportArgumentType]
    if is_pope(name):
        return Source(load_questions(name, limit, progress))  # pyright: ignore[reportArgumentType]
    paired = any(kind == known.partition(":")[0] for known in PAIR_SOURCES)
    if kind == "wds":  # mirrors of both kinds
        paired = has_captions(Path(path).expanduser())

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
        say(f"antiphase: {lost} on {name}: {error}", err=True)
        train = validation = None
    return Source(test.subset(limit, 0), train, validation)


def left_out(source: Source) -> list[str]:
    """Return a line for each part of a data set that something was left out of."""
    parts = (source.test, source.train, source.validation)
    return [line for data in parts for line in getattr(data, "left_out", ())]
