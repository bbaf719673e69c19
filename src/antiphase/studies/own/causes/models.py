"""The models of the study: both twins, trained controls and interventions, and what is measured of each."""

from dataclasses import replace
from typing import Any

from antiphase.sensitivity.interventions import BRANCHES
from antiphase.studies.cells import Attack, Margin, TrainVit, Variant
from antiphase.studies.cells.models import Model
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench
from antiphase.studies.spec import Cell, Profile

EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4))
_TRAINING_IMAGES = 10_000  # of the training loss
_SEEDS = 12  # of the laptop profile: 3 gave +4.6 points [−0.1, 9.4] for the difference at 1/255
_NEAREST = 3  # classes that FAB-T steps towards

VIT, DIFFVIT = "ViT", "DiffViT"
NORMED = "ViT, norm and factor"
ZERO = "DiffViT, λ frozen at 0"
BARE = "DiffViT, no norm or factor"
BARE_ZERO = "DiffViT, λ frozen at 0, no norm or factor"
WIDER = "ViT, equal parameters"
NORMAL = {VIT: "ViT, N(0, 0.02)", DIFFVIT: "DiffViT, N(0, 0.02)"}
SHORTER = "ViT, two thirds of the epochs"
LADDER = (VIT, NORMED, ZERO, DIFFVIT)  # each step changes one thing
OTHER_LADDER = (VIT, BARE_ZERO, BARE, DIFFVIT)

MEAN, UNIFORM = "A2 = mean over images", "A2 = uniform"
STOPPED = {
    "A2's gradient stopped": (BRANCHES[1],),
    "A1's gradient stopped": (BRANCHES[0],),
    "both gradients stopped": BRANCHES,
}
SCALED = {f"λ × {factor:g}": factor for factor in (0.0, 0.25, 0.5, 0.75, 1.25)}  # × 1 is the trained model

TRAINED = (VIT, DIFFVIT, NORMED, ZERO, BARE, BARE_ZERO, WIDER, *NORMAL.values(), SHORTER)
CHANGED = (*SCALED, MEAN, UNIFORM)  # interventions that change clean predictions
SERIES = (*TRAINED, *CHANGED, *STOPPED)


def trained(own: RobustnessBench, seed: int, data: str) -> dict[str, Model]:
    """Return the trained models by series; the twins are those of the other studies."""

    def train(kind: str, **sizes: Any) -> TrainVit:
        return own.train(kind, seed, data, **sizes)

    vit, bare = train("vit"), {"head_norm": False, "rescale": False}
    one_unit = 4.0 + 1.5 / own.sizes.get("dim", 192)  # one hidden unit more in the MLP of each block
    epochs = max(1, round(vit.recipe["epochs"] * 2 / 3))
    controls: dict[str, TrainVit] = {
        NORMED: train("vit-norm"),
        ZERO: train("diffvit", parameterisation="zero"),
        BARE: train("diffvit", **bare),
        BARE_ZERO: train("diffvit", parameterisation="zero", **bare),
        WIDER: train("vit", mlp_ratio=one_unit),
        NORMAL[VIT]: train("vit", initial_weights="normal"),
        NORMAL[DIFFVIT]: train("diffvit", initial_weights="normal"),
        SHORTER: replace(vit, recipe={**vit.recipe, "epochs": epochs}),
    }
    named = {series: Variant(model=model, series=series) for series, model in controls.items()}
    return {VIT: vit, DIFFVIT: train("diffvit"), **named}


def intervened(model: TrainVit) -> dict[str, Variant]:
    """Return a trained DiffViT under every intervention, by series."""
    found = {series: Variant(model=model, lam=factor) for series, factor in SCALED.items()}
    found |= {MEAN: Variant(model=model, negative="mean"), UNIFORM: Variant(model=model, negative="uniform")}
    found |= {series: Variant(model=model, stopped=branches) for series, branches in STOPPED.items()}
    return {series: replace(variant, series=series) for series, variant in found.items()}


def cells(profile: Profile) -> list[Cell]:
    """PGD and margins of every model, the least perturbation of the ladder's, training losses."""
    own = bench(profile)
    found: list[Cell] = []
    for data in own.data:
        for seed in profile.seeds_or(_SEEDS if profile.name == "laptop" else len(profile.seeds)):
            models = trained(own, seed, data)
            twin = models[DIFFVIT]
            assert isinstance(twin, TrainVit)
            twins = [model for model in models.values() if isinstance(model, TrainVit)]
            found += [own.attack(model) for model in twins]  # shared with Figure 2(a)
            interventions = intervened(twin)
            others = [model for model in (*models.values(), *interventions.values()) if model not in twins]
            found += [_attack(own, model, data) for model in others]
            for model in models.values():
                found.append(Margin(model=model, data=data, limit=own.images))
                found.append(
                    Margin(
                        model=model,
                        data=data,
                        limit=own.limit or _TRAINING_IMAGES,
                        split="train",
                        gradients=False,
                    )
                )
            found += [
                Margin(model=interventions[series], data=data, limit=own.images, gradients=False)
                for series in CHANGED
            ]
            settings = {"steps": own.pgd.get("steps", 20), "targets": _NEAREST}
            found += [
                Attack(
                    model=models[series],
                    data=data,
                    eps=(1.0,),
                    limit=own.images,
                    attack="fab-t",
                    settings=settings,
                )
                for series in LADDER
            ]
    return found


def _attack(own: RobustnessBench, model: Model, data: str) -> Attack:
    """Return PGD as on the twins, at the study's ε."""
    return Attack(
        model=model, data=data, eps=EPS, limit=own.images, settings=dict(own.pgd), precision=own.search
    )
