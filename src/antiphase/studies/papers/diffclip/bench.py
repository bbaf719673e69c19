"""Models, data sets and protocols shared by the studies of the DiffCLIP paper, for each profile.

With ``--models`` trained checkpoints are measured in place of trainings, such as the authors' pair (``--models
released``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphase.data.shards import TITLES
from antiphase.studies.cells.evaluate import Evaluate
from antiphase.studies.cells.models import Given
from antiphase.studies.cells.relevance import Relevance
from antiphase.studies.cells.training import TrainClip
from antiphase.studies.papers.declarations import Paper, listed
from antiphase.studies.papers.diffclip.released import given_models, models_in_words
from antiphase.studies.scale import IN_SHORT, clips_in_short
from antiphase.studies.spec import Cell, Profile

TWINS = ("clip", "diffclip")
VARIANTS = ("clip", "diffclip", "diffclip-depth", "diffclip-vision")
PAPER = Paper("diffclip", Path(__file__).parent)


@dataclass(frozen=True)
class DiffclipBench:
    """The scale of all studies of the paper; what differs by profile is in ``profiles.toml``."""

    trained_on: tuple[str, ...]
    main: str
    preset: str
    probed: tuple[str, ...]
    retrieved: tuple[str, ...]
    home: str  # set of zero-shot classification
    shifted: tuple[str, ...]  # sets of its classes under a shift
    alike: str  # set of pairs that look alike
    looked_at: Mapping[str, Any]  # fields of :class:`Relevance`
    looks: int  # images that are looked at
    asked: tuple[str, str]  # the two queries of Figure 2
    correlated: int  # images on which the two maps are correlated
    recipe: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    pairs: int | None = None
    images: int | None = None
    learned: int | None = None  # training images of probes and of few-shot learning
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given: tuple[Given, ...] = ()  # models that the profile names
    seeds: int = 3

    def train(self, variant: str, seed: int, data: str | None = None) -> TrainClip:
        """Return a training; on the main set unless given."""
        how: dict[str, Any] = {"preset": self.preset, "limit": self.pairs}
        how |= {"sizes": dict(self.sizes), "recipe": dict(self.recipe)}
        return TrainClip(variant=variant, data=data or self.main, seed=seed, **how)

    def evaluate(self, model: TrainClip | Given, task: str, data: str) -> Evaluate:
        """Return a task on a data set."""
        how: dict[str, Any] = {"protocol": dict(self.protocols.get(task, {}))}
        how["limit"] = None if task == "mmvp" else self.images
        how["train_limit"] = self.learned if task in ("probe", "few-shot") else None
        return Evaluate(model=model, task=task, data=data, **how)

    def look(self, model: TrainClip | Given) -> list[Relevance]:
        """Return the maps of a model for the objects of every image, and for Figure 2's queries in two images."""
        return [
            Relevance(model=model, limit=self.looks, ask="objects", **self.looked_at),
            Relevance(model=model, limit=2, texts=self.asked, **self.looked_at),
        ]


BENCHES = PAPER.benches(DiffclipBench)
SHIFTED = frozenset(name for bench in BENCHES.values() for name in bench.shifted)
"""Sets on which classes are told apart under a shift, under any profile."""


def bench(profile: Profile) -> DiffclipBench:
    """Return the bench of a profile, with the models that the profile names."""
    return replace(BENCHES[profile.name], given=tuple(given_models(profile)))


def models(
    profile: Profile, variants: Sequence[str] = TWINS, sets: Sequence[str] | None = None
) -> list[TrainClip | Given]:
    """Return the models by training set, variant and seed, or those that the profile names."""
    sizes = bench(profile)
    every = sizes.trained_on if sets is None else sets
    seeds = profile.seeds_or(sizes.seeds)
    trained = [sizes.train(variant, seed, one) for one in every for variant in variants for seed in seeds]
    return list(sizes.given) or list(trained)


def measured(
    profile: Profile, asked: Sequence[tuple[str, str]], models: Sequence[TrainClip | Given]
) -> list[Cell]:
    """Return pairs of a task and a data set for every model."""
    return [bench(profile).evaluate(model, task, data) for model in models for task, data in asked]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the pages."""
    sizes = bench(profile)
    short = clips_in_short([sizes.train("clip", 0, data) for data in sizes.trained_on])
    sets = ", ".join(TITLES.get(name, name) for name in sizes.trained_on)
    trained = PAPER.settings("trained", bench=sizes, sets=sets) | {IN_SHORT: short}
    models = {"models": models_in_words(sizes.given)} if sizes.given else trained
    protocols = {f"protocol of {task}": listed(fields) for task, fields in sizes.protocols.items()}
    return models | PAPER.settings("tasks", bench=sizes) | protocols


clip_study = partial(PAPER.study, settings=settings)
