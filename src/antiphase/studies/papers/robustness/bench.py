"""Models and measurements shared by the studies of the robustness paper, for each profile.

``paper``: CIFAR-10 and CIFAR-100, 100 and 300 epochs of Adam at 5e-4 in batches of 128 (Appendix C.1). The paper does
not give the width (ViT-Tiny's 192 with patches of 4 here), the number of attacked images (1,000 here), the steps of
PGD (20 of ε/4). ``laptop``: Fashion-MNIST, 64 wide, 4 heads (2 differential), patches of 7, 3 epochs with half a
cosine: one core does a model of depth 1 in 15 seconds and one of depth 12 in a few minutes. ``smoke``: a few digits,
for tests. CLIPs are the released pair under ``paper`` and those of the DiffCLIP studies otherwise.

Deviations, also on each page. The paper reports "the average ASR over multiple runs" (Appendix D.3); how many, and
whether of the training or of the attack, it does not say. Here every figure but Figure 6 attacks each trained model
once, with attack seed 0, and averages over training seeds. Budgets are nested (:func:`antiphase.attacks.sweep`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphase.budgets import eps_label
from antiphase.models.clip import find_clip
from antiphase.models.zeroshot import PAPER_TEMPLATE
from antiphase.studies.cells import Accuracy, Attack, Given, Sense, TrainClip, TrainVit
from antiphase.studies.papers.diffclip import bench as diffclip
from antiphase.studies.papers.diffclip.released import listed, released
from antiphase.studies.scale import IN_SHORT, vits_in_short
from antiphase.studies.spec import Cell, Profile

EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4, 8))
SMALL = tuple(eps / 255 for eps in (0.25, 0.5, 1))  # of Tables 1 and 3
DEPTHS = (1, 2, 4, 8, 12)
KINDS = ("vit", "diffvit")


@dataclass(frozen=True)
class RobustnessBench:
    """The scale of all studies of the paper."""

    data: tuple[str, ...]
    epochs: Mapping[str, int]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    images: int = 1000
    few: int = 1000
    clip_images: int = 1000
    probed: int = 100
    pgd: Mapping[str, Any] = field(default_factory=dict)
    autoattack: Mapping[str, Any] = field(default_factory=dict)
    carlini_wagner: Mapping[str, Any] = field(default_factory=dict)
    sense: Mapping[str, Any] = field(default_factory=dict)
    depths: tuple[int, ...] = DEPTHS
    seeds: int = 3
    deep_seeds: int = 3
    adversary: Mapping[str, Any] = field(default_factory=dict)
    search: str = "float32"
    clip_data: tuple[str, ...] = ("openmoji",)
    clip_probed: str = "openmoji"
    prompt: str | None = PAPER_TEMPLATE

    def train(
        self, model: str, seed: int, data: str | None = None, adversary: float = 0.0, **sizes: Any
    ) -> TrainVit:
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
        """Return the training seeds of the models of a depth."""
        return profile.seeds_or(self.seeds if depth <= 2 else self.deep_seeds)

    def attack(self, model: TrainVit, eps: Sequence[float] = EPS, seed: int = 0, **settings: Any) -> Attack:
        """Return PGD on the model's own test images."""
        return self._attack(model, eps, self.images, "pgd", settings={**self.pgd, **settings}, seed=seed)

    def patch(self, model: TrainVit, width: int) -> Attack:
        """Return PGD on a square at a random place, ε = 1 (Appendix C.2.1)."""
        return self._attack(model, (1.0,), self.images, "patch", settings={**self.pgd, "width": width})

    def ensemble(self, model: TrainVit, eps: Sequence[float]) -> Attack:
        """Return the AutoAttack of the paper: APGD-CE, APGD-DLR, FAB, Square (Appendix C.2.2)."""
        return self._attack(
            model, eps, self.few, "autoattack", settings={"version": "2020", **self.autoattack}
        )

    def nearest(self, model: TrainVit) -> Attack:
        """Return Carlini and Wagner's L2 attack; ε is only the largest distance that counts as a success."""
        return self._attack(
            model, (10.0,), self.few, "carlini-wagner", settings=dict(self.carlini_wagner), norm="l2"
        )

    def _attack(self, model: TrainVit, eps: Sequence[float], limit: int, attack: str, **more: Any) -> Attack:
        fixed = {"data": model.data, "eps": tuple(eps), "limit": limit, "precision": self.search}
        return Attack(model=model, attack=attack, **fixed, **more)

    def accuracy(self, model: TrainVit) -> Accuracy:
        """Return the accuracy on all test images."""
        return Accuracy(model=model, data=model.data, limit=None if self.limit is None else self.images)

    def sense_of(self, model: TrainVit | TrainClip | Given, part: str) -> Sense:
        """Return a measurement of sensitivity, of a CLIP's image tower on ImageNet or openmoji."""
        data = model.data if isinstance(model, TrainVit) else self.clip_probed
        return Sense(model=model, data=data, part=part, limit=self.probed, settings=dict(self.sense))

    def clip_attack(
        self,
        model: TrainClip | Given,
        data: str,
        eps: Sequence[float],
        attack: str = "pgd",
        seed: int = 0,
        **settings: Any,
    ) -> Attack:
        """Return an attack on the cosine, with the paper's prompts or, on a laptop, those of the emoji set."""
        return Attack(
            model=model,
            data=data,
            eps=tuple(eps),
            limit=self.clip_images,
            attack=attack,
            settings={"objective": "cosine", **self.pgd, **settings},
            prompt=self.prompt,
            seed=seed,
        )

    def clip_accuracy(self, model: TrainClip | Given, data: str) -> Accuracy:
        """Return the predictions of a CLIP on clean images."""
        return Accuracy(model=model, data=data, limit=self.clip_images)


