"""Layers against their twin's: the theorems on rows of gradients drawn at random, and radii of linear models."""

import math

import numpy as np
import polars as pl
import pytest

from antiphase.sensitivity import critical_cosine
from antiphase.sensitivity.layer_estimates import RADIUS_PARTS, RATIOS, layer_parts, places, radius_parts
from antiphase.statistics.intervals import jackknife, linearised

IMAGES, LAYERS, HEADS, SIZE = 7, 2, 3, 11


def gradients(lams=(0.8, 0.8, 0.8)):
    """Return rows of a differential model and its twin, and the gradients themselves by (layer, image, head)."""
    draw = np.random.default_rng(0)
    rows, kept = [], {}
    for layer in range(LAYERS):
        for sample in range(IMAGES):
            for head, lam in enumerate(lams):
                one, two, base = draw.normal(size=(3, SIZE))
                two = two - 0.4 * one * (1 if layer else -1)
                kept[layer, sample, head] = (one, lam * two, base)
                about = {"layer": layer, "sample": sample, "head": head, "name": "", "site": "pixels"}
                rows.append(
                    about | {"model": "diff", "lam": lam, "first": one @ one, "second": two @ two, "cross": one @ two}
                )
                rows.append(about | {"model": "base", "lam": 0.0, "first": base @ base, "second": 0.0, "cross": 0.0})
    return pl.DataFrame(rows), kept


def value(table, metric, layer):
    return table.filter(metric=metric, layer=layer)["value"].item()


@pytest.mark.parametrize("lams", [(0.8, 0.8, 0.8), (0.5, 0.9, -0.3)])
def test_places_are_those_of_all_gradients_in_one_vector(lams):
    rows, kept = gradients(lams)
    table = places(rows, {"diff": "base"})
    for layer in range(LAYERS):
        one, two, base = (
            np.concatenate([block[part] for key, block in kept.items() if key[0] == layer]) for part in range(3)
        )
        lengths = [np.linalg.norm(part) for part in (one, two, base)]
        assert value(table, "rho", layer) == pytest.approx(lengths[1] / lengths[0])
        assert value(table, "cosine", layer) == pytest.approx(one @ two / (lengths[0] * lengths[1]))
        assert value(table, "gamma", layer) == pytest.approx(lengths[0] / lengths[2])
        ratio = np.linalg.norm(one - two) / lengths[2]  # the maps subtracted first: Theorem 2
        assert value(table, "relative", layer) == pytest.approx(ratio)
        beyond = value(table, "cosine", layer) < value(table, "critical", layer)  # Theorem 3
        assert beyond == (ratio > 1)
    assert table["n"].to_list() == [IMAGES] * len(table)
    assert (table["low"] < table["value"]).all()
    assert (table["value"] < table["high"]).all()


def test_without_a_twin_the_plane_is_that_of_theorem_1():
    rows, _ = gradients()
    table = places(rows, {"diff": None})
    for layer in range(LAYERS):
        assert value(table, "gamma", layer) == 1.0
        assert value(table, "critical", layer) == pytest.approx(value(table, "rho", layer) / 2)
        assert value(table, "critical", layer) == pytest.approx(critical_cosine(1.0, 1.0, value(table, "rho", layer)))


def radii(seed):
    draw = np.random.default_rng(seed)
    columns = {"sample": range(IMAGES), "margin": draw.uniform(1, 2, IMAGES), "lipschitz": draw.uniform(3, 5, IMAGES)}
    return pl.DataFrame(columns)


def test_the_ratio_of_radii_by_hand():
    rows, _ = gradients()
    diff, base = radii(1), radii(2)
    parts = radius_parts(layer_parts(rows.filter(model="diff"), rows.filter(model="base")), diff, base)
    means = {layer: block.select(RADIUS_PARTS).to_numpy().mean(0) for (layer,), block in parts.group_by("layer")}

    def ratio(metric, layer):
        return float(RATIOS[metric](means[layer]))

    def mean(column):
        return math.exp(float((diff[column].log() - base[column].log()).mean()))

    assert ratio("margin", 0) == pytest.approx(mean("margin"))
    assert ratio("constant", 0) == pytest.approx(mean("lipschitz"))
    assert ratio("measured", 1) == pytest.approx(mean("margin") / mean("lipschitz"))
    for layer in range(LAYERS):
        place = places(rows, {"diff": "base"})
        gamma, rho, cosine, relative = (
            value(place, metric, layer) for metric in ("gamma", "rho", "cosine", "relative")
        )
        assert ratio("corrected", layer) == pytest.approx(mean("margin") / relative)
        printed = gamma * math.sqrt(1 + rho**2) - 2 * rho * cosine
        assert ratio("printed", layer) == pytest.approx(mean("margin") / printed)


def test_linearised_values_have_the_statistic_as_mean_and_the_jackknifes_interval():
    parts = np.random.default_rng(0).uniform(1, 2, (9, 2))

    def ratio(means):
        return np.sqrt(means[..., 0] / means[..., 1])

    values, estimate = linearised(parts, ratio), jackknife(parts, ratio)
    again = jackknife(values[:, None], lambda means: means[..., 0])
    assert values.mean() == pytest.approx(estimate.value)
    assert (again.low, again.high) == pytest.approx((estimate.low, estimate.high))
    assert linearised(parts[:1], ratio).tolist() == [float(ratio(parts[0]))]
