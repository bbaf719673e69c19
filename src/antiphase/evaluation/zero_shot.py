"""Prompt ensembles, by name or from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, validated
from antiphase.data.expected_counts import IMAGENET_SETS
from antiphase.data.imagenets import class_words
from antiphase.errors import UserError
from antiphase.evaluation.metrics import (
    Metric,
    accuracies,
    accuracy_stands_for,
    classification_rows,
    observed,
)
from antiphase.evaluation.tasks.task import (
    EvaluationTask,
    Features,
    Groups,
    Protocol,
    Source,
    has_labels,
    labelled,
)
from antiphase.files import digest

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


_TOP = 5


def _ensembles(source: Source, protocol: Protocol) -> tuple[str, ...]:
    test, _ = labelled(source.test)
    return protocol.templates or ((OWN,) if test.prompts is not None else ("80", "7"))


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    test, labels = labelled(source.test)
    images = store.project(model, store.image_features(model, test))
    found = []
    for name in _ensembles(source, protocol):
        prompts = class_prompts(name, test.class_names, test.prompts)
        classes = store.class_vectors(model, prompts, f"{name} prompts of {test.name}")
        found.append(zero_shot_rows(images, classes, labels, test.ids, name))
    return pl.concat(found)


def _prompts(source: Source, protocol: Protocol) -> dict[str, Any]:
    test, _ = labelled(source.test)
    return {
        "prompts": {
            name: digest(*map("\x1f".join, class_prompts(name, test.class_names, test.prompts)))
            for name in _ensembles(source, protocol)
        }
    }


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    first, per_class = accuracies(setting, rows)
    if rows["group"].n_unique() <= _TOP:
        return [first, per_class]
    return [first, Metric(setting, f"top-{_TOP}", observed(rows, pl.col("rank") < _TOP)), per_class]


def _heading(setting: str, metric: str) -> str:
    """Name a number by its prompts, of which several templates are named by the first.

    >>> _heading("80", "top-1"), _heading("an emoji of {}", "top-1")
    ('80 prompts, top-1', '“an emoji of {}” prompts, top-1')
    """
    first, _, rest = setting.partition("\n")
    short = f"“{first}”" + (" and others" if rest else "") if "{}" in setting else setting
    return f"{short} prompts, {metric}"


_ROWS = 4096  # images whose scores are held at a time


def zero_shot_rows(
    images: Float[Tensor, "n embed"],
    classes: Float[Tensor, "embed classes"],
    labels: Int64[Tensor, " n"],
    ids: Int64[Tensor, " n"],
    setting: str = "",
) -> pl.DataFrame:
    """Return a row for each image, classified by the cosines of unit vectors."""
    parts = zip(images.split(_ROWS), labels.split(_ROWS), ids.split(_ROWS), strict=True)
    return pl.concat([classification_rows(some @ classes, label, own, setting) for some, label, own in parts])


TASK = EvaluationTask(
    name="zero-shot",
    title="Zero-shot",
    summary="classification by the cosine to class prompts",
    notes="An image belongs to the class whose mean prompt vector is nearest. Per class is the mean over the "
    "classes’ accuracies, each of which counts alike.",
    serves=has_labels,
    measure=_measure,
    metrics=_metrics,
    heading=_heading,
    stands_for=accuracy_stands_for,
    resolved=_prompts,
    resolves=("templates",),
    reads_text=True,
    paper_data=IMAGENET_SETS,
)
