"""Match the classes of a data set to the outputs of a model by name, not only by alphabetical order."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from antiphase.data import ImageSet
from antiphase.data.image_sets import CLASSES, WNID, prompt_names, published_wnids
from antiphase.errors import UserError
from antiphase.models.card import ModelCard

_NAMELESS = ("wds:", "npz:", "parquet:", "array", "dataset:")  # sources that may lack class names
_HOW = "use --classes FILE with the folder names in the order of the model's outputs"


def in_model_order(cards: Sequence[ModelCard], data: ImageSet, fix: str = _HOW) -> tuple[ImageSet, list[str]]:
    """Return the images with each label replaced by the index of the model's output, and warnings.

    A class is matched by name, letters and digits, WordNet id or synonym; the data may have some of the classes.
    """
    if data.name == "random":  # its labels are noise
        return data, []
    warnings: list[str] = []
    orders = {card.spec: _order(card, data, warnings, fix) for card in cards}
    first, order = next(iter(orders.items()))
    if other := next((spec for spec in orders if orders[spec] != order), None):
        raise UserError(f"{first} and {other} order the classes of {data.name} differently; take one")
    class_names = next((card.class_names for card in cards if card.class_names), data.class_names)
    if class_names == data.class_names:
        return data, warnings
    names = [name or str(output) for output, name in enumerate(class_names)]
    for output, name in zip(order, data.class_names, strict=True):
        names[output] = name
    labels = data.labels.new_tensor(order)[data.labels]
    return replace(data, labels=labels, class_names=tuple(names), prompts=None), warnings


def read_class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """Read class names from a UTF-8 file, one line per model output; a blank line is an output without a name."""
    try:
        names = tuple(map(str.strip, path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--classes {path}: cannot be read ({reason}); expected a UTF-8 text file") from None
    if len(names) != num_classes:
        fix = f"expected {num_classes}: one per model output, blank if the data lack that class"
        raise UserError(f"--classes {path}: {len(names)} lines, {fix}")
    if repeated := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
        raise UserError(f"--classes {path}: duplicate name {repeated[0]!r}; expected each name once")
    return names


def _order(card: ModelCard, data: ImageSet, warnings: list[str], fix: str) -> tuple[int, ...]:
    spec, count = card.spec, len(data.class_names)
    numbers = tuple(range(count))
    trained_on_it = card.class_names is None and (card.recipe or {}).get("data") == data.name
    if trained_on_it or card.class_names == data.class_names:
        return numbers
    if data.name.startswith(_NAMELESS) and data.class_names == tuple(map(str, numbers)):
        if count > card.classes:
            has = f"labels up to {count - 1} without class names"
            raise UserError(f"{data.name} has {has}, but {spec} has {card.classes} classes")
        warnings.append(f"{data.name} has no class names: its numbers are taken for outputs of {spec}")
        return numbers
    if card.class_names is not None:
        return _matched(spec, card.class_names, data, fix)
    listed = _listed(data.class_names)
    if count != card.classes:
        has = f"has {card.classes} classes and does not store their names"
        raise UserError(f"{spec} {has}, but {data.name} has {count} ({listed}); {fix}")
    assumed = f"assuming the order of {data.name} ({listed}); if the model orders them differently, {fix}"
    warnings.append(f"{spec} does not store the names of its {count} classes: {assumed}")
    return numbers


def _matched(spec: str, class_names: tuple[str, ...], data: ImageSet, fix: str) -> tuple[int, ...]:
    exact = _unique((name, output) for output, name in enumerate(class_names))
    distinct = len(set(data.class_names)) == len(data.class_names)
    if distinct and all(name in exact for name in data.class_names):  # common case: no synonym list to load
        return tuple(exact[name] for name in data.class_names)
    loose: dict[str, int] = {}
    for naming in _namings(class_names):
        exact = _unique(naming) | exact
        loose = _unique((_letters(name), output) for name, output in naming) | loose
    sought = published_wnids(data.name, len(data.class_names)) or data.class_names
    order: dict[int, str] = {}  # output to the data's class
    for name, wnid in zip(data.class_names, sought, strict=True):
        if (output := exact.get(wnid, exact.get(name, loose.get(_letters(name))))) is None:
            training = "; for others train it with antiphase train --new-head" if fix is _HOW else ""
            known = f"expected one of the classes of {spec} ({_listed(class_names)})"
            raise UserError(f"class {name!r} of {data.name}: {known}; rename it, or {fix}{training}")
        if output in order:
            both = f"classes {order[output]!r} and {name!r} of {data.name}"
            raise UserError(f"{both} both match {class_names[output]!r} of {spec}; merge or rename them")
        order[output] = name
    return tuple(order)


def _namings(class_names: tuple[str, ...]) -> list[list[tuple[str, int]]]:
    names = [(name, output) for output, name in enumerate(class_names) if name]
    prompted = prompt_names()
    if all(map(WNID.fullmatch, class_names)):
        wnids = class_names
    elif len(class_names) == CLASSES and class_names == tuple(prompted.values()):
        wnids = tuple(prompted)
    else:
        return [names]
    from timm.data.imagenet_info import ImageNetInfo

    describe, numbered = ImageNetInfo().label_name_to_description, [(wnid, o) for o, wnid in enumerate(wnids)]
    prompts = [(prompted[wnid], output) for wnid, output in numbered if wnid in prompted]
    synonyms = [(one.strip(), output) for wnid, output in numbered for one in describe(wnid).split(",")]
    return [numbered, names, prompts, synonyms]


def _unique(naming: Iterable[tuple[str, int]]) -> dict[str, int]:
    pairs = set(naming)
    counts = Counter(name for name, _ in pairs)
    return {name: output for name, output in pairs if name and counts[name] == 1}


def _letters(name: str) -> str:
    composed = unicodedata.normalize("NFC", name).casefold()
    return re.sub(r"_|[^\w+#.]|(?<!\d)\.|\.(?!\d)", "", composed)  # C is not C++, nor 15 1.5


def _listed(names: Sequence[str]) -> str:
    named = list(filter(None, names))
    return ", ".join(named[:10]) + f", … ({len(named)} in all)" * (len(named) > 10)
