"""MMVP-VLM: pairs of images that look alike to CLIP, each told apart by its own statement; and a substitute of emoji.

Source: S. Tong et al., *Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs*, CVPR 2024, Section 3,
and ``scripts/evaluate_vlm.py`` of https://github.com/tsb0601/MMVP.
"""

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, final

import polars as pl
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor, nn

from antiphase.arguments import FINITE, validated
from antiphase.data import captions, emoji, folders
from antiphase.data.images import still_there
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import Groups, Protocol, Source, make_task
from antiphase.files import digest, replacing, write_text
from antiphase.streams import key

PATTERNS = (
    "Orientation and Direction",
    "Presence of Specific Features",
    "State and Condition",
    "Quantity and Count",
    "Positional and Relational Context",
    "Color and Appearance",
    "Structural Characteristics",
    "Texts",
    "Viewpoint and Perspective",
)
"""The nine visual patterns, in the order of the authors' ``evaluate_vlm.py``; the full set has 15 pairs of each."""

PAPER_PATTERNS = tuple(name for name in PATTERNS if name not in ("Quantity and Count", "Texts"))
"""The seven patterns of DiffCLIP's Figure 4."""

EMOJI_MMVP = "emoji-mmvp"
_IMAGES = "MLLM_VLM Images"
_HEADER = ("Question ID", "Type", "Statement")
_EMOJI_PAIRS = 15  # per pattern, as in MMVP-VLM
# pattern; what the name of a first emoji matches; what in it is replaced in the name of the second, and by what
_EMOJI_RULES = (
    ("Facing right", r"^(?!.*facing right)", r"( \S+ skin tone)?$", r" facing right\1"),
    ("Skin tone", r"(?<!medium-)light skin tone", "light skin tone", "dark skin tone"),
    ("Woman or man", r"\bwoman\b", r"\bwoman\b", "man"),
)


@final
@dataclass(frozen=True)
class MmvpSet:
    """Pairs of images with one statement each; a pair is correct if both statements match their own image.

    ``patterns`` index ``pattern_names``. The first statement of a pair is true only of its first image. ``files`` are
    relative to ``root``, the folder of ``Questions.csv``; ``question_ids`` are an odd and an even number.
    """

    name: str
    patterns: tuple[int, ...]
    pattern_names: tuple[str, ...]
    statements: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    question_ids: tuple[tuple[int, int], ...]
    root: Path

    def __len__(self) -> int:
        return len(self.patterns)

    def fingerprint(self) -> str:
        """Return the SHA-256 of file names and sizes, statements, patterns and question numbers."""
        rows = zip(self.patterns, self.question_ids, self.files, self.statements, strict=True)
        parts: list[str] = []
        with still_there(self.name):
            for pattern, numbers, files, statements in rows:
                sizes = [str((self.root / file).stat().st_size) for file in files]
                parts += [self.pattern_names[pattern], *map(str, numbers), *files, *sizes, *statements]
        return digest("mmvp", *parts)


def load_mmvp(root: Path | None = None, name: str = "mmvp") -> MmvpSet:
    """Read MMVP-VLM, or other pairs in its format, from the folder ``root`` (None: ``MMVP_VLM`` below the data folder).

    Consecutive rows of ``Questions.csv`` are a pair: an odd question and the next even one. The image of question n of
    type T, which is the pattern, is ``MLLM_VLM Images/T/n.jpg``; nine types are named by ``PATTERNS`` in their order.
    """
    folder = folders.data_root() / "MMVP_VLM" if root is None else root
    if not (table := folder / "Questions.csv").is_file():
        fix = f"'hf download --repo-type dataset MMVP/MMVP_VLM --local-dir {folder}' (huggingface.co)"
        raise UserError(f"mmvp: no {table}: download it with {fix}, or give another folder")
    (_, header), *rows = captions.table_rows(table) or [(0, [])]
    if len(header) != len(_HEADER) or not rows or len(rows) % 2:
        raise UserError(f"{table}: expected a header, {', '.join(_HEADER)}, and two rows per pair")
    pairs: dict[tuple[int, int], tuple[str, tuple[str, str], tuple[str, str]]] = {}
    for (line, first), (_, second) in zip(rows[::2], rows[1::2], strict=True):
        expected = "an odd question and the next one, once, each with its number, their type and a statement"
        fault = UserError(f"line {line} of {table} and the next: expected {expected}")
        try:
            numbers, (kind, other), (one, two) = zip(first, second, strict=True)
            odd, even = map(int, numbers)
        except ValueError:  # another number of cells, or no numbers
            raise fault from None
        if kind != other or not one or not two or odd % 2 == 0 or even != odd + 1 or (odd, even) in pairs:
            raise fault
        images = f"{_IMAGES}/{kind}/{numbers[0]}.jpg", f"{_IMAGES}/{kind}/{numbers[1]}.jpg"
        if absent := folders.missing_files(folder, images):
            raise UserError(f"mmvp: the image {folder / absent[0]} is missing: download it again")
        pairs[odd, even] = kind, (one, two), images
    kinds, statements, files = zip(*pairs.values(), strict=True)
    types = [*dict.fromkeys(kinds)]
    names = PATTERNS if len(types) == len(PATTERNS) else tuple(types)
    return MmvpSet(name, tuple(map(types.index, kinds)), names, statements, files, tuple(pairs), folder)


