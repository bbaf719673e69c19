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
LARGER = {VIT: "larger ViT", DIFFVIT: "larger DiffViT"}
RECIPE = {"epochs": 10, "learning_rate": 2e-3, "warmup_epochs": 1}
"""Chosen by the accuracy on 5,000 training images that one DiffViT did not learn: 87.1 % after 8 epochs."""


def larger(sizes: RobustnessBench, series: str, seed: int, data: str, start: str) -> TrainVit:
    """Return the training of a model twice as wide; on the images of a laptop, with 49 patches in place of 16."""
    model = trained(sizes, series, seed, data, start)
    how = {
        "sizes": {**model.sizes, "dim": 2 * model.config().dim, "patch_size": 4},
        "recipe": {**model.recipe, **RECIPE},
    }
    return replace(model, called=LARGER[series], **how)


def cells(profile: Profile) -> list[Cell]:
    """Return PGD over ε and accuracy of the larger models, and PGD on those of the other studies."""
    sizes, made = bench(profile), list[Cell]()
    seeds = profile.seeds_or(SEEDS if profile.name == "laptop" else len(profile.seeds))
    for data, seed, start, series in product(sizes.data, seeds, STARTS, LARGER):
        model = larger(sizes, series, seed, data, start)
        made += [sizes.attack(trained(sizes, series, seed, data, start)), sizes.attack(model), sizes.accuracy(model)]
    return made


def draw(rows: RowsByTable) -> Artefact:
    """Draw ASR over ε by initial weights; tables of ASR, of the differences, and of accuracy."""
    attacks = rows["attack"]
    rates = estimates(attacks, ["data", "series", "eps"], ASR)
    drawn = panels(rates, "{data}", "eps", ("ε", "attack success rate"), scale="eps", percent=True)
    listed = tables(rates, "ASR under PGD, {data}", "larger-vits-{data}", "series", IN_255THS)
    apart = estimates(_gaps(attacks), ["data", "series", "eps"], pl.col("value"), "difference")
    listed += tables(apart, "Difference in ASR, {data}", "larger-vits-gap-{data}", "series", IN_255THS)
    clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
    listed += tables(clean, "Clean accuracy", "larger-vits-accuracy", "series", "data")
    return Artefact([PAPER.plot("larger-vits", drawn)], listed)


def _gaps(attacks: pl.DataFrame) -> pl.DataFrame:
    pairs = [(DIFFVIT, VIT), (LARGER[DIFFVIT], LARGER[VIT])]
    frames = [gaps(attacks, *pair).with_columns(series=pl.lit(" − ".join(pair))) for pair in pairs]
    return pl.concat(frames)


def checks(rows: RowsByTable) -> Checks:
    """Check that the larger DiffViT has the higher ASR, and that it is further above ViT's than the smaller one's."""
    apart = _gaps(rows["attack"])
    small, large = apart["series"].unique(maintain_order=True)
    grows = difference(apart, {"series": large}, {"series": small}, pl.col("value"))
    fragile = on_average(rows["attack"], LARGER[DIFFVIT], than=LARGER[VIT], eps=EPS)
    words = f"({large}) − ({small}), ASR, mean over ε"
    return {"larger-fragile": fragile, "larger-gap": [Check(words, grows)]}


LARGER_VITS = PAPER.study("larger-vits", cells, draw, checks, settings, by_data=True)
