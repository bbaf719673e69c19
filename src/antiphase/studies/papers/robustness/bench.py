"""Models and measurements shared by the studies of the robustness paper, for each profile.

``paper``: CIFAR-10 and CIFAR-100, 100 and 300 epochs of Adam at 5e-4 in batches of 128 (Appendix C.1). The paper does
not give the width (ViT-Tiny's 192 with patches of 4 here), the number of attacked images (1,000 here), the steps of
PGD (20 of ε/4). ``laptop``: Fashion-MNIST, 64 wide, 4 heads (2 differential), patches of 7, 3 epochs with half a
cosine: one core does a model of depth 1 in 15 seconds and one of depth 12 in a few minutes. ``smoke``: a few digits,
for tests.

Deviations, also on each page. The paper reports "the average ASR over multiple runs" (Appendix D.3); how many, and
whether of the training or of the attack, it does not say. Here every figure but Figure 6 attacks each trained model
once, with attack seed 0, and averages over training seeds. Budgets are nested (:func:`antiphase.attacks.sweep`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphase.budgets import eps_label
from antiphase.commands.sense.options import SenseOptions
from antiphase.studies.cells import Accuracy, Attack, Sense, TrainVit
from antiphase.studies.scale import IN_SHORT, vits_in_short
from antiphase.studies.spec import Cell, Profile

EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4, 8))
SMALL = tuple(eps / 255 for eps in (0.25, 0.5, 1))  # of Tables 1 and 3
DEPTHS = (1, 2, 4, 8, 12)
KINDS = ("vit", "diffvit")


@dataclass(frozen=True)
class RobustnessBench:
    """The scale of all studies of the paper.

    Attributes:
        data: training sets, each measured on its own test images.
        epochs: of training, by set.
        sizes: of the models.
        recipe: other fields of the training.
        limit: training images at most.
        images: attacked by PGD.
        few: attacked by AutoAttack and CW.
        probed: images at which sensitivity is measured.
        pgd, autoattack, carlini_wagner: settings of the attacks.
        sense: fields of the sensitivity plan.
        depths: of the models.
        seeds: trainings of each model of depth 1 or 2, unless the user asks for another number.
        deep_seeds: the same of deeper models.
        adversary: fields of adversarial training other than ε.
        search: precision of the attacks' search; verdicts are float32.
    """

    data: tuple[str, ...]
    epochs: Mapping[str, int]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    images: int = 1000
    few: int = 1000
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

    def train(
        self, model: str, seed: int, data: str | None = None, adversary: float = 0.0, **sizes: Any
    ) -> TrainVit:
        """Return a training; depth 1 unless given."""
        data = data or self.data[0]
        recipe = {"epochs": self.epochs[data], **self.recipe}
        hostile = {"eps": adversary, **self.adversary} if adversary else {}
        return TrainVit(
            model=model,
            data=data,
            seed=seed,
            limit=self.limit,
            sizes={"depth": 1, **self.sizes, **sizes},
            recipe=recipe,
            adversary=hostile,
        )

    def seeds_of(self, profile: Profile, depth: int = 1) -> tuple[int, ...]:
        """Return the training seeds of the models of a depth."""
        return profile.seeds_or(self.seeds if depth <= 2 else self.deep_seeds)

    def attack(self, model: TrainVit, eps: Sequence[float] = EPS, seed: int = 0, **settings: Any) -> Attack:
        """Return PGD on the model's own test images."""
        return Attack(
            model=model,
            data=model.data,
            eps=tuple(eps),
            limit=self.images,
            settings={**self.pgd, **settings},
            seed=seed,
            precision=self.search,
        )

    def patch(self, model: TrainVit, width: int) -> Attack:
        """Return PGD on a square at a random place, ε = 1 (Appendix C.2.1)."""
        return Attack(
            model=model,
            data=model.data,
            eps=(1.0,),
            limit=self.images,
            attack="patch",
            settings={**self.pgd, "width": width},
            precision=self.search,
        )

    def ensemble(self, model: TrainVit, eps: Sequence[float]) -> Attack:
        """Return the AutoAttack of the paper: APGD-CE, APGD-DLR, FAB, Square (Appendix C.2.2)."""
        return Attack(
            model=model,
            data=model.data,
            eps=tuple(eps),
            limit=self.few,
            attack="autoattack",
            settings={"version": "2020", **self.autoattack},
            precision=self.search,
        )

    def nearest(self, model: TrainVit) -> Attack:
        """Return Carlini and Wagner's L2 attack; ε is only the largest distance that counts as a success."""
        return Attack(
            model=model,
            data=model.data,
            eps=(10.0,),
            norm="l2",
            limit=self.few,
            attack="carlini-wagner",
            settings=dict(self.carlini_wagner),
            precision=self.search,
        )

    def accuracy(self, model: TrainVit) -> Accuracy:
        """Return the accuracy on all test images."""
        return Accuracy(model=model, data=model.data, limit=None if self.limit is None else self.images)

    def sense_of(self, model: TrainVit, part: str) -> Sense:
        """Return a measurement of sensitivity."""
        return Sense(model=model, data=model.data, part=part, limit=self.probed, settings=dict(self.sense))


