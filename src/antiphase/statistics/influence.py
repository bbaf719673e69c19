"""Values whose mean is a statistic that is no mean, and whose spread is that of the statistic, to first order.

Each value is θ plus n times the observation's influence on θ. So ratios, areas under a curve and standardised rates can
be averaged over clusters, such as six questions about one image, and over training seeds like any other values.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

STRATA = 20


def ratio_values(
    numerator: Float[np.ndarray, " n"], denominator: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return values whose mean is θ = Σa / Σb: θ + n·(aᵢ − θ·bᵢ) / Σb.

    >>> float(ratio_values(np.array([1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])).mean())
    0.5
    """
    total = float(denominator.sum())
    if not total:
        raise ValueError("a ratio to nothing")
    ratio = float(numerator.sum()) / total
    return ratio + len(numerator) * (numerator - ratio * denominator) / total


def auc_values(scores: Float[np.ndarray, " n"], truth: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return values whose mean is the area under the ROC curve.

    The area A is the probability that a positive scores higher than a negative; ties count half. With Vᵢ the share of
    the observations of the other kind that observation i is on the right side of, and mᵢ the number of its own kind,
    the value is A + n·(Vᵢ − A) / mᵢ.

    Source: N. A. Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53:567–578 (1997).

    >>> float(auc_values(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])).mean())
    0.875
    """
    positive, negative = np.sort(scores[truth]), np.sort(scores[~truth])
    if not len(positive) or not len(negative):
        raise ValueError("an area under a curve of one kind of observation")
    own, other = np.where(truth, len(positive), len(negative)), np.where(truth, len(negative), len(positive))
    lower, upper = (
        np.where(truth, np.searchsorted(negative, scores, side), np.searchsorted(positive, scores, side))
        for side in ("left", "right")
    )
    below = (lower + upper) / 2 / other
    right = np.where(truth, below, 1 - below)
    area = float(right[truth].mean())
    return area + len(scores) * (right - area) / own


def standardised(
    values: Float[np.ndarray, "seeds samples"],
    covariate: Float[np.ndarray, "seeds samples"],
    population: Sequence[Float[np.ndarray, "seeds samples"]],
    strata: int = STRATA,
) -> Float[np.ndarray, "seeds samples"]:
    """Return values whose mean is Σ_k w_k·μ_k: the rate if a model's images had a common population's covariate.

    A model with smaller margins is broken more often even if nothing else sets it apart; post-stratification by the
    margin takes that away. The strata k lie between the quantiles of the population's covariate (ties may leave fewer);
    w_k is the share of the population in stratum k, p_k that of the model's own images, and μ_k the mean of the model's
    values there. Image i of a seed gets (1/R)·Σ_r μ_k(r,i) + (w_k/p_k)·(y_i − μ_k), where k is its own stratum and
    k(r,i) that of the r-th of the R members of the population. The second term is 0 on average. Where the model has no
    image in a stratum, μ_k is that of the nearest stratum that has.

    The result is comparable between models if images of the same stratum are: the covariate varies little within a
    stratum, and nothing else that both the model and the outcome depend on is left out.

    Source: R. J. A. Little, "Post-stratification: a modeler's perspective", JASA 88:1001–1012 (1993).

    Args:
        values: the model's outcome, such as whether an image was broken.
        covariate: the model's covariate of the same images.
        population: covariates of the models whose images, pooled, are the common population.
        strata: their number, at least 1.
    """
    pooled = np.stack(population)
    inner = np.unique(np.quantile(pooled, np.arange(1, strata) / strata))
    count = len(inner) + 1
    own, theirs = (np.searchsorted(inner, each, side="right") for each in (covariate, pooled))
    sizes = np.bincount(own.ravel(), minlength=count)
    sums = np.bincount(own.ravel(), values.ravel().astype(float), count)
    weights = np.bincount(theirs.ravel(), minlength=count) / pooled.size
    filled = np.flatnonzero(sizes)
    nearest = filled[np.abs(np.arange(count)[:, None] - filled).argmin(1)]
    means = (sums[filled] / sizes[filled])[np.searchsorted(filled, nearest)]
    weights = np.bincount(nearest, weights, count)  # an empty stratum hands its weight to its stand-in
    ratios = np.divide(weights * own.size, sizes, out=np.zeros(count), where=sizes > 0)
    return means[theirs].mean(0) + ratios[own] * (values - means[own])
