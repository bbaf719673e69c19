"""Prompt ensembles, by name or from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from antiphase.arguments import NOT_EMPTY, validated
from antiphase.data.imagenets import class_words
from antiphase.errors import UserError

OWN = "own"
ENSEMBLES = {
    OWN: "the texts that the data come with, where they do",
    "80": "OpenAI's 80 templates for ImageNet, as CLIP_benchmark and open_clip use them",
    "7": "the seven of them that SLIP uses",
    "1": "'a photo of a {}.'",
}
"""Name of each ensemble and what it is; a file with a template a line is another."""

_SINGLE = "a photo of a {}."


@validated
def class_prompts(
    ensemble: str, class_names: Annotated[Sequence[str], NOT_EMPTY], own: Sequence[Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    """Return every text of each class.

    Sources: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021,
    Section 3.1.4 and their notebook; N. Mu et al., *SLIP*, ECCV 2022.

    Args:
        ensemble: one of ``ENSEMBLES``, templates with ``{}``, one per line, or a file of templates.
        class_names: names to insert into the templates, as words (:func:`~antiphase.data.imagenets.class_words`).
        own: texts of the data set for each class.

    Raises:
        UserError: The ensemble is unknown, a template has no ``{}``, or the data set has no texts.

    >>> class_prompts("an emoji of {}", ["mug"], None)
    (('an emoji of mug',),)
    """
    if ensemble == OWN:
        if own is None:
            raise UserError("templates own: the data set has no texts; expected 80, 7, 1 or a file")
        return tuple(tuple(texts) for texts in own)
    class_names = class_words(class_names)
    if ensemble in ENSEMBLES:
        return tuple(tuple(_named(ensemble, name)) for name in class_names)
    lines = _checked(ensemble.splitlines(), "--prompt") if "{}" in ensemble else _read(ensemble)
    return tuple(tuple(line.replace("{}", name) for line in lines) for name in class_names)


def _named(ensemble: str, name: str) -> list[str]:
    if ensemble == "1":
        return [_SINGLE.replace("{}", name)]
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES  # seconds

    templates = {"80": OPENAI_IMAGENET_TEMPLATES, "7": SIMPLE_IMAGENET_TEMPLATES}[ensemble]
    return [template(name) for template in templates]


def _read(name: str) -> list[str]:
    path = Path(name).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        known = ", ".join(ENSEMBLES)
        raise UserError(
            f"templates {name!r}: expected one of {known}, a template with {{}}, or a readable file"
        ) from None
    if not lines:
        raise UserError(
            f"{path} has no templates: expected one per line, with {{}} in place of the class name"
        )
    return _checked(lines, str(path))


def _checked(lines: list[str], source: str) -> list[str]:
    for number, line in enumerate(lines, 1):
        if "{}" not in line:
            raise UserError(
                f"{source}: template {number}, {line!r}: expected {{}} in place of the class name"
            )
    return lines
