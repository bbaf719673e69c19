"""Does DiffViT stay the more fragile one with λ_init by depth? A study of your own: edit what you like.

Write here what the study asks, what you expect, and what it costs.

antiphase study run NAME.py --profile smoke
"""

import polars as pl
from torch import Tensor, nn

from antiphase.attacks import AttackResult, Threat, pgd
from antiphase.models import diffvit
from antiphase.studies import (
    ASR,
    Artefact,
    Attack,
    Cell,
    Claim,
    Model,
    Own,
    Plot,
    Profile,
    RowsByTable,
    Study,
    TrainVit,
    estimates,
    higher,
    over,
    panels,
)

EPS = (1 / 255, 4 / 255)


# YOUR MODEL: any function from a seed to a module of images in [0, 1]; when its text changes, its cells run again
def untrained(seed: int) -> nn.Module:
    """A DiffViT as it is before training."""
    return diffvit(8, seed=seed, depth=2)


# YOUR ATTACK: any function with the signature of the package's; here PGD with an objective of its own
def margin_pgd(
    model: nn.Module, images: Tensor, labels: Tensor | None, threat: Threat, *, steps: int = 20, **run: object
) -> AttackResult:
    """PGD that climbs the best other logit less the label's."""
    return pgd(model, images, labels, threat, steps=steps, objective="margin", **run)  # type: ignore[arg-type]


def models(profile: Profile) -> list[Model]:
    """What is compared; trainings come by themselves."""
    # YOUR DATA: a name that antiphase train takes, or "folder:PATH" with a folder for each class
    data, epochs = ("digits", 1) if profile.name == "smoke" else ("digits", 20)
    found: list[Model] = []
    for seed in profile.seeds:
        for kind, schedule in (("vit", "constant"), ("diffvit", "constant"), ("diffvit", "depth")):
            sizes = {"depth": 2, **({"lambda_schedule": "depth"} if schedule == "depth" else {})}
            found.append(TrainVit(model=kind, data=data, seed=seed, sizes=sizes, recipe={"epochs": epochs}))
        found.append(Own(build=untrained, series="untrained", image_shape=(1, 8, 8), num_classes=10, seed=seed))
    # a model that exists already: antiphase.studies.cells.given("runs/mine", series="mine"), given("timm:NAME", …)
    return found


def cells(profile: Profile) -> list[Cell]:
    """Every model under both attacks."""
    images = 20 if profile.name == "smoke" else 360
    return [
        Attack(model=model, data="digits", eps=EPS, limit=images, attack=attack, settings={"steps": 10})
        for model in models(profile)
        for attack in ("pgd", margin_pgd)
    ]


def _named(rows: RowsByTable) -> pl.DataFrame:
    """Tell the two kinds of DiffViT apart; what is averaged must be one cell for each seed."""
    by_depth = pl.col("lambda_schedule") == "depth"
    name = pl.when(by_depth).then(pl.format("{}, λ by depth", "series")).otherwise(pl.col("series"))
    return rows["attack"].with_columns(series=name)


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each attack: ASR over ε."""
    rates = estimates(_named(rows), ["attack", "series", "eps"], ASR)
    drawn = panels(rates, "{attack}", "eps", ("ε", "attack success rate"), scale="eps", percent=True)
    return Artefact([Plot("asr", f"ASR by ε. Bands: 95 % over {over(rates)}.", drawn)])


def claims(rows: RowsByTable) -> list[Claim]:
    """What you expect, as differences that should lie above 0."""
    attacks = _named(rows).filter(attack="pgd")
    checks = higher(attacks, "DiffViT, λ by depth", than="ViT", eps=EPS[0])
    return [Claim("still-fragile", "my expectation", "DiffViT with λ by depth is more fragile than ViT.", checks)]


study = Study("example", "own", "Example", "λ_init by depth", __doc__, cells, draw, claims)
