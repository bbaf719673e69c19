"""Scenes of two to four common objects with a caption and exact labels: a substitute for COCO that needs no download.

The objects are drawings of OpenMoji (see :mod:`antiphase.data.openmoji`). They belong to eight themes, and objects of
one theme occur together more often than by chance, as on photographs; the first objects of a theme are also the most
frequent ones. So POPE's popular and adversarial sampling find something to choose.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from antiphase.data.emoji_scenes import on_white
from antiphase.data.folders import choose_split
from antiphase.data.objects import ImageObjects, run_lengths
from antiphase.data.openmoji import SIZE, openmoji_pairs
from antiphase.data.pairs import ArrayPairs
from antiphase.streams import key, sample_keys, uniform

NAME = "emoji-objects"
SCENES = {"train": 6000, "test": 1000}

# by theme: common name, and the name of the drawing where it is another
_THEMES: tuple[dict[str, str], ...] = (
    {"cow": "", "horse": "", "pig": "", "rooster": "", "tractor": ""},
    {"dog": "", "cat": "", "chair": "", "bed": "", "television": ""},
    {"fish": "", "boat": "sailboat", "crab": "", "octopus": "", "anchor": ""},
    {
        "car": "automobile",
        "bicycle": "",
        "bus": "",
        "motorcycle": "",
        "traffic light": "vertical traffic light",
    },
    {"apple": "red apple", "banana": "", "lemon": "", "strawberry": "", "pineapple": ""},
    {"guitar": "", "drum": "", "violin": "", "trumpet": "", "microphone": ""},
    {"laptop": "", "clock": "alarm clock", "pencil": "", "telephone": "", "key": ""},
    {"tree": "deciduous tree", "owl": "", "bear": "", "fox": "", "mushroom": ""},
)
OBJECTS: tuple[str, ...] = tuple(name for theme in _THEMES for name in theme)
"""What can be seen, by theme."""

_SHARES = (0.34, 0.24, 0.18, 0.14, 0.10)  # of the objects of a theme, the first most frequent
_BOUNDS = (0.2, 0.6)  # of a uniform number: two objects below the first, three below the second, else four
_TOGETHER = 0.7  # probability that an object comes from the theme of the first
_SIZES = (26, 28, 30, 32)  # sides in pixels
_CELL = SIZE // 2
_DRAWS = 40  # numbers of a scene


@dataclass(frozen=True)
class _Placed:
    """One object of a scene: its name, the variant of its drawing and its upper left corner."""

    name: str
    size: int
    flipped: bool
    top: int
    left: int


def emoji_objects(split: str, root: Path | None = None, progress: bool = True) -> ArrayPairs:
    """Return scenes of 64 × 64 pixels, each with two to four different objects of ``OBJECTS`` on white.

    Each object fills 26 to 32 pixels of its own quarter and may be mirrored. The caption names the objects in reading
    order, and ``objects`` holds their names and masks in the same order. A scene depends only on its split and its id.

    Args:
        split: ``"train"`` (6,000 scenes) or ``"test"`` (1,000).
        root: data folder, where the rendered drawings are cached.
        progress: show a progress bar on stderr during rendering.

    Raises:
        UserError: if a package is missing, or the split does not exist.
    """
    choose_split(NAME, split, tuple(SCENES))
    return _made(split, root, progress)


@lru_cache(maxsize=2)
def _made(split: str, root: Path | None, progress: bool) -> ArrayPairs:
    """Draw all scenes of a split; it takes seconds, so they are kept."""
    ids = torch.arange(SCENES[split])
    draws = uniform(sample_keys(key(NAME, split), ids), _DRAWS).double().numpy()
    scenes = [_scene(row) for row in draws]
    drawings = _drawings(root, progress)
    array = np.full((len(scenes), 3, SIZE, SIZE), 255, np.uint8)
    objects = []
    for image, scene in zip(array, scenes, strict=True):
        seen = []
        for one in scene:
            pixels, shape = drawings.of(one)
            place = slice(one.top, one.top + one.size), slice(one.left, one.left + one.size)
            image[:, *place] = pixels
            mask = np.zeros((SIZE, SIZE), bool)
            mask[place] = shape
            seen.append(ImageObjects(one.name, (run_lengths(mask),), SIZE, SIZE))
        objects.append(tuple(seen))
    captions = tuple((caption_of([one.name for one in scene]),) for scene in scenes)
    return ArrayPairs(
        name=NAME,
        split=split,
        ids=ids,
        captions=captions,
        array=torch.from_numpy(array),
        objects=tuple(objects),
    )


@dataclass(frozen=True)
class _Drawings:
    """The objects' drawings at the sizes of the scenes, each made once."""

    whole: dict[str, UInt8[Tensor, "3 64 64"]]
    made: dict[tuple[str, int, bool], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def of(self, one: _Placed) -> tuple[UInt8[np.ndarray, "3 side side"], Bool[np.ndarray, "side side"]]:
        """Return pixels and mask of an object."""
        variant = (one.name, one.size, one.flipped)
        if variant not in self.made:
            drawing = self.whole[one.name].float()[None]
            small = F.interpolate(drawing, (one.size, one.size), mode="bilinear", antialias=True)[0]
            small = small.round().to(torch.uint8)
            small = small.flip(-1) if one.flipped else small
            self.made[variant] = small.numpy(), on_white(small)
        return self.made[variant]


def _drawings(root: Path | None, progress: bool) -> _Drawings:
    """Read the objects from both splits of OpenMoji: here the scenes are split, not the objects."""
    names = {drawing or name: name for theme in _THEMES for name, drawing in theme.items()}
    found = {}
    for split in ("train", "test"):
        emoji = openmoji_pairs(split, root, progress)
        for row, (name, *_) in enumerate(emoji.captions):
            if name in names:
                found[names[name]] = emoji.pixels(row)
    return _Drawings(found)


def theme_of(name: str) -> int:
    """Return the number of the theme of an object.

    >>> theme_of("pig") == theme_of("tractor") != theme_of("dog")
    True
    """
    return next(number for number, theme in enumerate(_THEMES) if name in theme)


def caption_of(names: list[str]) -> str:
    """Return the caption of a scene.

    >>> caption_of(["owl", "fish", "car"])
    'an owl, a fish and a car'
    """
    *first, last = map(with_article, names)
    return f"{', '.join(first)} and {last}" if first else last


def _scene(draws: Float[np.ndarray, " draws"]) -> list[_Placed]:
    """Return the objects of a scene in reading order."""
    numbers = iter(draws[:-4].tolist())
    count = 2 + int(np.searchsorted(_BOUNDS, next(numbers), side="right"))
    theme = int(next(numbers) * len(_THEMES))
    names: list[str] = []
    while len(names) < count:
        same = not names or next(numbers) < _TOGETHER
        chosen = _THEMES[theme if same else int(next(numbers) * len(_THEMES))]
        left = [(name, share) for name, share in zip(chosen, _SHARES, strict=True) if name not in names]
        names.append(_pick(left, next(numbers)))
    cells = np.argsort(draws[-4:])[:count]  # quarters of the image
    placed = []
    for cell, name in sorted(zip(cells.tolist(), names, strict=True)):
        size = _SIZES[int(next(numbers) * len(_SIZES))]
        room = _CELL - size + 1
        top, left_ = (int(next(numbers) * room) + _CELL * at for at in divmod(cell, 2))
        placed.append(_Placed(name, size, next(numbers) < 0.5, top, left_))
    return placed


def _pick(among: list[tuple[str, float]], number: float) -> str:
    """Return one of several by their shares, which need not sum to 1."""
    bounds = np.cumsum([share for _, share in among])
    return among[int(np.searchsorted(bounds, number * bounds[-1], side="right"))][0]


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article, chosen by its first letter as in POPE.

    >>> with_article("owl"), with_article("fish")
    ('an owl', 'a fish')
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
