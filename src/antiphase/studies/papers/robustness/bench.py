"""Models and measurements shared by the studies of the sensitivity paper, for each profile.

Deviations, also on each page. The paper reports "the average ASR over multiple runs" (Appendix D.3); how many, and
whether of the training or of the attack, it does not say. Here every figure but Figure 6 attacks each trained model
once, with attack seed 0, and averages over training seeds. Budgets are nested (:func:`antiphase.attacks.sweep`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from antiphase.models.clip import find_clip
from antiphase.models.zeroshot import PAPER_TEMPLATE
from antiphase.studies import Accuracy, Artefact, Attack, Cell, Given, Profile, RowsByTable, Sense, Study, TrainVit
from antiphase.studies.papers.declarations import Checks, Paper
from antiphase.studies.papers.diffclip import bench as diffclip
from antiphase.studies.papers.diffclip.bench import models_in_words, released
from antiphase.studies.scale import IN_SHORT, vits_in_short

Eps = Sequence[float]  # of the [0, 1] pixel
EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4, 8))
SMALL = tuple(eps / 255 for eps in (0.25, 0.5, 1))  # of Tables 1 and 3
DEPTHS = (1, 2, 4, 8, 12)
KINDS = ("vit", "diffvit")
PAPER = Paper("robustness", Path(__file__).parent)


@dataclass(frozen=True)
class RobustnessBench:
    """The scale of all studies of the paper; what differs by profile is in ``profiles.toml``.

    Attributes:
        attacks: settings of each attack.
        few: number of images under AutoAttack and Carlini and Wagner's attack.
        probed: number of images that sensitivity is measured on.
        prompt: template of the class prompts of CLIPs; empty for those of the emoji set.
    """

    data: tuple[str, ...]
    epochs: Mapping[str, int]
    attacks: Mapping[str, Mapping[str, Any]]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    images: int = 1000
    few: int = 1000
    clip_images: int = 1000
    probed: int = 100
    sense: Mapping[str, Any] = field(default_factory=dict)
    depths: tuple[int, ...] = DEPTHS
    seeds: int = 3
    deep_seeds: int = 3
    slow_seeds: int = 3  # of studies whose measurements take longer than PGD
    adversary: Mapping[str, Any] = field(default_factory=dict)
    search: str = "float32"
    clip_data: tuple[str, ...] = ("openmoji",)
    clip_probed: str = "openmoji"
    prompt: str = PAPER_TEMPLATE

    def train(self, model: str, seed: int, data: str | None = None, adversary: float = 0.0, **sizes: Any) -> TrainVit:
        """Return a training; depth 1 unless given."""
        data = data or self.data[0]
        return TrainVit(
            model=model,
            data=data,
            seed=seed,
            limit=self.limit,
            sizes={"depth": 1, **self.sizes, **sizes},
            recipe={"epochs": self.epochs[data], **self.recipe},
            adversary={"eps": adversary, **self.adversary} if adversary else {},
        )

    def seeds_of(self, profile: Profile, depth: int = 1) -> tuple[int, ...]:
        return profile.seeds_or(self.seeds if depth <= 2 else self.deep_seeds)

    def attack(
        self, model: TrainVit, eps: Eps = EPS, attack: str = "pgd", seed: int = 0, norm: str = "linf", **settings: Any
    ) -> Attack:
        """Return an attack on the model's own test images, PGD unless named."""
        how: dict[str, Any] = {"settings": {**self.attacks.get(attack, {}), **settings}, "norm": norm}
        how["limit"] = self.few if attack in ("autoattack", "carlini-wagner") else self.images
        how |= {"attack": attack, "seed": seed, "precision": self.search}
        return Attack(model=model, data=model.data, eps=tuple(eps), **how)

    def patch(self, model: TrainVit, width: int) -> Attack:
        """Return PGD on a square at a random place, ε = 1 (Appendix C.2.1)."""
        return self.attack(model, (1.0,), "patch", width=width)

    def nearest(self, model: TrainVit) -> Attack:
        """Return Carlini and Wagner's L2 attack; ε is only the largest distance that counts as a success."""
        return self.attack(model, (10.0,), "carlini-wagner", norm="l2")

    def accuracy(self, model: TrainVit) -> Accuracy:
        return Accuracy(model=model, data=model.data, limit=None if self.limit is None else self.images)

    def sense_of(self, model: TrainVit | diffclip.Clip, part: str) -> Sense:
        """Return a measurement of sensitivity, of a CLIP's image tower on ImageNet or openmoji."""
        data = model.data if isinstance(model, TrainVit) else self.clip_probed
        return Sense(model=model, data=data, part=part, limit=self.probed, settings=dict(self.sense))

    def clip_attack(
        self, model: diffclip.Clip, data: str, eps: Eps, attack: str = "pgd", seed: int = 0, **settings: Any
    ) -> Attack:
        """Return an attack on the cosine, with the paper's prompts or, on a laptop, those of the emoji set."""
        chosen = {"objective": "cosine", **self.attacks.get(attack, {}), **settings}
        how: dict[str, Any] = {"limit": self.clip_images, "prompt": self.prompt or None, "seed": seed}
        return Attack(model=model, data=data, eps=tuple(eps), attack=attack, settings=chosen, **how)


