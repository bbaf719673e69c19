"""Whether the subtraction alone raises the ASR: variants of differential attention, with norm and factor or without."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from antiphase.statistics.intervals import standardised
from antiphase.studies import BY_SEED, IN_255THS, Artefact, Check, Margin, TrainVit, on_average, panels, tables
from antiphase.studies.estimation import ASR, CORRECT, SEED, as_matrix, difference, estimates, gaps
from antiphase.studies.papers.declarations import Checks, Paper
from antiphase.studies.papers.robustness.bench import EPS, RobustnessBench, bench, settings
from antiphase.studies.papers.robustness.layers import cosine
from antiphase.studies.spec import Cell, Profile, RowsByTable

PAPER = Paper("own", Path(__file__).parent)
VIT, DIFFVIT, V2 = "ViT", "DiffViT", "V2"
HALF, ZERO = "V2, λ = ½", "V2, λ = 0"  # the last one is a ViT without biases in its attention
GROUPED, GATED, DINT = "grouped", "gated", "DINT"
SIZES: dict[str, dict[str, Any]] = {VIT: {}, DIFFVIT: {}, V2: {"variant": "v2"}}
SIZES[HALF] = {"variant": "v2", "parameterisation": "fixed", "lambda_init": 0.5}
SIZES[ZERO] = {"variant": "v2", "parameterisation": "zero"}
SIZES |= {GROUPED: {"variant": "grouped"}, GATED: {"variant": "gated"}, DINT: {"variant": "dint"}}
STARTS = ("uniform", "normal")
SEEDS, PROBED = 8, 4  # training seeds of the laptop profile, and those whose gradients are measured
# of the claims: which model is said to be the more fragile one
PAIRS = {"differential": (DIFFVIT, VIT), "subtraction-alone": (V2, ZERO), "fixed-subtraction-alone": (HALF, ZERO)}
PAIRS |= {"lambda-of-tokens": (V2, HALF), "v2": (V2, VIT), "grouped": (GROUPED, VIT), "gated": (GATED, VIT)}
PAIRS |= {"dint": (DINT, VIT)}


def trained(sizes: RobustnessBench, series: str, seed: int, data: str, start: str) -> TrainVit:
    """Return the training of a series; uniform initial weights are those of the other studies."""
    how: dict[str, Any] = SIZES[series] | ({"initial_weights": start} if start != "uniform" else {})
    return replace(sizes.train("vit" if series == VIT else "diffvit", seed, data, **how), called=series)


def seeds_of(profile: Profile, count: int = SEEDS) -> tuple[int, ...]:
    """Return the training seeds, as many as this under the laptop profile."""
    return profile.seeds_or(count if profile.name == "laptop" else len(profile.seeds))


def shown_settings(profile: Profile, depths: Sequence[int] = (1,), count: int = SEEDS, **how: Any) -> dict[str, str]:
    """Return the settings of a study of so many seeds and some depths, as its page shows them."""
    seeds = len(seeds_of(profile, count))
    return settings(profile, depths=depths, seeds=seeds, deep_seeds=seeds, **how)


def cells(profile: Profile) -> list[Cell]:
    """Return PGD over ε, accuracy and margins of every model, and the gradients of the first seeds' maps."""
    sizes, made = bench(profile), list[Cell]()
    for data, start, seed, series in product(sizes.data, STARTS, seeds_of(profile), SIZES):
        model = trained(sizes, series, seed, data, start)
        made += [sizes.attack(model), sizes.accuracy(model)]
        made.append(Margin(model=model, data=data, limit=sizes.images, gradients=False))
        if seed < PROBED:
            made += [sizes.sense_of(model, part) for part in ("alignment", "lipschitz")]
    return made


def at_equal_margins(rows: RowsByTable, pair: tuple[str, str]) -> pl.DataFrame:
    """Return for each ε, seed and image whether it is broken, standardised to the clean margins of both models."""
    margins = {name: as_matrix(rows["margin"].filter(series=name), pl.col("margin"), name) for name in pair}
    frames = []
    for name in pair:
        for _, block in rows["attack"].filter(series=name).group_by("eps", maintain_order=True):
            block = block.sort(SEED, "sample")
            even = standardised(as_matrix(block, ASR, name), margins[name], list(margins.values()))
            frames.append(block.with_columns(value=pl.Series(even.ravel())))
    return pl.concat(frames)


def draw(rows: RowsByTable) -> Artefact:
    """Draw how far each ASR is above ViT's; tables of ASR, accuracy, margins, gradients and Lipschitz constants."""
    rates = estimates(rows["attack"], ["data", "series", "eps"], ASR)
    # without the seeds: too many lines to tell apart
    apart = pl.concat(
        gaps(rows["attack"], series, VIT).with_columns(series=pl.lit(series)) for series in SIZES if series != VIT
    )
    above = estimates(apart, ["data", "series", "eps"], pl.col("value"), "difference").drop(BY_SEED)
    style: dict[str, Any] = {"scale": "eps", "percent": True, "level": 0.0}
    drawn = panels(above, "{data}", "eps", ("ε", "ASR − ASR of ViT"), **style)
    listed = tables(rates, "ASR under PGD, {data}", "variants-{data}", "series", IN_255THS)
    clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
    listed += tables(clean, "Clean accuracy", "variants-accuracy", "series", "data")
    margins = estimates(rows["margin"], ["series", "data"], pl.col("margin"), "size")
    listed += tables(margins, "Clean margin, mean", "variants-margin", "series", "data", percent=False)
    keys = ["series", "data", "attention", "cell", SEED, "sample"]
    aligned = rows["alignment"].filter(site="pixels").group_by(keys, maintain_order=True)
    sums = aligned.agg(pl.mean("lam", "cross", "first", "second", "moved"))
    kind = ["series", "data"]
    differential = sums.filter(attention="differential").with_columns(cosine=cosine().over(kind))
    maps = rows["lipschitz"].filter(of="map", estimator="power iteration")
    numbers = {
        "lam": ("λ", differential, pl.col("lam")),
        "cosine": ("cosθ of the two maps' gradients at the pixels", differential, pl.col("cosine")),
        "gradient": ("ln ‖J‖ of the combined map at the pixels", sums, pl.col("moved").log() / 2),
        "lipschitz": ("ln of the map's local Lipschitz constant, power iteration", maps, pl.col("value").log()),
    }
    for name, (title, frame, value) in numbers.items():
        means = estimates(frame, kind, value, "number")
        listed += tables(means, title, f"variants-{name}", "series", "data", percent=False, digits=2)
    return Artefact([PAPER.plot("variants", drawn)], listed)


def checks(rows: RowsByTable) -> Checks:
    """Check each pair on average over ε, with each ε beside it; the subtraction's also at equal clean margins."""
    attacks, pairs = rows["attack"], PAIRS.items()
    claims = {f"{name}-raises-asr": on_average(attacks, one, than=two, eps=EPS) for name, (one, two) in pairs}
    one, two = pair = PAIRS["subtraction-alone"]
    even = difference(at_equal_margins(rows, pair), {"series": one}, {"series": two}, pl.col("value"))
    words = f"ASR({one}) − ASR({two}) at equal clean margins, mean over ε"
    return claims | {"subtraction-alone-at-equal-margins": [Check(words, even)]}


VARIANTS = PAPER.study("variants", cells, draw, checks, shown_settings, by_data=True)
