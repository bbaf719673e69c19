"""Questions and answers about images, by name: what vision-language models are trained on."""

import inspect
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final

import torch
from jaxtyping import Float
from torch import Tensor

from antiphase.arguments import Count, Seed, validated
from antiphase.data.archives import IMAGE_SUFFIXES, members_by_key, read_index
from antiphase.data.captions import read_json
from antiphase.data.decoding import decode_whole
from antiphase.data.emoji import OBJECTS, emoji_objects, theme_of, with_article
from antiphase.data.folders import refuse_missing
from antiphase.data.pairs import ArrayPairs
from antiphase.data.shards import find_shards
from antiphase.data.sources import Source, find_named
from antiphase.errors import UserError, shown
from antiphase.files import digest
from antiphase.reading import parse_json
from antiphase.streams import generator, key

ASK = "Is there {} in the image?"
"""POPE's question, with a place for an object and its article.

POPE's program turns every "a" of the question into "an" before a vowel ("in the imange"); this is what the published
files say.
"""

ASK_CAPTION = "Provide a one-sentence caption for the provided image."
"""As in the instructions of LLaVA 1.5."""

_PLACE = "<image>"
_CAPTIONS = 0.1  # share of the conversations about emoji of stage 2 that ask for the caption
_TEXTS = 0.2  # share that has the caption in place of the image


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
    """Interface of conversations with random access; ``fingerprint`` is of all that affects training."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Conversation: ...

    def has_image(self, position: int) -> bool: ...

    def fingerprint(self) -> str: ...


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
        UserError: for an unknown source or setting, or missing or damaged data.
    """
    if stage not in (1, 2):
        raise UserError(f"stage {stage}: expected 1 (captions) or 2 (instructions)")
    plain, _, query = name.partition("?")
    source = find_named(plain, _SOURCES, "source of conversations")
    settings, parameters = query_settings(query), inspect.signature(source.function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    for setting in settings:
        if setting not in known:
            raise UserError(f"{name}: no setting {setting!r}; expected {', '.join(known) or 'none'}")
    path = plain.partition(":")[2]
    whole = source.load(name, "train", root, path=path, stage=stage, seed=seed, **settings)
    if limit is None or limit >= len(whole):
        return whole
    order = torch.randperm(len(whole), generator=generator(seed, "subset"))[:limit].sort().values
    return _Part(whole, tuple(order.tolist()))


def query_settings(query: str) -> dict[str, str]:
    """Return the settings behind the question mark of a name; values are taken as they are written.

    >>> query_settings("images=a+b&only=coco/")
    {'images': 'a+b', 'only': 'coco/'}
    """
    parts = (part.partition("=") for part in query.split("&") if part)
    return {name: value for name, _, value in parts}


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


@final
@dataclass(frozen=True, eq=False)
class LlavaRecords:
    """Conversations in LLaVA's JSON layout, with paths relative to the folder ``images``, decoded on demand."""

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
        said = [part["value"].replace(_PLACE, mark).strip() for part in _answered(record["conversations"])]
        return Conversation(str(record["id"]), image, tuple(zip(said[::2], said[1::2], strict=True)))

    def has_image(self, position: int) -> bool:
        return "image" in self.records[position]

    def fingerprint(self) -> str:
        """Return the SHA-256 of the records, without the images' pixels."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest("llava", *(repr(sorted(record.items())) for record in self.records))


def llava_conversations(
    name: str, path: str, root: Path, images: str | None = None, only: str | None = None
) -> LlavaRecords:
    """Read a JSON file in LLaVA's layout: ``llava:JSON?images=DIR``, and perhaps ``&only=``, with which paths begin."""

    def place(path: str) -> Path:
        here = Path(path).expanduser()
        return here if here.exists() or not (root / here).exists() else root / here

    if images is None:
        raise UserError(f"{name}: expected llava:JSONFILE?images=DIR, with the folder of the images")
    folder, file = place(images), place(path)
    if not folder.is_dir():
        raise UserError(f"{name}: {folder}: no such folder; expected the folder of the images")
    records = read_json(file)
    if not isinstance(records, list) or not records:
        raise UserError(f"{file}: expected a list of at least one conversation; download it again")
    if only is not None:
        records = [one for one in records if isinstance(one, dict) and str(one.get("image")).startswith(only)]
        if not records:
            raise UserError(f"{name}: no image of {file} begins with {only!r}; give a folder such as coco/")
    records = _checked(records, file, literal=True)
    if not records:
        raise UserError(f"{file}: no question has an answer; expected LLaVA's layout; download it again")
    files = [record["image"] for record in records if "image" in record]
    refuse_missing(name, folder, files, "download them, or keep one folder with &only=")
    return LlavaRecords(name, records, folder)


def _checked(records: list[Any], path: Path, *, literal: bool) -> list[dict[str, Any]]:
    """Return the records of a file with at least one answer.

    ``literal``: ``<image>`` is an ordinary word in a record without an image, as in LLaVA; or else a mistake.
    """
    for number, record in enumerate(records):
        if (reason := _fault(record, literal)) is not None:
            fix = "expected LLaVA's layout; correct or download it again"
            raise UserError(f"{path}: record {number}: {reason}; {fix}")
    return [record for record in records if _answered(record["conversations"])]


def _fault(record: Any, literal: bool) -> str | None:
    """Return what is wrong with a record; None if nothing is."""
    parts = record.get("conversations") if isinstance(record, dict) and "id" in record else None
    if not isinstance(parts, list):
        return "no id or no conversations"
    if not isinstance(record.get("image", ""), str):
        return f"image {shown(record['image'])} is not a path"
    if not all(isinstance(part, dict) for part in parts):
        return "a message is not an object"
    said = _answered(parts)
    for place, part in enumerate(said):
        speaker = ("human", "gpt")[place % 2]
        if part.get("from") != speaker:
            return f"message {place} is not from {speaker}"
        if not isinstance(part.get("value"), str):
            return f"message {place} has no text"
    marks = [part["value"].count(_PLACE) for part in said]
    has_image = "image" in record
    if said and marks != [int(has_image), *[0] * (len(said) - 1)] and (has_image or not literal):
        return f"{_PLACE} occurs {sum(marks)} times; expected once, in the first question of a record with an image"
    return None


def _answered(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out a first message of the model's, as LLaVA does, and a last question without an answer."""
    rest = parts[1:] if parts and parts[0].get("from") == "gpt" else parts
    return rest[: len(rest) // 2 * 2]


def shard_conversations(name: str, path: str, root: Path) -> LlavaRecords:
    """List conversations in tar files: KEY.json, and KEY.jpg, .png, .webp or .jpeg for one about an image.

    KEY.json is a record of LLaVA's JSON layout, or its ``conversations`` alone, as in Megatron-LM. The image is the one
    in the tar file, whatever the record calls it. The files have to be local and uncompressed.

    Source: https://github.com/NVIDIA/Megatron-LM, ``examples/multimodal/convert_llava_pretrain_to_wds.py``.
    """
    shards = find_shards(path, root)
    if remote := [shard.place for shard in shards if not shard.local]:
        raise UserError(f"{name}: {remote[0]} is remote; download it, since records are read in random order")
    paths = [Path(shard.place).resolve() for shard in shards]
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    records = [
        record for tar in paths for record in _checked(list(_members(tar, folder)), tar, literal=False)
    ]
    if not records:
        raise UserError(f"{name}: no conversations in {len(paths)} shards; expected KEY.json with KEY.jpg")
    return LlavaRecords(name, records, folder)


def _members(tar: Path, folder: Path) -> Iterator[Any]:
    """Yield the records of a shard; the path of an image is relative to ``folder`` and leads into the shard."""
    index = read_index(tar)
    with tar.open("rb") as file:
        for member, kinds in members_by_key(index).items():
            if "json" not in kinds:
                raise UserError(f"{tar}: {member} has no .json; correct or download it again")
            file.seek(index[kinds["json"]].offset)
            try:
                said = parse_json(file.read(index[kinds["json"]].size))
            except ValueError as error:
                reason = f"{member}.json is not valid JSON ({error})"
                raise UserError(f"{tar}: {reason}; correct or download it again") from None
            record = {"conversations": said} if isinstance(said, list) else said
            if isinstance(record, dict):
                record = {"id": member} | record
                record.pop("image", None)
                image = next((kinds[suffix] for suffix in IMAGE_SUFFIXES if suffix in kinds), None)
                if image is not None:
                    record["image"] = f"{tar.relative_to(folder).as_posix()}/{image}"
            yield record


@final
@dataclass(frozen=True, eq=False)
class EmojiConversations:
    """One conversation about each training scene of ``emoji-objects``.

    Stage 1: the caption. Stage 2: in a tenth, the caption is asked for; in the others, whether objects are in the
    image, some five questions, of which half are answered yes. A fifth of all conversations have the caption in place
    of the image, as LLaVA's instructions have conversations without one: a language model learns from words what the
    answers depend on.

    Neither an object's name nor the theme of the scene tells the answer. Of the scenes of a theme, let f be the share
    that show an object. One that shows it asks about it with probability min(1, (1 − f)/f), one that does not with
    min(1, f/(1 − f)), so that as many ask and answer yes as no.
    """

    scenes: ArrayPairs
    stage: int
    seed: int

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, position: int) -> Conversation:
        scenes, questions = self.scenes, self._questions(position)
        name, caption = f"{scenes.name}-{int(scenes.ids[position])}", scenes.captions[position][0]
        if not self.has_image(position):
            (first, answer), *rest = questions
            return Conversation(name, None, ((f"The image shows {caption}.\n{first}", answer), *rest))
        image = scenes.pixels(position).float() / 255
        return Conversation(name, image, tuple(questions) or ((ASK_CAPTION, caption),))

    def has_image(self, position: int) -> bool:
        return not (self._questions(position) and self._kind(position) < _CAPTIONS + _TEXTS)

    def fingerprint(self) -> str:
        # the number rises when the same scene and seed give other turns
        return digest("emoji conversations", "2", self._scenes, str(self.stage), str(self.seed))

    @cached_property
    def _scenes(self) -> str:
        return self.scenes.fingerprint()

    @cached_property
    def _objects(self) -> list[list[str]]:
        assert self.scenes.objects is not None
        return [[one.name for one in several] for several in self.scenes.objects]

    @cached_property
    def _shares(self) -> dict[int, dict[str, float]]:
        """The share of the scenes of each theme that show an object."""
        scenes: Counter[int] = Counter()
        shown_in: Counter[tuple[int, str]] = Counter()
        for names in self._objects:
            theme = _main_theme(names)
            scenes[theme] += 1
            shown_in.update((theme, name) for name in names)
        return {theme: {name: shown_in[theme, name] / scenes[theme] for name in OBJECTS} for theme in scenes}

    def _kind(self, position: int) -> float:
        """Return a number below 1 that decides what a conversation is like; 0 in stage 1."""
        return self._uniform(int(self.scenes.ids[position]), "kind") if self.stage == 2 else 0.0

    def _questions(self, position: int) -> list[tuple[str, str]]:
        """Return the questions about a scene, if any; all they draw depends on the seed and the scene's number."""
        if self._kind(position) < _CAPTIONS:
            return []
        there, number = self._objects[position], int(self.scenes.ids[position])
        shares = self._shares[_main_theme(there)]
        turns = []
        for name in OBJECTS:
            # s = f without the object and 1 − f with it: ask with probability min(1, s/(1 − s))
            share = shares[name] if name not in there else 1 - shares[name]
            if self._uniform(number, "ask", name) * (1 - share) < share:
                turns.append((ASK.format(with_article(name)), "Yes" if name in there else "No"))
        return sorted(turns, key=lambda turn: self._uniform(number, "order", turn[0]))

    def _uniform(self, number: int, *what: str) -> float:
        return (key(self.seed, "emoji questions", number, *what) % 2**53) / 2**53


def emoji_conversations(stage: int, seed: int, root: Path) -> EmojiConversations:
    """Return the conversations about the 6,000 training scenes; drawings are cached below the data folder."""
    return EmojiConversations(emoji_objects("train", root, progress=False), stage, seed)


def _main_theme(names: list[str]) -> int:
    """Return the theme of most of the objects, the lowest if there are several."""
    themes = Counter(map(theme_of, names))
    return min(themes, key=lambda theme: (-themes[theme], theme))


_SOURCES = {
    "emoji-objects": Source(
        "6,000 scenes of two to four objects: captions for stage 1, balanced yes/no questions for stage 2",
        emoji_conversations,
    ),
    "llava:JSON": Source(
        "conversations in LLaVA's JSON layout, with ?images=DIR, such as "
        "llava:llava_v1_5_mix665k.json?images=data; &only=coco/ keeps those with an image in that folder",
        llava_conversations,
    ),
    "shards:PATTERN": Source(
        "tar files with KEY.json, a record of LLaVA's layout, and its image KEY.jpg", shard_conversations
    ),
}

CONVERSATION_SOURCES: dict[str, str] = {name: source.description for name, source in _SOURCES.items()}
"""One-line description of each source of conversations."""