BENCHES = PAPER.benches(RobustnessBench)


def bench(profile: Profile) -> RobustnessBench:
    """Return the bench of a profile."""
    return BENCHES[profile.name]


def twins(profile: Profile, depths: Sequence[int] | None = (1,), kinds: Sequence[str] = KINDS) -> list[TrainVit]:
    """Return the models of every data set, depth, kind and seed; depths None: all of the bench."""
    sizes, made = bench(profile), list[TrainVit]()
    for data, depth, kind in product(sizes.data, depths or sizes.depths, kinds):
        made += [sizes.train(kind, seed, data, depth=depth) for seed in sizes.seeds_of(profile, depth)]
    return made


def clip_models(profile: Profile, variants: Sequence[str] = diffclip.TWINS) -> list[diffclip.Clip]:
    """Return the released CLIPs under ``paper``, those of emoji otherwise, or those that the profile names.

    Of named models, ``variants`` without ``"clip"`` selects those with differential attention.
    """
    if (sizes := diffclip.bench(profile)).given:
        chosen = (one for one in sizes.given if one.factors().get("lambda_init") is not None)
        return list(chosen if "clip" not in variants else sizes.given)
    if profile.name == "paper":
        labels = {find_clip(variant).label for variant in variants}
        return [one for one in released() if one.series in labels]
    return diffclip.models(profile, variants, [sizes.main])


def attacked_clips(profile: Profile) -> list[tuple[diffclip.Clip, str]]:
    """Return pairs of a CLIP and a data set to attack it on."""
    return [(model, data) for model in clip_models(profile) for data in bench(profile).clip_data]


def measured(models: Sequence[TrainVit], *measures: Callable[[TrainVit], Cell]) -> list[Cell]:
    """Return measurements of models: the first one of all models, then the second."""
    return [measure(model) for measure in measures for model in models]


def from_both(cells: Sequence[Cell], profile: Profile) -> list[Cell]:
    """Return measurements, and those of the first seeds' ViTs once more, their blocks started from N(0, 0.02)."""
    seeds, made = profile.seeds_or(bench(profile).slow_seeds), [*cells]
    for cell in cells:
        model = getattr(cell, "model", None)
        if isinstance(model, TrainVit) and model.seed in seeds:
            normal = replace(model, sizes={**model.sizes, "initial_weights": "normal"})
            made.append(replace(cell, model=normal))  # type: ignore[call-arg]
    return made


def settings(profile: Profile, **changes: Any) -> dict[str, str]:
    """Return the settings shown on the pages of ViTs; ``changes`` are fields of the bench that a study changes."""
    sizes = replace(bench(profile), **changes)
    models = [sizes.train("vit", 0, data, depth=depth) for data in sizes.data for depth in sizes.depths]
    sense = sizes.sense_of(models[0], "lipschitz").options()
    return PAPER.settings("vits", "attacks", "searches", bench=sizes, sense=sense) | {IN_SHORT: vits_in_short(models)}


def vit_and_clip_settings(profile: Profile, variants: Sequence[str] = diffclip.TWINS, **changes: Any) -> dict[str, str]:
    """Return the settings shown on a page of ViTs and CLIPs."""
    given = [one for one in clip_models(profile, variants) if isinstance(one, Given)]
    return settings(profile, **changes) | ({"CLIPs": models_in_words(given)} if given else {})


def clip_settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on a page of attacked CLIPs."""
    trained = diffclip.settings(profile)
    given = [one for one in clip_models(profile) if isinstance(one, Given)]
    names = ("trained on", "model", "training", IN_SHORT)
    models = {"models": models_in_words(given)} if given else {k: trained[k] for k in names if k in trained}
    return models | PAPER.settings("clips", "attacks", bench=bench(profile))


def vit_study(
    name: str,
    cells: Callable[[Profile], Sequence[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    checks: Callable[[RowsByTable], Checks],
    settings: Callable[..., Mapping[str, str]] = settings,
    slow: bool = False,
) -> Study:
    """Return a study of ViTs; a slow one, whose measurements take long at every depth, has fewer training seeds."""

    def few(profile: Profile) -> Profile:
        return replace(profile, seeds=profile.seeds_or(bench(profile).slow_seeds), asked=True)

    def shown(profile: Profile) -> Mapping[str, str]:
        about = {"seeds": len(few(profile).seeds), "laptop": profile.name == "laptop"}
        profile = few(profile) if slow else profile
        models = (getattr(cell, "model", None) for cell in cells(profile))
        depths = tuple(sorted({model.depth for model in models if isinstance(model, TrainVit)}))
        return {**settings(profile, depths=depths), **PAPER.settings("starts", **about)}

    return PAPER.study(name, lambda p: from_both(cells(few(p) if slow else p), p), draw, checks, shown, by_data=True)


slow_study = partial(vit_study, slow=True)
