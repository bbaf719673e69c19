"""Observations that come in clusters, such as six questions about one image: ratios, AUC and a paired test.

Ratios and the AUC are no means of their observations, but each is the mean of linearised values: θ plus n times the
observation's influence on θ. The mean of these is θ, and their spread over the clusters is that of θ, to first order.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int64


def ratio_values(
    numerator: Float[np.ndarray, " n"], denominator: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return values whose mean is θ = Σa / Σb and whose spread is that of θ: θ + n·(aᵢ − θ·bᵢ) / Σb.

    Args:
        numerator: a, such as 1 for a hit.
        denominator: b, such as 1 for what the hit is counted among; not all 0.

    Raises:
        ValueError: The denominators sum to 0.

    >>> float(ratio_values(np.array([1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])).mean())
    0.5
    """
    total = float(denominator.sum())
    if not total:
        raise ValueError("a ratio to nothing")
    ratio = float(numerator.sum()) / total
    return ratio + len(numerator) * (numerator - ratio * denominator) / total


def auc_values(scores: Float[np.ndarray, " n"], truth: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return values whose mean is the area under the ROC curve and whose spread over clusters is that of the area.

    The area A is the probability that a positive scores higher than a negative; ties count half. With Vᵢ the share of
    the observations of the other kind that observation i is on the right side of, and mᵢ the number of its own kind,
    the value is A + n·(Vᵢ − A) / mᵢ.

    Source: N. A. Obuchowski, "Nonparametric analysis of clustered ROC curve data", Biometrics 53:567–578 (1997).

    Args:
        scores: higher for positives.
        truth: which are positive; both kinds occur.

    Raises:
        ValueError: All are of one kind.

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


def mcnemar_clustered(
    first: Bool[np.ndarray, " n"], second: Bool[np.ndarray, " n"], clusters: Int64[np.ndarray, " n"]
) -> float:
    """Return the two-sided exact p-value that two paired outcomes are equally frequent, for clustered observations.

    With d_c the difference of the two counts in cluster c, p = P(|Σ s_c·d_c| ≥ |Σ d_c|) for independent random signs
    s_c: under the hypothesis the two outcomes of a cluster can be exchanged as a whole. If each cluster has at most one
    discordant observation, this is the exact McNemar test.

    Raises:
        ValueError: The arrays differ in length or are empty.
    """
    if not first.shape == second.shape == clusters.shape or not first.size:
        raise ValueError(
            f"paired outcomes of {first.size} and {second.size} samples: expected equal numbers, at least 1"
        )
    _, place = np.unique(clusters, return_inverse=True)
    sums = np.bincount(place, first.astype(float) - second.astype(float)).round().astype(int)
    sizes = np.abs(sums[sums != 0])
    reach = int(sizes.sum())
    probability = np.zeros(2 * reach + 1)
    probability[reach] = 1.0  # of a sum of 0
    for size in sizes.tolist():
        shifted = np.zeros_like(probability)
        shifted[size:] += probability[:-size] / 2
        shifted[:-size] += probability[size:] / 2
        probability = shifted
    far = np.abs(np.arange(-reach, reach + 1)) >= abs(int(sums.sum()))
    return min(float(probability[far].sum()), 1.0)


STRATA = 20


def standardised(
    values: Float[np.ndarray, "seeds samples"],
    covariate: Float[np.ndarray, "seeds samples"],
    population: Sequence[Float[np.ndarray, "seeds samples"]],
    strata: int = STRATA,
) -> Float[np.ndarray, "seeds samples"]:
    """Return values whose mean is the standardised mean Σ_k w_k·μ_k, and whose spread gives its variance.

    The strata k lie between the quantiles of the population's covariate; w_k is the share of the population in stratum
    k, p_k that of the model's own images, and μ_k the mean of the model's values there. Image i of a seed gets
    (1/R)·Σ_r μ_k(r,i) + (w_k/p_k)·(y_i − μ_k), where k is its own stratum and k(r,i) that of the r-th of the R members
    of the population. The second term is 0 on average, so the mean is exact; both together are the estimator linearised
    in each image, so differences between models may be averaged over seeds and images like any other values. Where the
    model has no image in a stratum, μ_k is that of the nearest stratum that has.

    The result is comparable between models if images of the same stratum are: the covariate varies little within a
    stratum, and nothing else that both the model and the outcome depend on is left out.

    Args:
        values: the model's outcome, such as whether an image was broken.
        covariate: the model's covariate of the same images.
        population: covariates of the models whose images, pooled, are the common population.
        strata: number of strata, at least 1; ties may leave fewer.

    Returns:
        One value for each seed and image.

    Source: R. J. A. Little, "Post-stratification: a modeler's perspective", JASA 88:1001–1012 (1993).
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
    # a stratum without images hands its weight to the one that stands in for it
    weights = np.bincount(nearest, weights, count)
    ratios = np.divide(weights * own.size, sizes, out=np.zeros(count), where=sizes > 0)
    return means[theirs].mean(0) + ratios[own] * (values - means[own])