_PAPER_CW = {
    "search_steps": 5,
    "steps": 1000,
    "learning_rate": 0.01,
    "initial_const": 1e-3,
}  # robustness.md, section 5
_BENCHES = {
    "paper": RobustnessBench(
        data=("cifar10", "cifar100"),
        epochs={"cifar10": 100, "cifar100": 300, "tiny-imagenet": 100},
        carlini_wagner=_PAPER_CW,
    ),
    "laptop": RobustnessBench(
        data=("fashion-mnist",),
        epochs={"fashion-mnist": 3},
        sizes={"dim": 64, "num_heads": 4, "patch_size": 7},
        recipe={"schedule": "cosine", "precision": "bf16"},
        few=300,
        probed=64,
        search="bf16",
        seeds=16,
        deep_seeds=10,
        autoattack={"steps": 20, "queries": 200},
        carlini_wagner={"search_steps": 4, "steps": 50},
        sense={"steps": 8, "probes": 16, "points": 1},
        adversary={"variant": "fast"},
    ),
    "smoke": RobustnessBench(
        data=("digits",),
        epochs={"digits": 1},
        sizes={"dim": 8, "num_heads": 2, "patch_size": 4},
        limit=64,
        images=8,
        few=3,
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


def twins(profile: Profile, depths: Sequence[int] = (1,), kinds: Sequence[str] = KINDS) -> list[TrainVit]:
    """Return the models of every data set, depth, kind and seed."""
    own = bench(profile)
    return [
        own.train(kind, seed, data, depth=depth)
        for data in own.data
        for depth in depths
        for kind in kinds
        for seed in own.seeds_of(profile, depth)
    ]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the pages."""
    own = bench(profile)
    model = own.train("vit", 0)
    sizes = (
        ", ".join(f"{name} {value}" for name, value in own.sizes.items()) or "192 wide, 6 heads, patches of 4"
    )
    recipe = {"optimizer": "adam", "learning rate": "5e-4", "batch": 128, **own.recipe}
    return {
        "data": ", ".join(own.data),
        "model": sizes,
        "training": ", ".join(f"{name} {value}" for name, value in recipe.items()),
        "epochs": ", ".join(f"{own.epochs[data]}" for data in own.data),
        "images under PGD": f"{own.images}",
        "images under AutoAttack and CW": f"{own.few}",
        "images of sensitivity": f"{own.probed}",
        "sensitivity": _sense_said(own.sense_of(model, "lipschitz").options()),
        "training seeds": _seeds_said(own, profile),
        **attacks_said(),
        "PGD": pgd_said(own),
        "AutoAttack": _attack_said(own.ensemble(model, EPS)),
        "CW": _attack_said(own.nearest(model)),
        "search": own.search,
        "attacked label": "clean prediction",
        "verdicts": "float32",
        IN_SHORT: vits_in_short(
            [own.train("vit", 0, data, depth=depth) for data in own.data for depth in own.depths]
        ),
    }


def _sense_said(options: SenseOptions) -> str:
    return (
        f"radius {eps_label(options.radius)}, {options.samples} uniform samples, {options.steps} steps of ascent, "
        f"{options.probes} directions"
    )


def _attack_said(attack: Attack) -> str:
    return ", ".join(f"{name} {value}" for name, value in attack.settings.items()) or "the attack's defaults"


def _seeds_said(own: RobustnessBench, profile: Profile) -> str:
    counts = [len(own.seeds_of(profile, depth)) for depth in (1, 4)]
    return (
        f"{counts[0]}"
        if len(set(counts)) == 1
        else f"{counts[0]} at depths 1 and 2, {counts[1]} at larger ones"
    )


def pgd_said(own: RobustnessBench) -> str:
    """Return the settings of PGD, for the pages."""
    settings = {"steps": 20, "step size": "ε/4", **own.pgd}
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def attacks_said() -> dict[str, str]:
    """Return how the attacks differ from the paper's, or what it leaves open, for the pages."""
    return {
        "attack runs": "one for each training seed, attack seed 0 (Figure 6: three); the paper averages over runs",
        "several ε": "nested: an image broken at one ε counts as broken at every larger one",
    }


def all_cells(*groups: Sequence[Cell]) -> list[Cell]:
    """Return the cells of several groups as one list."""
    return [cell for group in groups for cell in group]
