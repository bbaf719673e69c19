"""Which output of a model each class of a data set is: matched by name, never by alphabetical order alone."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from antiphase.data import ImageSet
from antiphase.data.imagenets import CLASSES, prompt_names, published_wnids
from antiphase.errors import UserError
from antiphase.models.card import ModelCard

_WNID = re.compile(r"n\d{8}")
_HOW = "give the folder names in the order of the model's outputs with --classes FILE"


def in_model_order(cards: Sequence[ModelCard], data: ImageSet) -> tuple[ImageSet, list[str]]:
    """Return the images with each label replaced by the model's output for that class, and warnings.

    A class is matched by its exact name, else by its letters and digits in any case; ImageNet's classes also by
    their WordNet ids and synonyms. The data may have a part of the model's classes only.

    Args:
        cards: of the classifiers, one or more, that are measured on the images.
        data: images, labelled by the order of their own classes.

    Raises:
        UserError: a class has no match, a model without class names has another number of them, or the models order
            the classes differently.
    """
    if data.name == "random":  # its labels mean nothing
        return data, []
    warnings: list[str] = []
    orders = {card.spec: _order(card, data, warnings) for card in cards}
    first = next(iter(orders))
    for spec, order in orders.items():
        if order != orders[first]:
            raise UserError(
                f"{first} and {spec} order the classes of {data.name} differently; measure them one by one"
            )
    return _relabelled(
        data, orders[first], next((c.class_names for c in cards if c.class_names), None)
    ), warnings


def read_class_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """Return the names in a text file: one a line, in the order of the model's outputs, a blank line for none.

    Args:
        path: the file.
        num_classes: how many outputs the model has, so many lines are expected.

    Raises:
        UserError: it cannot be read, has another number of lines, or a name twice.
    """
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--classes {path}: cannot be read ({reason}); expected a text file") from None
    if len(names) != num_classes:
        raise UserError(
            f"--classes {path}: {len(names)} lines, expected {num_classes}: one for each output of the model, blank "
            "where the data lack that class"
        )
    twice = next((name for name, count in Counter(filter(None, names)).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"--classes {path}: {twice!r} is there twice; expected each name once")
    return names


def _order(card: ModelCard, data: ImageSet, warnings: list[str]) -> tuple[int, ...]:
    """Return the model's output for each class of the data."""
    numbers = tuple(range(len(data.class_names)))
    if card.class_names == data.class_names or (
        card.class_names is None and (card.recipe or {}).get("data") == data.name
    ):
        return numbers
    numbered = data.name.startswith("wds:") and data.class_names == tuple(map(str, numbers))
    if card.class_names is not None and not numbered:
        return _matched(card.spec, card.class_names, data)
    if numbered and len(numbers) <= card.num_classes:
        warnings.append(
            f"{data.name} has no class names: its numbers are taken as the outputs of {card.spec}"
        )
    elif len(numbers) == card.num_classes:
        warnings.append(
            f"{card.spec} does not store the names of its {card.num_classes} classes: those of {data.name} are taken "
            f"in sorted order ({_listed(data.class_names)}); if the model's order is another, {_HOW}"
        )
    else:
        raise UserError(
            f"{card.spec} has {card.num_classes} classes and does not store their names, {data.name} has "
            f"{len(numbers)} ({_listed(data.class_names)}): {_HOW}"
        )
    return numbers


def _matched(spec: str, class_names: tuple[str, ...], data: ImageSet) -> tuple[int, ...]:
    exact = _unique((name, output) for output, name in enumerate(class_names))
    distinct = len(set(data.class_names)) == len(data.class_names)
    if distinct and all(name in exact for name in data.class_names):  # usual, and needs no list of synonyms
        return tuple(exact[name] for name in data.class_names)
    loose: dict[str, int] = {}
    for naming in _namings(class_names):
        exact = _unique(naming) | exact
        loose = _unique((_letters(name), output) for name, output in naming) | loose
    sought = published_wnids(data.name, len(data.class_names)) or data.class_names
    order: list[int] = []
    for name, own in zip(data.class_names, sought, strict=True):
        output = exact.get(own, exact.get(name, loose.get(_letters(name))))
        if output is None:
            raise UserError(
                f"class {name!r} of {data.name} is not one of {spec}'s, {_listed(class_names)}: rename it, or {_HOW}"
            )
        if output in order:
            other = data.class_names[order.index(output)]
            raise UserError(
                f"classes {other!r} and {name!r} of {data.name} are both {spec}'s {class_names[output]!r}: join or "
                "rename them"
            )
        order.append(output)
    return tuple(order)


def _namings(class_names: tuple[str, ...]) -> list[list[tuple[str, int]]]:
    """Return lists of names with their outputs: the model's own, then what WordNet ids are also called."""
    own = [(name, output) for output, name in enumerate(class_names) if name]
    wnids = _wnids(class_names)
    if not wnids:
        return [own]
    from timm.data.imagenet_info import ImageNetInfo

    prompted, info = prompt_names(), ImageNetInfo()
    synonyms = [
        (synonym.strip(), output)
        for output, wnid in enumerate(wnids)
        for synonym in info.label_name_to_description(wnid).split(",")
    ]
    prompts = [(prompted[wnid], output) for output, wnid in enumerate(wnids) if wnid in prompted]
    return [[(wnid, output) for output, wnid in enumerate(wnids)], own, prompts, synonyms]


def _wnids(class_names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the classes' WordNet ids, where they are named by them or are ImageNet's own 1,000."""
    if all(map(_WNID.fullmatch, class_names)):
        return class_names
    if len(class_names) == CLASSES and class_names == tuple(prompt_names().values()):
        return tuple(prompt_names())
    return None


def _unique(naming: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the names that stand for one output alone."""
    found: dict[str, set[int]] = {}
    for name, output in naming:
        found.setdefault(name, set()).add(output)
    return {name: next(iter(outputs)) for name, outputs in found.items() if name and len(outputs) == 1}


def _letters(name: str) -> str:
    """Return what is compared where names are not equal.

    >>> _letters("T-shirt/top") == _letters("t_shirt TOP")
    True
    """
    return "".join(filter(str.isalnum, name.casefold()))


def _listed(names: Sequence[str]) -> str:
    """Return the first few names."""
    shown = [name for name in names if name]
    return ", ".join(shown[:10]) + (f", … ({len(shown)} in all)" if len(shown) > 10 else "")


def _relabelled(data: ImageSet, order: tuple[int, ...], class_names: tuple[str, ...] | None) -> ImageSet:
    if class_names is None or class_names == data.class_names:
        return data
    names = [name or str(output) for output, name in enumerate(class_names)]
    for output, name in zip(order, data.class_names, strict=True):
        names[output] = name
    labels = data.labels.new_tensor(order)[data.labels]
    return replace(data, labels=labels, class_names=tuple(names), prompts=None)
