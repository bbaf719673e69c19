"""Questions and answers about images, by name: what vision-language models are trained on."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final
from urllib.parse import parse_qs

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.data.decoding import decode_whole
from antiphase.data.listed_pairs import read_json
from antiphase.data.named import find_named
from antiphase.data.root import data_root
from antiphase.errors import UserError, shown
from antiphase.files import digest
from antiphase.streams import generator

_PLACE = "<image>"


@dataclass(frozen=True, eq=False)
class Conversation:
    """Questions and answers about one image, or about none.

    Attributes:
        id: name of the record.
        image: pixels in [0, 1], RGB, at their own size; None for a conversation without an image.
        turns: pairs of a question and an answer, without a placeholder for the image. In stage 1 there is one, whose
            answer is the caption; its question is ignored.
    """

    id: str
    image: Float[Tensor, "3 height width"] | None
    turns: tuple[tuple[str, str], ...]


class Conversations(Protocol):
    """Interface of conversations with random access."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Conversation: ...

    def has_image(self, position: int) -> bool:
        """Return whether a conversation is about an image, without reading it."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of all that affects training."""
        ...


@dataclass(frozen=True)
class Request:
    """Arguments for a source.

    Attributes:
        name: the whole name.
        path: its part after the first colon, up to a question mark.
        settings: what follows that: ``key=value``, separated by ``&``.
        stage: 1 for captions, 2 for instructions.
        root: data folder.
        seed: random seed of generated data.
    """

    name: str
    path: str
    settings: dict[str, str]
    stage: int
    root: Path
    seed: int


@dataclass(frozen=True)
class Source:
    """A source of conversations.

    Attributes:
        description: what it is, in one line.
        load: returns the conversations of a request.
        settings: keys that its name may have behind a question mark.
    """

    description: str
    load: Callable[[Request], Conversations]
    settings: tuple[str, ...] = ()


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
        said = [one["value"].replace(_PLACE, "").strip() for one in _paired(record["conversations"])]
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


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the conversations of a source."""

    whole: Conversations
    positions: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, position: int) -> Conversation:
        return self.whole[self.positions[position]]

    def has_image(self, position: int) -> bool:
        return self.whole.has_image(self.positions[position])

    def fingerprint(self) -> str:
        return digest(self.whole.fingerprint(), repr(self.positions))


def _llava(ask: Request) -> LlavaRecords:
    path = _file(ask.path, ask.root)
    if "images" not in ask.settings:
        raise UserError(f"{ask.name}: expected llava:JSONFILE?images=DIR, with the folder of the images")
    images = _file(ask.settings["images"], ask.root)
    if not images.is_dir():
        raise UserError(f"{ask.name}: {images}: no such folder; expected the folder of the images")
    records = read_json(path)
    if not isinstance(records, list) or not records:
        raise UserError(f"{path}: expected a list of at least one conversation; download it again")
    if (only := ask.settings.get("only")) is not None:
        records = [one for one in records if isinstance(one, dict) and str(one.get("image")).startswith(only)]
        if not records:
            raise UserError(
                f"{ask.name}: no image of {path} begins with {only!r}; expected a folder such as coco/"
            )
    return LlavaRecords(ask.name, checked_records(records, path), images)


def checked_records(records: list[Any], path: Path) -> list[dict[str, Any]]:
    """Return the records of a file.

    Raises:
        UserError: naming the first that is not in LLaVA's layout.
    """
    for number, record in enumerate(records):
        if (reason := _fault(record)) is not None:
            raise UserError(
                f"{path}: record {number}: {reason}; expected LLaVA's layout; correct or download it again"
            )
    return records


def _fault(record: Any) -> str | None:
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
    if not said:
        return "no question with an answer"
    for place, one in enumerate(said):
        if one.get("from") != ("human", "gpt")[place % 2]:
            return f"message {place} is not from {('human', 'gpt')[place % 2]}"
        if not isinstance(one.get("value"), str):
            return f"message {place} has no text"
    marks = [one["value"].count(_PLACE) for one in said]
    if marks != [int("image" in record), *[0] * (len(said) - 1)]:
        return f"{_PLACE} stands {sum(marks)} times; it belongs once into the first question of one with an image"
    return None


def _paired(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out a first message of the model's, as LLaVA does, and a last question without an answer."""
    kept = said[1:] if said and said[0].get("from") == "gpt" else said
    return kept[: len(kept) // 2 * 2]


def _file(path: str, root: Path) -> Path:
    """Return a path in the working directory, or below the data folder."""
    here = Path(path).expanduser()
    return here if here.exists() or not (root / here).exists() else root / here


def _emoji(ask: Request) -> Conversations:
    from antiphase.data.emoji_questions import emoji_conversations  # optional dependencies

    return emoji_conversations(ask.stage, ask.seed, ask.root)


def _shards(ask: Request) -> Conversations:
    from antiphase.data.conversation_shards import shard_conversations  # reads what is defined here

    return shard_conversations(ask.name, ask.path, ask.root)


_SOURCES: dict[str, Source] = {
    "emoji-objects": Source(
        "6,000 scenes of two to four objects: captions for stage 1, balanced yes/no questions for stage 2",
        _emoji,
    ),
    "llava:JSON": Source(
        "conversations in LLaVA's JSON layout, with ?images=DIR, such as "
        "llava:llava_v1_5_mix665k.json?images=data; &only=coco/ keeps those with an image in that folder",
        _llava,
        ("images", "only"),
    ),
    "shards:PATTERN": Source(
        "tar files with KEY.json, a record of LLaVA's layout, and its image KEY.jpg", _shards
    ),
}

CONVERSATION_SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""One-line description of each source of conversations."""


def load_conversations(
    name: str,
    *,
    stage: int,
    limit: int | None = None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> Conversations:
    """Load conversations from a named source.

    Args:
        name: one of ``CONVERSATION_SOURCES``, with a path in place of JSON or PATTERN.
        stage: 1 for captions, 2 for instructions; which a source has both.
        limit: keep only N of them, drawn with ``seed``, in their own order.
        seed: random seed of the limit, and of data that a source generates.
        root: data folder; None: the environment variable ANTIPHASE_DATA, or ~/.cache/antiphase.

    Raises:
        UserError: for an unknown source or setting, missing or damaged data, or an argument out of range.
    """
    if stage not in (1, 2):
        raise UserError(f"stage {stage}: expected 1 (captions) or 2 (instructions)")
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit}: expected an integer of at least 1")
    plain, _, query = name.partition("?")
    source = find_named(plain, _SOURCES, "source of conversations")
    settings = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}
    for key in settings:
        if key not in source.settings:
            raise UserError(f"{name}: no setting {key!r}; expected {', '.join(source.settings) or 'none'}")
    found = source.load(Request(name, plain.partition(":")[2], settings, stage, data_root(root), seed))
    if limit is None or limit >= len(found):
        return found
    order = torch.randperm(len(found), generator=generator(seed, "subset"))[:limit].sort().values
    return _Part(found, tuple(order.tolist()))
