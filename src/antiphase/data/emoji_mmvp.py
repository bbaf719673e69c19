"""Pairs of held-out emoji that differ in one aspect, in MMVP-VLM's format: a substitute that needs no download."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from antiphase.data.mmvp import MmvpSet, load_mmvp
from antiphase.data.openmoji import openmoji_pairs
from antiphase.data.pairs import ArrayPairs
from antiphase.data.root import data_root
from antiphase.files import replacing, write_text
from antiphase.streams import key

NAME = "emoji-mmvp"
PAIRS = 15  # per pattern, as in MMVP-VLM

_Rule = tuple[str, Callable[[str], str], Callable[[str], bool]]

# pattern; map from the name of the first emoji to that of the second; filter on the first name
_RULES: tuple[_Rule, ...] = (
    (
        "Facing right",
        lambda name: re.sub(r"( \S+ skin tone)?$", r" facing right\1", name, count=1),
        lambda name: "facing right" not in name,
    ),
    (
        "Skin tone",
        lambda name: name.replace("light skin tone", "dark skin tone"),
        lambda name: bool(re.search(r"(?<!medium-)light skin tone", name)),
    ),
    (
        "Woman or man",
        lambda name: re.sub(r"\bwoman\b", "man", name),
        lambda name: bool(re.search(r"\bwoman\b", name)),
    ),
)


def emoji_mmvp(root: Path | None = None, progress: bool = True) -> MmvpSet:
    """Return 45 pairs of OpenMoji's held-out emoji in three patterns: direction, skin tone, woman or man.

    Each pattern has the 15 pairs with the smallest hash of their names. They are written once to disk in the format
    of MMVP-VLM, and read from there.

    Args:
        root: data folder, where the pairs are stored.
        progress: show a progress bar on stderr while the emoji are rendered.

    Raises:
        UserError: if a package that draws the emoji is missing.
    """
    pairs = openmoji_pairs("test", root, progress)
    folder = data_root(root) / "openmoji" / f"mmvp-{pairs.fingerprint()[:16]}"
    if not (folder / "Questions.csv").is_file():
        _write(folder, pairs)
    return load_mmvp(folder, NAME)


def _write(folder: Path, pairs: ArrayPairs) -> None:
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(("Question ID", "Type", "Statement"))
    for number, (pattern, row) in enumerate(_questions(pairs), 1):
        writer.writerow((number, pattern, pairs.captions[row][0]))
        picture = Image.fromarray(pairs.pixels(row).permute(1, 2, 0).numpy())
        with replacing(folder / "MLLM_VLM Images" / pattern / f"{number}.jpg") as temporary:
            picture.save(temporary, "JPEG", quality=95, subsampling=0)
    write_text(folder / "Questions.csv", table.getvalue())  # written last: marks the set as complete


def _questions(pairs: ArrayPairs) -> Iterator[tuple[str, int]]:
    """Yield the pattern and the position of the emoji of each question."""
    places = {several[0]: row for row, several in enumerate(pairs.captions)}
    for pattern, other, first in _RULES:
        both = [(name, other(name)) for name in places if first(name) and other(name) in places]
        for two in sorted(both, key=lambda names: key(NAME, pattern, *names))[:PAIRS]:
            yield from ((pattern, places[name]) for name in two)
