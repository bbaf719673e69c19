"""Zero-shot classification by class prompts, from an ensemble of templates or the data's own."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, validated
from antiphase.data.image_sets import class_words
from antiphase.data.sources import IMAGENET_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, Numbers, accuracies, accuracy_stands_for, classification_rows
from antiphase.evaluation.tasks import Groups, Protocol, Source, has_labels, labelled, make_task
from antiphase.files import digest, read_text

Vectors = Float[Tensor, "n embed"]
OWN = "own"
ENSEMBLES = (OWN, "80", "7", "1")
"""The data's own texts, OpenAI's 80 templates for ImageNet, SLIP's seven of them, and ``'a photo of a {}.'``."""

_ROWS = 4096  # images whose scores are held at a time
_TOP = 5


@validated
def class_prompts(
    ensemble: str, class_names: Annotated[Sequence[str], NOT_EMPTY], own: Sequence[Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    """Return every text of each class.

    ``ensemble`` is one of ``ENSEMBLES``, templates with ``{}``, one per line, or a file of templates, into which the
    names go as words. ``own``: texts of the data set for each class. Sources: A. Radford et al., *Learning Transferable
    Visual Models From Natural Language Supervision*, 2021, Section 3.1.4 and notebook; N. Mu et al., *SLIP*, ECCV 2022.
    """
    if ensemble == OWN:
        if own is None:
            raise UserError("templates own: the data set has no texts; expected 80, 7, 1 or a file")
        return tuple(tuple(texts) for texts in own)
    if ensemble in ("80", "7"):
        from open_clip import zero_shot_metadata as known  # seconds

        templates = known.OPENAI_IMAGENET_TEMPLATES if ensemble == "80" else known.SIMPLE_IMAGENET_TEMPLATES
        return tuple(tuple(template(name) for template in templates) for name in class_words(class_names))
    lines = ["a photo of a {}."] if ensemble == "1" else _templates(ensemble)
    return tuple(tuple(line.replace("{}", name) for line in lines) for name in class_words(class_names))


def _templates(ensemble: str) -> list[str]:
    origin, lines = "--prompt", ensemble.splitlines()
    if "{}" not in ensemble:
        origin = Path(ensemble).expanduser()
        try:
            lines = list(filter(None, map(str.strip, read_text(origin).splitlines())))
        except UserError:
            expected = f"expected one of {', '.join(ENSEMBLES)}, a template with {{}}, or a readable file"
            raise UserError(f"templates {ensemble!r}: {expected}") from None
    if not lines:
        raise UserError(f"{origin} has no templates: expected one per line, with {{}} for the class name")
    if odd := [line for line in lines if "{}" not in line or re.match(r"""\[?\s*(['"]).*\1""", line)]:
        where = f"template {lines.index(odd[0]) + 1}, {odd[0]!r}"
        raise UserError(f"{origin}: {where}: expected plain text, without quotes, with {{}} for the class name")
    return lines


def zero_shot_rows(
    images: Vectors, classes: Float[Tensor, "embed classes"], labels: Numbers, ids: Numbers, setting: str = ""
) -> pl.DataFrame:
    """Return a row for each image, classified by the cosines of unit vectors."""
    parts = zip(images.split(_ROWS), labels.split(_ROWS), ids.split(_ROWS), strict=True)
    return pl.concat([classification_rows(part @ classes, *about, setting) for part, *about in parts])  # pyright: ignore


def _ensembles(source: Source, protocol: Protocol) -> dict[str, tuple[tuple[str, ...], ...]]:
    test, _ = labelled(source.test)
    names = protocol.templates or ((OWN,) if test.prompts is not None else ("80", "7"))
    return {name: class_prompts(name, test.class_names, test.prompts) for name in names}


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    test, labels = labelled(source.test)
    images = store.project(model, store.image_features(model, test))
    blocks = []
    for name, prompts in _ensembles(source, protocol).items():
        classes = store.class_vectors(model, prompts, f"{name} prompts of {test.name}")
        blocks.append(zero_shot_rows(images, classes, labels, test.ids, name))
    return pl.concat(blocks)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    return accuracies(setting, rows, (1, _TOP) if rows["group"].n_unique() > _TOP else (1,), groups or ())


def _heading(setting: str, metric: str) -> str:
    """Name a number by its prompts, of which several templates are named by the first."""
    first, _, rest = setting.partition("\n")
    short = f"“{first}”" + (" and others" if rest else "") if "{}" in setting else setting
    return f"{short} prompts, {metric}"


TASK = make_task(
    "zero-shot",
    serves=has_labels,
    measure=_measure,
    metrics=_metrics,
    heading=_heading,
    stands_for=accuracy_stands_for,
    resolved=lambda source, protocol: {
        "prompts": {name: digest(*map("\x1f".join, texts)) for name, texts in _ensembles(source, protocol).items()}
    },
    paper_data=IMAGENET_SETS,
)
