"""Questions and answers about images, by name: what vision-language models are trained on."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.arguments import Count, Seed, validated
from antiphase.data.folders import data_root
from antiphase.data.sources import find_named
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.streams import generator


@validated
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


def query_settings(query: str) -> dict[str, str]:
    """Return the settings behind the question mark of a name; values are taken as they are written.

    >>> query_settings("images=a+b&only=coco/")
    {'images': 'a+b', 'only': 'coco/'}
    """
    parts = (part.partition("=") for part in query.split("&") if part)
    return {name: value for name, _, value in parts}


def file_at(path: str, root: Path) -> Path:
    """Return a path in the working directory, or below the data folder."""
    here = Path(path).expanduser()
    return here if here.exists() or not (root / here).exists() else root / here


def _llava(ask: Request) -> Conversations:
    from antiphase.data.llava_records import llava_conversations  # reads what is defined here

    return llava_conversations(ask.name, file_at(ask.path, ask.root), ask.settings, ask.root)


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


@validated
def load_conversations(
    name: str,
    *,
    stage: int,
    limit: Count | None = None,
    seed: Seed = 0,
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
    plain, _, query = name.partition("?")
    source = find_named(plain, _SOURCES, "source of conversations")
    settings = query_settings(query)
    for key in settings:
        if key not in source.settings:
            raise UserError(f"{name}: no setting {key!r}; expected {', '.join(source.settings) or 'none'}")
    found = source.load(Request(name, plain.partition(":")[2], settings, stage, data_root(root), seed))
    if limit is None or limit >= len(found):
        return found
    order = torch.randperm(len(found), generator=generator(seed, "subset"))[:limit].sort().values
    return _Part(found, tuple(order.tolist()))
