"""Whether DiffViT is more fragile where attention has more to do: more tokens, a wider model, a longer training."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import polars as pl

from antiphase.studies.cells import TrainVit
from antiphase.studies.claims import Check, on_average
from antiphase.studies.estimation import ASR, CORRECT, difference, estimates, gaps
from antiphase.studies.figures import IN_255THS, Artefact, panels, tables
from antiphase.studies.own.variants import DIFFVIT, SEEDS, STARTS, VIT, trained
from antiphase.studies.papers.declarations import Checks, Paper
from antiphase.studies.papers.robustness.bench import EPS, RobustnessBench, bench, settings
from antiphase.studies.spec import Cell, Profile, RowsByTable

PAPER = Paper("own", Path(__file__).parent)
LARGE = {"dim": 128, "patch_size": 4}
RECIPE = {"epochs": 10, "learning_rate": 2e-3, "warmup_epochs": 1}
"""Chosen by the accuracy on 5,000 training images that one DiffViT did not learn: 87.1 % after 8 epochs."""


def larger(sizes: RobustnessBench, series: str, seed: int, data: str, start: str) -> TrainVit:
    """Return the training of a larger model, with 49 tokens in place of 16."""
    model = trained(sizes, series, seed, data, start)
    return replace(model, sizes={**model.sizes, **LARGE}, recipe={**model.recipe, **RECIPE})


def cells(profile: Profile) -> list[Cell]:
    """Return PGD over ε and accuracy of the larger models, and PGD on those of the other studies."""
    sizes, made = bench(profile), list[Cell]()
    seeds = profile.seeds_or(SEEDS if profile.name == "laptop" else len(profile.seeds))
    for data, seed, start, series in product(sizes.data, seeds, STARTS, (VIT, DIFFVIT)):
        model = trained(sizes, series, seed, data, start)
        if profile.name == "laptop":  # the others' models are as small, or as large, as these
            made.append(sizes.attack(model))
            model = larger(sizes, series, seed, data, start)
        made += [sizes.attack(model), sizes.accuracy(model)]
    return made


def draw(rows: RowsByTable) -> Artefact:
    """Draw ASR over ε by initial weights; tables of ASR, of the differences, and of accuracy."""
    by = ["data", "dim", "series", "eps"]
    rates = estimates(rows["attack"], by, ASR)
    drawn = panels(rates, "{dim} wide, {data}", "eps", ("ε", "attack success rate"), scale="eps", percent=True)
    listed = tables(rates, "ASR under PGD, {dim} wide, {data}", "larger-vits-{dim}-{data}", "series", IN_255THS)
    apart = estimates(
        gaps(rows["attack"]).with_columns(series=pl.format("{} wide", "dim")), by, pl.col("value"), "difference"
    )
    listed += tables(apart, "ASR of DiffViT − ASR of ViT, {data}", "larger-vits-gap-{data}", "series", IN_255THS)
    clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
    listed += tables(clean, "Clean accuracy of the larger models", "larger-vits-accuracy", "series", "data")
    return Artefact([PAPER.plot("larger-vits", drawn)], listed)


def checks(rows: RowsByTable) -> Checks:
    """Check that the larger DiffViT has the higher ASR, and that it is further above ViT's than a smaller one's."""
    attacks = rows["attack"]
    widths = sorted(attacks["dim"].unique())
    found: Checks = {"larger-fragile": on_average(attacks, DIFFVIT, than=VIT, eps=EPS, dim=widths[-1])}
    if len(widths) > 1:
        wide = difference(gaps(attacks), {"dim": widths[-1]}, {"dim": widths[0]}, pl.col("value"))
        found["larger-gap"] = [Check(f"gap({widths[-1]} wide) − gap({widths[0]} wide), mean over ε", wide)]
    return found


LARGER_VITS = PAPER.study("larger-vits", cells, draw, checks, settings, by_data=True)
