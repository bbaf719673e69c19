"""Data sets by name as an evaluation takes them. Imports are local, so that the command line's --help is quick."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from antiphase.errors import NoSuchSplit, UserError

if TYPE_CHECKING:
    from antiphase.data import ImageSet, PairSet
    from antiphase.evaluation.tasks import Source


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
        limit: at most so many of it; MMVP is always whole.
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
    from antiphase.evaluation.tasks import Source, all_tasks

    kind, _, path = name.partition(":")
    if kind == "mmvp":
        return Source(load_mmvp(Path(path).expanduser() if path else None, name))
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
        print(f"antiphase: {lost} on {name}: {error}", file=sys.stderr)
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
