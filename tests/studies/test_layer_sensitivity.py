"""The study of what makes a layer sensitive: its numbers against those of `antiphase sense`, its claims."""

from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.studies.estimation import estimates
from antiphase.studies.figures import Panel
from antiphase.studies.papers.robustness import layers as layer
from antiphase.studies.report.figures import limits

SEEDS, LAYERS, HEADS, IMAGES = 2, 3, 5, 7


def rows(opposed: bool = True, shared: float = 0.5, seeds: int = SEEDS) -> dict[str, pl.DataFrame]:
    """Return rows of both models, gradients drawn at random.

    Args:
        opposed: whether J2 leans away from J1.
        shared: how much of what a perturbation does to A1 is done to λ·A2 too; above 0 it cancels.
        seeds: number of training seeds.
    """
    draw = np.random.default_rng(0)
    tables: dict[str, list[dict[str, Any]]] = {"alignment": [], "lipschitz": [], "depth": []}
    for (series, attention), seed in product((("DiffViT", "differential"), ("ViT", "softmax")), range(seeds)):
        name = f"{series}-{seed}"
        model = {"series": series, "model": name, "attention": attention, "cell": name, "training_seed": seed}
        for block, sample in product(range(LAYERS), range(IMAGES)):
            here = model | {"data": "digits", "depth": LAYERS, "layer": block, "name": "", "sample": sample}
            for head in range(HEADS):
                tables["alignment"].append(here | {"head": head} | gradients(draw, series == "ViT", opposed))
            for estimator in layer.ESTIMATORS:
                value = float(draw.uniform(1.0, 2.0))
                tables["lipschitz"].append(here | {"of": "map", "estimator": estimator, "value": value})
            for kind in layer.PERTURBATIONS if series == "DiffViT" else ():
                one, two = draw.normal(size=(2, 11))
                two += shared * one
                lengths = map(np.linalg.norm, (one, two, one - two))
                moved = dict(zip(("positive", "negative", "moved"), lengths, strict=True))
                tables["depth"].append(here | {"perturbation": kind, "eps": 1 / 255, "stage": block + 1} | moved)
    return {table: pl.DataFrame(records) for table, records in tables.items()}


def gradients(draw: np.random.Generator, standard: bool, opposed: bool) -> dict[str, Any]:
    """Return the inner products of two random gradients; standard attention has no second one."""
    one, two = draw.normal(size=(2, 11))
    two = 0 * two if standard else two - one if opposed else two + one
    moved = one - 0.5 * two
    return {
        "site": "pixels",
        "lam": 0.0 if standard else 0.5,
        "first": one @ one,
        "second": two @ two,
        "cross": one @ two,
        "moved": moved @ moved,
        "low": None,
        "high": None,
    }


@pytest.fixture(scope="module")
def made():
    return rows()


def of_seed(values: pl.DataFrame, quantity: str, seed: int = 0) -> list[float]:
    """Return the means over the images of one seed, layer by layer."""
    samples = values.filter(quantity=quantity, training_seed=seed)
    return estimates(samples, ["layer"], layer.VALUE, kind="number")["value"].to_list()


@pytest.mark.parametrize(
    ("quantity", "metric"),
    [
        (layer.RATIO, "relative"),
        (layer.PARTS[0], "by_gamma"),
        (layer.PARTS[1], "by_rho"),
        (layer.PARTS[2], "by_cosine"),
        ("γ", "gamma"),
    ],
)
def test_parts_are_those_of_antiphase_sense(made, quantity, metric):
    expected = sensitivity.explanation(made["alignment"], [("DiffViT-1", "ViT-1")]).filter(metric=metric)
    assert of_seed(layer.values(made), quantity, 1) == pytest.approx(expected["value"].to_list())


@pytest.mark.parametrize(("quantity", "metric"), [("ρ", "rho"), ("cosθ", "cosine")])
def test_factors_are_those_of_antiphase_sense(made, quantity, metric):
    expected = sensitivity.alignment(made["alignment"]).filter(model="DiffViT-0", metric=metric)
    assert of_seed(layer.values(made), quantity) == pytest.approx(expected["value"].to_list())


def test_cancellation_is_that_of_antiphase_sense(made):
    expected = sensitivity.cancellation(made["depth"]).filter(model="DiffViT-0", perturbation="pgd")
    assert of_seed(layer.values(made), "PGD") == pytest.approx(expected["value"].to_list())


def test_intervals_over_images_are_near_the_jackknifes(made):
    ratios = layer.values(made).filter(training_seed=0, quantity=layer.RATIO)
    ours = estimates(ratios, ["layer"], layer.VALUE, kind="number")
    expected = sensitivity.explanation(made["alignment"], [("DiffViT-0", "ViT-0")]).filter(metric="relative")
    widths = [(frame["high"] - frame["low"]).to_numpy() for frame in (ours, expected)]
    assert widths[0] == pytest.approx(widths[1], rel=0.1)


def test_parts_add_up_to_the_ratio_and_lipschitz_estimates_are_compared_in_logarithms(made):
    values = layer.values(made)
    parts = [np.array(of_seed(values, part)) for part in layer.PARTS]
    assert sum(parts) == pytest.approx(np.array(of_seed(values, layer.RATIO)))
    mine, twin = (
        made["lipschitz"].filter(series=series, training_seed=0, layer=2, estimator="sampled mean")["value"].to_numpy()
        for series in ("DiffViT", "ViT")
    )
    expected = 0.5 * np.log(np.square(mine).mean() / np.square(twin).mean())
    assert of_seed(values, "sampled mean")[2] == pytest.approx(expected)


@pytest.mark.parametrize(("opposed", "shared"), [(True, 1.0), (False, -1.0)])
def test_verdicts_follow_what_the_rows_do(opposed, shared):
    verdicts = {claim.name: claim.verdict for claim in layer.LAYER_SENSITIVITY.claims(rows(opposed, shared, seeds=8))}
    assert verdicts["angle-amplifies"] == ("holds" if opposed else "contradicted")
    assert verdicts["subtraction-cancels"] == ("holds" if shared > 0 else "contradicted")


def test_a_layer_without_its_twin_is_left_out(made):
    alone = made | {"alignment": made["alignment"].filter(series="DiffViT")}
    (plot,) = [plot for plot in layer.draw_sensitivity(alone).plots if plot.name == "layer-cancellation"]
    assert len(plot.panels) == 1
    claims = {claim.name: claim.verdict for claim in layer.LAYER_SENSITIVITY.claims(alone)}
    assert claims["gradient-above-vit"] == "not run"


def test_lambda_has_an_interval_over_the_seeds_alone(made):
    aligned = made["alignment"].with_columns(lam=0.5 + 0.1 * pl.col("training_seed"))
    estimate = layer.lambdas(aligned).row(0, named=True)
    half = 12.706204736 * 0.05  # t(1, .975), two seeds at 0.5 and 0.6
    assert (estimate["value"], estimate["low"], estimate["seeds"]) == pytest.approx((0.55, 0.55 - half, 2))
    alone = layer.lambdas(aligned.filter(training_seed=1)).row(0, named=True)
    assert (alone["value"], alone["low"], alone["high"]) == (pytest.approx(0.6), None, None)


def test_a_single_value_without_an_interval_has_an_axis():
    points = pl.DataFrame({"value": [0.8], "low": [None], "high": [None]}, schema_overrides={"low": pl.Float64})
    low, high = limits(Panel("", "layer", "λ", points.with_columns(high=pl.lit(None, pl.Float64))))
    assert low < 0.8 < high
