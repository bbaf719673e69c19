"""Conversations in LLaVA's JSON layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from antiphase.data.captions import read_json
from antiphase.data.conversations import Conversation, file_at
from antiphase.data.decoding import decode_whole
from antiphase.data.folders import missing_files
from antiphase.errors import UserError, shown
from antiphase.files import digest

_PLACE = "<image>"


@final
@dataclass(frozen=True, eq=False)
class LlavaRecords:
    """Conversations in LLaVA's JSON layout; images are decoded on demand.

    Attributes:
        name: as given to :func:`load_conversations`.
        records: ``id``, ``conversations`` (alternately ``from`` human and gpt, each with its ``value``) and, for one
            with an image, ``image``, a path relative to ``images``.
        images: folder of the images.
    """

    name: str
    records: Sequence[dict[str, Any]]
    images: Path

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, position: int) -> Conversation:
        record = self.records[position]
        file = record.get("image")
        image = None if file is None else decode_whole(self.images / file).float() / 255
        mark = "" if file is not None else _PLACE  # without an image it is a word like any other
        said = [one["value"].replace(_PLACE, mark).strip() for one in _paired(record["conversations"])]
        return Conversation(str(record["id"]), image, tuple(zip(said[::2], said[1::2], strict=True)))

    def has_image(self, position: int) -> bool:
        return "image" in self.records[position]

    @cached_property
    def _digest(self) -> str:
        return digest(
            "llava", *(repr(sorted(record.items(), key=lambda pair: pair[0])) for record in self.records)
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the records, without the images' pixels."""
        return self._digest


def llava_conversations(name: str, path: Path, settings: dict[str, str], root: Path) -> LlavaRecords:
    """Read a JSON file in LLaVA's layout.

    Args:
        name: as given to ``load_conversations``.
        path: the file.
        settings: ``images``, the folder of the images, and perhaps ``only``, with which an image's path begins.
        root: data folder.

    Raises:
        UserError: if the file, the folder or an image is missing, or a record is not in LLaVA's layout.
    """
    if "images" not in settings:
        raise UserError(f"{name}: expected llava:JSONFILE?images=DIR, with the folder of the images")
    images = file_at(settings["images"], root)
    if not images.is_dir():
        raise UserError(f"{name}: {images}: no such folder; expected the folder of the images")
    records = read_json(path)
    if not isinstance(records, list) or not records:
        raise UserError(f"{path}: expected a list of at least one conversation; download it again")
    if (only := settings.get("only")) is not None:
        records = [one for one in records if isinstance(one, dict) and str(one.get("image")).startswith(only)]
        if not records:
            raise UserError(
                f"{name}: no image of {path} begins with {only!r}; expected a folder such as coco/"
            )
    answered = checked_records(records, path, literal=True)
    if not answered:
        raise UserError(f"{path}: no question has an answer; expected LLaVA's layout; download it again")
    files = [one["image"] for one in answered if "image" in one]
    if absent := missing_files(images, files):
        raise UserError(
            f"{name}: {len(absent):,} of the {len(files):,} listed images are missing in {images}, the first is "
            f"{shown(absent[0])}: download them, or keep those of one folder with &only="
        )
    return LlavaRecords(name, answered, images)


def checked_records(records: list[Any], path: Path, *, literal: bool) -> list[dict[str, Any]]:
    """Check the records of a file, and return those with at least one answer.

    Args:
        records: as read.
        path: their file.
        literal: whether ``<image>`` is an ordinary word in a record without an image, as in LLaVA; or else a mistake.

    Raises:
        UserError: naming the first that is not in LLaVA's layout.
    """
    for number, record in enumerate(records):
        if (reason := _fault(record, literal)) is not None:
            raise UserError(
                f"{path}: record {number}: {reason}; expected LLaVA's layout; correct or download it again"
            )
    return [one for one in records if _paired(one["conversations"])]


def _fault(record: Any, literal: bool) -> str | None:
    """Return what is wrong with a record; None if nothing is."""
    if (
        not isinstance(record, dict)
        or "id" not in record
        or not isinstance(record.get("conversations"), list)
    ):
        return "no id or no conversations"
    if not isinstance(record.get("image", ""), str):
        return f"image {shown(record['image'])} is not a path"
    if not all(isinstance(one, dict) for one in record["conversations"]):
        return "a message is not an object"
    said = _paired(record["conversations"])
    for place, one in enumerate(said):
        if one.get("from") != ("human", "gpt")[place % 2]:
            return f"message {place} is not from {('human', 'gpt')[place % 2]}"
        if not isinstance(one.get("value"), str):
            return f"message {place} has no text"
    marks = [one["value"].count(_PLACE) for one in said]
    has = "image" in record
    if said and marks != [int(has), *[0] * (len(said) - 1)] and (has or not literal):
        return f"{_PLACE} occurs {sum(marks)} times; expected once, in the first question of a record with an image"
    return None


def _paired(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out a first message of the model's, as LLaVA does, and a last question without an answer."""
    kept = said[1:] if said and said[0].get("from") == "gpt" else said
    return kept[: len(kept) // 2 * 2]
