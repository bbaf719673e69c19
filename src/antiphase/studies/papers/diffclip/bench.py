"""Models, data sets and protocols shared by the studies of the DiffCLIP paper, for each profile.

With ``--models`` trained checkpoints are measured in place of trainings, such as the authors' pair from the hub
(``--models released``). Their checkpoints do not hold λ_init: .8 is assumed, as Section 4.1 says. The repository of
their CLIP is not verified: its name is inferred from that of DiffCLIP. A file of it is named in ``--models``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from antiphase.data.shards import CC3M, CC12M, TITLES
from antiphase.errors import UserError
from antiphase.models.checkpoints import RECIPE_FILE, as_config, read_recipe
from antiphase.models.clip import ClipConfig, find_clip
from antiphase.models.schemes import diffclip
from antiphase.models.transformer import attention_spec
from antiphase.studies import Cell, Evaluate, Given, Profile, Relevance, TrainClip, given, options, scale
from antiphase.studies.papers.declarations import Paper, listed

TWINS = ("clip", "diffclip")
Clip = TrainClip | Given
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

    def evaluate(self, model: Clip, task: str, data: str) -> Evaluate:
        how: dict[str, Any] = {"protocol": dict(self.protocols.get(task, {}))}
        how["limit"] = None if task == "mmvp" else self.images
        how["train_limit"] = self.learned if task in ("probe", "few-shot") else None
        return Evaluate(model=model, task=task, data=data, **how)

    def look(self, model: Clip) -> list[Relevance]:
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


def models(profile: Profile, variants: Sequence[str] = TWINS, sets: Sequence[str] | None = None) -> list[Clip]:
    """Return the models by training set, variant and seed, or those that the profile names."""
    sizes = bench(profile)
    every = sizes.trained_on if sets is None else sets
    seeds = profile.seeds_or(sizes.seeds)
    trained = [sizes.train(variant, seed, one) for one in every for variant in variants for seed in seeds]
    return list(sizes.given) or list(trained)


def measured(profile: Profile, sets: Mapping[str, Sequence[str]], some: Sequence[Clip] | None = None) -> list[Cell]:
    """Return the tasks on their data sets for some models, or for all of :func:`models`."""
    pairs = [(task, data) for task, names in sets.items() for data in names]
    every = models(profile) if some is None else some
    return [bench(profile).evaluate(model, task, data) for model in every for task, data in pairs]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the pages."""
    sizes = bench(profile)
    short = scale.clips_in_short([sizes.train("clip", 0, data) for data in sizes.trained_on])
    sets = ", ".join(TITLES.get(name, name) for name in sizes.trained_on)
    trained = PAPER.settings("trained", bench=sizes, sets=sets) | {scale.IN_SHORT: short}
    models = {"models": models_in_words(sizes.given)} if sizes.given else trained
    protocols = {f"protocol of {task}": listed(fields) for task, fields in sizes.protocols.items()}
    return models | PAPER.settings("tasks", bench=sizes) | protocols


clip_study = partial(PAPER.study, settings=settings)

PAIR = ("diffclip:hammh0a/CLIP_ViTB16_CC12M", "diffclip:hammh0a/DiffCLIP_ViTB16_CC12M#lambda_init=0.8")
"""The authors' CLIP and DiffCLIP on the hub, ViT-B/16 trained on CC12M."""

_UNVERIFIED = "its name on the hub is inferred and unverified; --models takes a file of it"
_ASSUMED = "λ_init is assumed, the checkpoint does not hold it"


def released() -> list[Given]:
    """Return the authors' CLIP and their DiffCLIP."""
    return [_model(PAIR[0], 0, _UNVERIFIED), _model(PAIR[1], 0)]


def given_models(profile: Profile) -> list[Given]:
    """Return the models of ``--models``; several of one kind and training set are its training seeds."""
    checkpoints: list[Given] = []
    for spec in profile.models:
        for one in released() if spec == options.RELEASED else [_model(spec, 0)]:
            kind = (one.series, one.factors()["trained_on"])
            seed = sum(kind == (other.series, other.factors()["trained_on"]) for other in checkpoints)
            checkpoints.append(one if not seed else _model(spec, seed))
    return checkpoints


def models_in_words(models: Sequence[Given]) -> str:
    """Return the models for a reader, with what is to know about each."""
    parts = []
    for one in models:
        source = str(one.factors()["trained_on"])
        note = f" ({one.note})" if one.note else ""
        parts.append(f"{one.series}, trained on {TITLES.get(source, source)}: {one.spec}{note}")
    return "; ".join(parts)


def _model(spec: str, seed: int, note: str = "") -> Given:
    kind, _, name = spec.partition(":")
    if kind == "open_clip":
        base, _, tag = name.partition("/")
        return given(spec, base, seed, note, trained_on=tag)
    if kind != "diffclip":
        return _run(Path(spec).expanduser(), spec, seed)
    path, _, setting = name.partition("#")
    lambda_init = diffclip.read_lambda_init(spec, setting) if setting else None
    by_depth = lambda_init == "depth"
    towers, depth = (bool(setting), bool(setting)), 12  # whether each has differential attention
    if (file := diffclip.local_checkpoint(path)) is not None:
        config = _config(file, file.stat().st_mtime_ns if file.is_file() else 0, lambda_init)
        towers = _differential(config)
        depth = config.vision.depth
    facts: dict[str, Any] = {"trained_on": CC3M if "cc3m" in path.lower() else CC12M, "depth": depth}
    if any(towers):
        facts["lambda_init"] = 0.8 if by_depth else lambda_init
        facts["lambda_schedule"] = "depth" if by_depth else "constant"
        note = _ASSUMED
    return given(spec, _series(towers, by_depth), seed, note, **facts)


def _series(towers: tuple[bool, bool], by_depth: bool) -> str:
    names = {(False, False): "clip", (True, False): "diffclip-vision", (False, True): "diffclip-text"}
    return find_clip(names.get(towers, "diffclip-depth" if by_depth else "diffclip")).label


def _run(folder: Path, spec: str, seed: int) -> Given:
    """Return a run of ``antiphase train-clip``, whose recipe says what it is and what it was trained on."""
    if (recipe := read_recipe(folder)).get("kind") != "clip":
        raise UserError(f"models {spec}: is no CLIP; expected a directory of antiphase train-clip")
    config = as_config(ClipConfig, recipe.get("model"), f"{folder / RECIPE_FILE}: ", ("model",))
    facts: dict[str, Any] = {"trained_on": str(recipe.get("data")), "depth": config.vision.depth}
    if any(towers := _differential(config)):
        facts |= (config.vision if towers[0] else config.text).model_dump(include={"lambda_init", "lambda_schedule"})
    return given(spec, _series(towers, facts.get("lambda_schedule") == "depth"), seed, **facts)


def _differential(config: ClipConfig) -> tuple[bool, bool]:
    vision, text = (attention_spec(one.attention).differential for one in (config.vision, config.text))
    return vision, text


@lru_cache
def _config(file: Path, stamp: int, lambda_init: float | Literal["depth"] | None) -> ClipConfig:
    """Return the sizes and towers of a checkpoint, read once for each modification time."""
    return diffclip.stored_config(file) or diffclip.config_of(diffclip.read_released(file), str(file), lambda_init)