def emoji_mmvp(root: Path | None = None, progress: bool = True) -> MmvpSet:
    """Return 45 pairs of OpenMoji's held-out emoji in three patterns: direction, skin tone, woman or man.

    Those with the smallest hash of their names are written once below the data folder in the format of MMVP-VLM.
    """
    pairs = emoji.emoji_pairs("openmoji", "test", root, progress, tones=True)
    folder = folders.data_root(root) / "openmoji" / f"mmvp-{pairs.fingerprint()[:16]}"
    if not (folder / "Questions.csv").is_file():
        table, rows = io.StringIO(newline=""), {names[0]: row for row, names in enumerate(pairs.captions)}
        writer = csv.writer(table)
        writer.writerow(_HEADER)
        for number, (pattern, name) in enumerate(_emoji_questions(rows), 1):
            writer.writerow((number, pattern, name))
            picture = Image.fromarray(pairs.pixels(rows[name]).permute(1, 2, 0).numpy())
            with replacing(folder / _IMAGES / pattern / f"{number}.jpg") as temporary:
                picture.save(temporary, "JPEG", quality=95, subsampling=0)
        write_text(folder / "Questions.csv", table.getvalue())  # written last: marks the set as complete
    return load_mmvp(folder, EMOJI_MMVP)


def _emoji_questions(names: Collection[str]) -> Iterator[tuple[str, str]]:
    for pattern, first, replaced, other in _EMOJI_RULES:
        # the empty end of a name matches once more behind a skin tone
        count = int(pattern == "Facing right")
        some = (name for name in names if re.search(first, name))
        both = [(name, re.sub(replaced, other, name, count=count)) for name in some]
        both = [two for two in both if two[1] in names]
        for two in sorted(both, key=lambda two: key(EMOJI_MMVP, pattern, *two))[:_EMOJI_PAIRS]:
            yield from ((pattern, name) for name in two)


_GUESS = 0.25  # both statements of a pair by chance
PROMPT = "a photo of "  # the authors' code; put before each statement


@validated
def right_pairs(
    images: Annotated[Float[Tensor, "pairs 2 embed"], FINITE], texts: Annotated[Float[Tensor, "pairs 2 embed"], FINITE]
) -> Bool[Tensor, " pairs"]:
    """Return whether both statements of each pair, behind ``PROMPT``, select their own image, from unit vectors.

    A statement t selects image 1 if p(image 1 | t) > ½, with p the softmax over the two images of 100·cos(image, t).
    """
    first = (100.0 * (texts @ images.mT)).softmax(-1)[..., 0]  # of each statement
    return (first[:, 0] > 0.5) & ~(first[:, 1] > 0.5)


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs: MmvpSet = source.test
    files = [file for two in pairs.files for file in two]
    statements = [PROMPT + text for two in pairs.statements for text in two]
    rows = [(file, (text,), None) for file, text in zip(files, statements, strict=True)]
    images = store.project(model, store.image_features(model, captions.row_pairs(pairs.name, "test", pairs.root, rows)))
    texts = store.text_vectors(model, statements, f"statements of {pairs.name}")
    right = right_pairs(images.unflatten(0, (-1, 2)), texts.unflatten(0, (-1, 2)))
    return outcome_rows(unit=range(len(right)), group=list(pairs.patterns), score=right.double())


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    """Return the mean over all patterns, over the paper's where they are there, and each pattern alone."""
    answers, mean = observed(rows, pl.col("score")), partial(Metric, setting, chance=_GUESS)
    if groups is None:
        return [mean("mean", answers, by_group=rows["group"].n_unique() > 1)]
    paper = [number for number, name in enumerate(groups) if name in PAPER_PATTERNS]
    means = [list(range(len(groups))), *([paper] if len(paper) == len(PAPER_PATTERNS) else [])]
    chosen = {f"mean of {len(patterns)}": patterns for patterns in means}
    chosen |= {name: [number] for number, name in enumerate(groups)}
    group = pl.col("group")
    metrics = [mean(title, answers.filter(group.is_in(some)), by_group=len(some) > 1) for title, some in chosen.items()]
    return [metric for metric in metrics if len(metric.values)]


TASK = make_task(
    "mmvp",
    serves=lambda source: isinstance(source.test, MmvpSet),
    measure=_measure,
    metrics=_metrics,
    stands_for=lambda data, metric: metric.startswith("mean of "),
)