_BENCHES = {
    "paper": RobustnessBench(
        data=("cifar10", "cifar100"),
        epochs={"cifar10": 100, "cifar100": 300, "tiny-imagenet": 100},
        # robustness.md, section 5
        carlini_wagner={"search_steps": 5, "steps": 1000, "learning_rate": 0.01, "initial_const": 1e-3},
        clip_data=("coco", "imagenet"),
        clip_probed="imagenet",
    ),
    "laptop": RobustnessBench(
        data=("fashion-mnist",),
        epochs={"fashion-mnist": 3},
        sizes={"dim": 64, "num_heads": 4, "patch_size": 7},
        recipe={"schedule": "cosine", "precision": "bf16"},
        few=300,
        clip_images=200,
        probed=64,
        search="bf16",
        seeds=16,
        deep_seeds=10,
        autoattack={"steps": 20, "queries": 200},
        carlini_wagner={"search_steps": 4, "steps": 50},
        sense={"steps": 8, "probes": 16, "points": 1},
        adversary={"variant": "fast"},
        prompt=None,
    ),
    "smoke": RobustnessBench(
        data=("digits",),
        epochs={"digits": 1},
        sizes={"dim": 8, "num_heads": 2, "patch_size": 4},
        limit=64,
        images=8,
        few=3,
        clip_images=8,
        probed=2,
        pgd={"steps": 2},
        autoattack={"steps": 2, "queries": 5},
        carlini_wagner={"search_steps": 1, "steps": 3},
        sense={"samples": 2, "steps": 1, "probes": 2, "points": 1},
        depths=(1, 2),
        adversary={"steps": 1},
        seeds=1,
        deep_seeds=1,
    ),
}


def bench(profile: Profile) -> RobustnessBench:
    """Return the bench of a profile."""
    return _BENCHES[profile.name]


def twins(
    profile: Profile, depths: Sequence[int] | None = (1,), kinds: Sequence[str] = KINDS
) -> list[TrainVit]:
    """Return the models of every data set, depth, kind and seed; depths None: all of the bench."""
    own = bench(profile)
    return [
        own.train(kind, seed, data, depth=depth)
        for data in own.data
        for depth in depths or own.depths
        for kind in kinds
        for seed in own.seeds_of(profile, depth)
    ]


