"""Questions and answers about images, by name: what vision-language models are trained on."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mode
from typing import Any, final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from antiphase.arguments import Count, Seed, validated
from antiphase.data import captions, emoji, folders
from antiphase.data.decoding import decode_whole
from antiphase.data.sources import find_named, listed_sources
from antiphase.errors import UserError, shown
from antiphase.files import digest
from antiphase.streams import generator, key

ANSWERS = ("No", "Yes")  # to ``ask``, in the order of a classifier's classes
ASK_CAPTION = "Provide a one-sentence caption for the provided image."  # as in the instructions of LLaVA 1.5
Turns = tuple[tuple[str, str], ...]
_PLACE = "<image>"
_CAPTIONS = 0.1  # share of the conversations about emoji of stage 2 that ask for the caption
_TEXTS = 0.2  # share that has the caption in place of the image


def ask(thing: str) -> str:
    """Return POPE's question whether a thing is in the image, in the words of its published files."""
    return f"Is there {emoji.with_article(thing)} in the image?"


@validated
@dataclass(frozen=True, eq=False)
class Conversation:
    """Questions and answers about one image, or about none.

    ``image`` is RGB in [0, 1] at its own size, or None. ``turns`` are pairs of a question and an answer, without a
    placeholder for the image; in stage 1 there is one, whose answer is the caption and whose question is ignored.
    """

    id: str
    image: Float[Tensor, "3 height width"] | None
    turns: Turns


@final
@dataclass(frozen=True, eq=False)
class Conversations:
    """Conversations with random access; ``look`` returns what ``read`` makes pixels of, or None, and the turns."""

    ids: Sequence[str]
    look: Callable[[int], tuple[Any, Turns]]
    read: Callable[[Any], UInt8[Tensor, "3 height width"]]
    fingerprint: Callable[[], str]  # the SHA-256 of all that affects training

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Conversation:
        image, turns = self.look(position)
        return Conversation(self.ids[position], None if image is None else self.read(image).float() / 255, turns)

    def has_image(self, position: int) -> bool:
        return self.look(position)[0] is not None


@validated
def load_conversations(
    name: str, *, stage: int, limit: Count | None = None, seed: Seed = 0, root: str | os.PathLike[str] | None = None
) -> Conversations:
    """Load conversations from one of ``CONVERSATION_SOURCES``, of ``stage`` 1 (captions) or 2 (instructions).

    ``limit`` keeps N of them, drawn with ``seed``, in their own order. ``root`` is as in :func:`load_data`.
    """
    if stage not in (1, 2):
        raise UserError(f"stage {stage}: expected 1 (captions) or 2 (instructions)")
    plain, _, query = name.partition("?")
    source = find_named(plain, _SOURCES, "source of conversations")
    settings = query_settings(query)
    if unknown := settings.keys() - source.settings:
        raise UserError(f"{name}: no setting {min(unknown)!r}; expected {', '.join(source.settings) or 'none'}")
    whole = source.load(name, "train", root, path=plain.partition(":")[2], stage=stage, seed=seed, **settings)
    if limit is None or limit >= len(whole):
        return whole
    rows = torch.randperm(len(whole), generator=generator(seed, "subset"))[:limit].sort().values.tolist()
    ids, look = [whole.ids[row] for row in rows], lambda position: whole.look(rows[position])
    return Conversations(ids, look, whole.read, lambda: digest(whole.fingerprint(), repr(tuple(rows))))


def query_settings(query: str) -> dict[str, str]:
    """Return the settings behind the question mark of a name; values are taken as they are written."""
    return {name: value for name, _, value in (part.partition("=") for part in query.split("&") if part)}


def llava_conversations(name: str, path: str, root: Path, images: str = "", only: str = "") -> Conversations:
    """Read a JSON file in LLaVA's layout: ``llava:JSON?images=DIR``, and perhaps ``&only=``, with which paths begin.

    The fingerprint is without pixels.
    """
    if not images:
        raise UserError(f"{name}: expected llava:JSONFILE?images=DIR, with the folder of the images")
    places = (Path(place).expanduser() for place in (images, path))
    folder, file = (place if place.exists() or not (root / place).exists() else root / place for place in places)
    if not folder.is_dir():
        raise UserError(f"{name}: {folder}: no such folder; expected the folder of the images")
    records = captions.read_list(file)
    if only and isinstance(records, list):
        entries = (one for one in records if isinstance(one, dict))
        records = [one for one in entries if str(one.get("image", "")).startswith(only)]
    records = _checked(records, file)
    if not records:
        clause = f" about an image whose path begins with {only!r}" if only else ""
        raise UserError(f"{name}: no conversation{clause} in {file}; expected LLaVA's layout")
    files = [record["image"] for record in records if "image" in record]
    folders.refuse_missing(name, folder, files, "download them, or keep one folder with &only=")
    if empty := [file for file in files if not (folder / file).stat().st_size]:
        raise UserError(f"{name}: {len(empty):,} of the images are empty files, the first is {empty[0]}: download them")

    def look(position: int) -> tuple[str | None, Turns]:
        image, messages = records[position].get("image"), _answered(records[position]["conversations"])
        mark = "" if image else _PLACE  # without an image it is a word like any other
        texts = (message["value"].replace(_PLACE, mark).strip() for message in messages)
        return image, tuple(zip(texts, texts, strict=True))

    ids, read = [str(record["id"]) for record in records], lambda file: decode_whole(folder / file)
    fingerprint = cache(lambda: digest("llava", *(repr(sorted(one.items())) for one in records)))
    return Conversations(ids, look, read, fingerprint)


