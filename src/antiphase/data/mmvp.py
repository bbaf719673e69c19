"""MMVP-VLM: pairs of images that CLIP confuses, with a statement on each, and answer files of its authors."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import final

from jaxtyping import UInt8
from torch import Tensor

from antiphase.data.decoding import decode_whole
from antiphase.data.root import data_root
from antiphase.errors import UserError
from antiphase.files import digest

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

MMVP_PAGE = "https://huggingface.co/datasets/MMVP/MMVP_VLM"
_IMAGES = "MLLM_VLM Images"
_QUESTION_CELLS = ("Question ID", "Type", "Statement")


@final
@dataclass(frozen=True)
class MmvpSet:
    """Pairs of images with one statement each; a pair is correct if both statements match their own image.

    Attributes:
        name: name of the set.
        patterns: index into ``pattern_names`` of each pair.
        pattern_names: names of the visual patterns.
        statements: the first is true only of the pair's first image, the second only of its second.
        files: the two images, relative to ``root``.
        question_ids: odd and even number of the two questions, used to join answers.
        root: folder of ``Questions.csv``; not part of the fingerprint.
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

    def pixels(self, pair: int, which: int) -> UInt8[Tensor, "3 height width"]:
        """Return one image of a pair as RGB at its own size.

        Args:
            pair: index of the pair.
            which: 0 for its first image, 1 for its second.

        Raises:
            UserError: if the image is unreadable.
        """
        return decode_whole(self.root / self.files[pair][which])

    def fingerprint(self) -> str:
        """Return the SHA-256 of file names and sizes, statements, patterns and question numbers.

        Raises:
            UserError: if a file was removed after the set was read.
        """
        rows = zip(self.patterns, self.question_ids, self.files, self.statements, strict=True)
        told: list[str] = []
        for pattern, numbers, files, statements in rows:
            try:
                sizes = [str((self.root / file).stat().st_size) for file in files]
            except OSError as error:
                raise UserError(
                    f"{self.name}: {error.filename} was removed after the set was read"
                ) from error
            told += [self.pattern_names[pattern], *map(str, numbers), *files, *sizes, *statements]
        return digest("mmvp", *told)


def load_mmvp(root: Path | None = None, name: str = "mmvp") -> MmvpSet:
    """Read MMVP-VLM, or other pairs in its format.

    Consecutive rows of ``Questions.csv`` are a pair: an odd question and the next even one. The image of question n
    of type T is ``MLLM_VLM Images/T/n.jpg``. The pattern of a pair is its type; if there are nine types, they are
    named by ``PATTERNS`` in order of appearance.

    Source: "Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs", Tong et al., 2024, Section 3,
    and ``scripts/evaluate_vlm.py`` of https://github.com/tsb0601/MMVP.

    Args:
        root: folder with ``Questions.csv``; None: ``MMVP_VLM`` below the data folder.
        name: name of the set in tables.

    Raises:
        UserError: if the set is missing, or naming the line of an invalid row.
    """
    folder = data_root() / "MMVP_VLM" if root is None else root
    table = folder / "Questions.csv"
    if not table.is_file():
        raise UserError(
            f"mmvp: no {table}: download it with 'hf download --repo-type dataset "
            f"MMVP/MMVP_VLM --local-dir {folder}' ({MMVP_PAGE}), or give another folder"
        )
    rows = _read(table, _QUESTION_CELLS)
    if len(rows) % 2:
        raise UserError(
            f"{table} has {len(rows)} rows, expected two per pair: line {rows[-1][0]} has no partner"
        )
    types: dict[str, int] = {}
    patterns: list[int] = []
    statements: list[tuple[str, str]] = []
    numbers: dict[tuple[int, int], int] = {}
    files: list[tuple[str, str]] = []
    for (line, first), (next_line, second) in zip(rows[::2], rows[1::2], strict=True):
        pair = _number(table, line, first[0]), _number(table, next_line, second[0])
        if pair[0] % 2 == 0 or pair[1] != pair[0] + 1:
            raise UserError(
                f"lines {line} and {next_line} of {table} are questions {pair[0]} and {pair[1]}, expected an odd "
                "number and the next one: sort the rows"
            )
        if first[1] != second[1]:
            raise UserError(
                f"lines {line} and {next_line} of {table} are of types {first[1]!r} and {second[1]!r}, expected "
                "one type per pair: correct them"
            )
        if pair in numbers:
            raise UserError(
                f"line {line} of {table} repeats question {pair[0]} of line {numbers[pair]}: remove it"
            )
        numbers[pair] = line
        patterns.append(types.setdefault(first[1], len(types)))
        statements.append((first[2], second[2]))
        files.append((_image(folder, table, line, first), _image(folder, table, next_line, second)))
    return MmvpSet(
        name=name,
        patterns=tuple(patterns),
        pattern_names=PATTERNS if len(types) == len(PATTERNS) else tuple(types),
        statements=tuple(statements),
        files=tuple(files),
        question_ids=tuple(numbers),
        root=folder,
    )


def _read(path: Path, columns: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """Return the rows below the header with line numbers and stripped cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give an existing, readable file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a UTF-8 table ({error}): download it again") from error
    named = ", ".join(columns)
    if not rows or rows[0][1][0].isdecimal():
        raise UserError(f"{path} has no header: expected a first line with {named}")
    if len(rows) < 2:
        raise UserError(f"{path} has no rows below its header: download it again")
    for line, cells in rows[1:]:
        if len(cells) != len(columns) or not all(cells):
            raise UserError(
                f"line {line} of {path} has {sum(map(bool, cells))} non-empty cells, expected "
                f"{len(columns)} ({named}): correct it"
            )
    return rows[1:]


def _number(path: Path, line: int, cell: str) -> int:
    if not cell.isdecimal():
        raise UserError(f"line {line} of {path} has {cell!r}, expected the number of a question: correct it")
    return int(cell)


def _image(folder: Path, table: Path, line: int, cells: list[str]) -> str:
    """Return the image file of a question; other sets in this format may use PNG."""
    number, kind, _ = cells
    names = [f"{_IMAGES}/{kind}/{int(number)}{suffix}" for suffix in (".jpg", ".png")]
    found = next((name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise UserError(
            f"line {line} of {table}: its image {folder / names[0]} is missing: download it again"
        )
    return found
