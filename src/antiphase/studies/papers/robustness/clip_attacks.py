"""Shared by Figures 2(b) and 2(d): CLIP and DiffCLIP as classifiers, attacked via the cosine to their prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.data.sources import source_of
from antiphase.models.zeroshot import PAPER_TEMPLATE
from antiphase.studies.cells import Accuracy, Attack, Given, TrainClip
from antiphase.studies.estimation import CORRECT, estimates
from antiphase.studies.figures import Table
from antiphase.studies.papers.diffclip.bench import settings as diffclip_settings
from antiphase.studies.papers.diffclip.released import listed
from antiphase.studies.papers.robustness.bench import attacks_said, bench, pgd_said
from antiphase.studies.papers.robustness.clip_bench import clip_models
from antiphase.studies.papers.robustness.show import table_of
from antiphase.studies.scale import IN_SHORT, titled
from antiphase.studies.spec import Cell, Profile

MANY_CLASSES = "imagenet"
"""The set on which the paper finds the two models nearly alike."""

_DATA = {"paper": ("coco", MANY_CLASSES), "laptop": ("openmoji",), "smoke": ("openmoji",)}
_IMAGES = {"paper": 1000, "laptop": 200, "smoke": 8}


def lineup(profile: Profile) -> list[tuple[TrainClip | Given, str]]:
    """Return pairs of a model and a data set to attack it on."""
    return [(model, data) for model in clip_models(profile) for data in _DATA[profile.name]]


def clip_attack(
    profile: Profile,
    model: TrainClip | Given,
    data: str,
    eps: Sequence[float],
    attack: str = "pgd",
    seed: int = 0,
    **settings: Any,
) -> Attack:
    """Return an attack on the cosine, with the paper's prompts or, on a laptop, those of the emoji set."""
    chosen = {"objective": "cosine", **bench(profile).pgd, **settings}
    return Attack(
        model=model,
        data=data,
        eps=tuple(eps),
        limit=_IMAGES[profile.name],
        attack=attack,
        settings=chosen,
        prompt=_prompt(profile),
        seed=seed,
    )


def _prompt(profile: Profile) -> str | None:
    return None if profile.name == "laptop" else PAPER_TEMPLATE


def clip_accuracy(profile: Profile) -> list[Cell]:
    """Return the predictions of every model on clean images."""
    return [Accuracy(model=model, data=data, limit=_IMAGES[profile.name]) for model, data in lineup(profile)]


def few_classes(names: Sequence[str]) -> str:
    """Name the sets of few classes, for a statement.

    >>> few_classes(["openmoji", "imagenet"])
    "On a set of few classes (OpenMoji's drawings, 9),"
    """
    few = [f"{titled(name)}, {source_of(name).classes}" for name in names if name != MANY_CLASSES]
    return f"On a set of few classes ({'; '.join(few)}),"


def accuracy_table(rows: pl.DataFrame, name: str) -> Table:
    """Return the clean accuracy of every model on every set."""
    found = estimates(rows, ["series", "data"], CORRECT)
    return table_of(found, pl.col("series"), pl.col("data"), name, "Clean accuracy, zero-shot")


def settings(profile: Profile) -> Mapping[str, str]:
    """Return the settings shown on the page."""
    trained = diffclip_settings(profile)
    given = [one for one in clip_models(profile) if isinstance(one, Given)]
    own = {name: trained[name] for name in ("trained on", "model", "training", IN_SHORT) if name in trained}
    return {
        "data": ", ".join(_DATA[profile.name]),
        **({"models": listed(given)} if given else own),
        "prompts": _prompt(profile) or "the emoji's own: the names of each group's",
        "objective": "cosine to the prompt of the attacked label",
        "images": f"{_IMAGES[profile.name]}",
        "PGD": pgd_said(bench(profile)),
        "attacked label": "clean prediction",
        "verdicts": "float32",
        **attacks_said(),
    }