def _checked(records: Any, path: Path) -> list[dict[str, Any]]:
    """Return a file's records with an answer."""
    if not isinstance(records, list):
        raise UserError(f"{path}: expected a list of conversations; download it again")
    for number, record in enumerate(records):
        fault, marks, image = "", [], None
        try:
            messages, image = _answered(record["conversations"]), record.get("image")
            if record["id"] is None or not isinstance(record.get("image", ""), str):
                fault = f"id {shown(record['id'])} or image {shown(image)} is not a name"
            elif [message["from"] for message in messages] != ["human", "gpt"] * (len(messages) // 2):
                fault = "the messages are not from human and gpt in turn"
            elif not all(isinstance(message["value"], str) for message in messages):
                fault = "a message has no text"
            elif image is None and (record.get("images") or record.get("video")):
                fault = "it has images or a video; expected one image, under image"
            elif image is not None:
                marks = [message["value"].count(_PLACE) for message in messages]
        except (KeyError, TypeError, AttributeError) as error:
            fault = f"{type(error).__name__}: {error}"
        if marks and marks != [1] + [0] * len(marks[1:]):
            fault = f"{_PLACE} occurs {sum(marks)} times; expected once, in the first question about an image"
        if fault:
            raise UserError(f"{path}: record {number}: {fault}; expected LLaVA's layout; download it again")
    return [record for record in records if _answered(record["conversations"])]


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out a first message of the model's, as LLaVA does, and a last question without an answer."""
    rest = messages[1:] if messages and messages[0].get("from") == "gpt" else messages
    return rest[: len(rest) // 2 * 2]


def emoji_conversations(stage: int, seed: int, root: Path) -> Conversations:
    """Return one conversation about each training scene of ``emoji-objects``; all draws depend on seed and scene.

    Stage 1: the caption. Stage 2: in a tenth, the caption is asked for; in the others, whether objects are in the
    image, some five questions. A fifth of all have the caption in place of the image. Neither an object's name nor the
    theme of the scene tells the answer: with f the share of a theme's scenes that show an object, one that shows it
    asks about it with probability min(1, (1 − f)/f), one that does not with min(1, f/(1 − f)).
    """
    scenes = emoji.emoji_objects("train", root, progress=False)
    objects = [{thing.name for thing in several} for several in scenes.objects or ()]
    themes = [mode(sorted(map(emoji.theme_of, names))) for names in objects]  # the lowest of several
    seen = Counter((theme, name) for theme, names in zip(themes, objects, strict=True) for name in names)
    counts = Counter(themes)

    def uniform(*parts: int | str) -> float:
        return (key(seed, "emoji questions", *parts) % 2**53) / 2**53

    @cache
    def look(row: int) -> tuple[int | None, Turns]:
        names, (caption,) = objects[row], scenes.captions[row]
        kind = uniform(row, "kind") if stage == 2 else 0
        questions: list[tuple[str, str]] = []
        for name in emoji.OBJECTS if kind >= _CAPTIONS else ():
            # f without the object, 1 − f with it
            share = seen[themes[row], name] / counts[themes[row]]
            share = 1 - share if name in names else share
            if uniform(row, "ask", name) * (1 - share) < share:
                questions.append((ask(name), ANSWERS[name in names]))
        if not questions:
            return row, ((ASK_CAPTION, caption),)
        (first, answer), *rest = sorted(questions, key=lambda turn: uniform(row, "order", turn[0]))
        if kind < _CAPTIONS + _TEXTS:
            return None, ((f"The image shows {caption}.\n{first}", answer), *rest)
        return row, ((first, answer), *rest)

    names = [f"{scenes.name}-{number}" for number in scenes.ids.tolist()]
    # the number rises when the same scene and seed give other turns
    fingerprint = cache(lambda: digest("emoji conversations", "2", scenes.fingerprint(), str(stage), str(seed)))
    return Conversations(names, look, scenes.pixels, fingerprint)


_SOURCES = listed_sources("conversations")
CONVERSATION_SOURCES = {name: source.description for name, source in _SOURCES.items()}
"""One-line description of each source of conversations."""