def clip_models(profile: Profile, variants: Sequence[str] = diffclip.TWINS) -> list[TrainClip | Given]:
    """Return the released CLIPs under ``paper``, those of openmoji otherwise, or those that the profile names.

    Of named models, ``variants`` without ``"clip"`` selects those with differential attention.
    """
    own = diffclip.bench(profile)
    if own.given:
        differential = "clip" not in variants
        return [one for one in own.given if not differential or one.factors().get("lambda_init") is not None]
    if profile.name == "paper":
        labels = {find_clip(variant).label for variant in variants}
        return [one for one in released(profile) if one.series in labels]
    return diffclip.models(profile, variants, [own.main])


def attacked_clips(profile: Profile) -> list[tuple[TrainClip | Given, str]]:
    """Return pairs of a CLIP and a data set to attack it on."""
    return [(model, data) for model in clip_models(profile) for data in bench(profile).clip_data]


def all_cells(*groups: Sequence[Cell]) -> list[Cell]:
    """Return the cells of several groups as one list."""
    return [cell for group in groups for cell in group]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the pages of ViTs."""
    own, model = bench(profile), bench(profile).train("vit", 0)
    options = own.sense_of(model, "lipschitz").options()
    counts = [len(own.seeds_of(profile, depth)) for depth in (1, 4)]
    few, deep = f"{counts[0]}", f" at depths 1 and 2, {counts[1]} at larger ones"
    return {
        "data": ", ".join(own.data),
        "model": _listed(own.sizes) or "192 wide, 6 heads, patches of 4",
        "training": _listed({"optimizer": "adam", "learning rate": "5e-4", "batch": 128, **own.recipe}),
        "epochs": ", ".join(f"{own.epochs[data]}" for data in own.data),
        "images under PGD": f"{own.images}",
        "images under AutoAttack and CW": f"{own.few}",
        "images of sensitivity": f"{own.probed}",
        "sensitivity": f"radius {eps_label(options.radius)}, {options.samples} uniform samples, "
        f"{options.steps} steps of ascent, {options.probes} directions",
        "training seeds": few if len(set(counts)) == 1 else few + deep,
        **_attacks_said(own),
        "AutoAttack": _listed(own.ensemble(model, EPS).settings),
        "CW": _listed(own.nearest(model).settings) or "the attack's defaults",
        "search": own.search,
        "attacked label": "clean prediction",
        "verdicts": "float32",
        IN_SHORT: vits_in_short(
            [own.train("vit", 0, data, depth=depth) for data in own.data for depth in own.depths]
        ),
    }


def vit_and_clip_settings(profile: Profile, variants: Sequence[str] = diffclip.TWINS) -> dict[str, str]:
    """Return the settings shown on a page of ViTs and CLIPs."""
    given = [one for one in clip_models(profile, variants) if isinstance(one, Given)]
    return settings(profile) | ({"CLIPs": listed(given)} if given else {})


def clip_settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on a page of attacked CLIPs."""
    own, trained = bench(profile), diffclip.settings(profile)
    given = [one for one in clip_models(profile) if isinstance(one, Given)]
    kept = {name: trained[name] for name in ("trained on", "model", "training", IN_SHORT) if name in trained}
    return {
        "data": ", ".join(own.clip_data),
        **({"models": listed(given)} if given else kept),
        "prompts": own.prompt or "the emoji's own: the names of each group's",
        "objective": "cosine to the prompt of the attacked label",
        "images": f"{own.clip_images}",
        "attacked label": "clean prediction",
        "verdicts": "float32",
        **_attacks_said(own),
    }


def _attacks_said(own: RobustnessBench) -> dict[str, str]:
    """Return how the attacks differ from the paper's, or what it leaves open."""
    return {
        "attack runs": "one for each training seed, attack seed 0 (Figure 6: three); the paper averages over runs",
        "several ε": "nested: an image broken at one ε counts as broken at every larger one",
        "PGD": _listed({"steps": 20, "step size": "ε/4", **own.pgd}),
    }


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())
