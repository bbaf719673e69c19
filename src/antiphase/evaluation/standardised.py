"""A rate standardised to one distribution of a covariate, such as the clean margin.

A model with smaller margins is broken more often even if nothing else sets it apart. Standardisation asks how often it
would be broken if its images had the margins of a common population: post-stratification.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

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
