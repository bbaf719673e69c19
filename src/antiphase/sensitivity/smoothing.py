"""Randomised smoothing: certified radii for the majority vote of a model under Gaussian noise.

Source: J. Cohen, E. Rosenfeld, J. Z. Kolter, *Certified Adversarial Robustness via Randomized Smoothing*
(ICML 2019), Theorem 1 and procedure CERTIFY of Section 3.2.2.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from scipy import stats
from torch import Tensor

from antiphase import streams, terminal
from antiphase.arguments import NOT_EMPTY, UNIQUE, UNIT_RANGE, Count, Positive, Probability, Seed, Size, validated
from antiphase.attacks.engine.oracle import QUANTUM, Classifier, Oracle, attacked
from antiphase.errors import UserError
from antiphase.precision import Precision

Counts = Int[np.ndarray, "..."] | int
Numbers = Float[np.ndarray, "..."]
ABSTAIN = -1
"""The prediction if the vote is too close to certify a class."""

# numbers drawn at once, to fit the processor's cache, and noisy copies per batch; larger was slower
_SIZES = {"cpu": (2**15, 64)}
_ELSEWHERE = (2**24, 2**12)
_BATCH_NUMBERS = 2**27  # upper limit of the numbers in a batch


def lower_bound(count: Counts, samples: int, alpha: float) -> Numbers:
    """Compute the one-sided Clopper–Pearson (1934) lower bound of a probability at confidence 1 − α.

    The bound is the α-quantile of Beta(count, samples − count + 1), and 0 for no successes in ``samples`` trials.
    """
    successes = np.asarray(count, dtype=np.float64)
    bound = stats.beta.ppf(alpha, np.maximum(successes, 1), samples - successes + 1)
    return np.where(successes > 0, bound, 0.0)


def certified_radius(count: Counts, samples: int, sigma: float, alpha: float) -> Numbers:
    """Compute the certified L2 radius R = σ·Φ⁻¹(p_low), with the source's p_B ≤ 1 − p_A; NaN (abstain) if p_low < ½."""
    bound = lower_bound(count, samples, alpha)
    return np.where(bound < 0.5, np.nan, sigma * stats.norm.ppf(np.maximum(bound, 0.5)))


@validated
@dataclass(frozen=True)
class Smoothing:
    """Settings of randomised smoothing; the defaults are the source's."""

    sigma: Positive  # standard deviation of the noise, in units of the [0, 1] pixel range
    select: Count = 100  # draws to choose the class (n₀)
    samples: Count = 100_000  # further draws to bound its probability (n)
    alpha: Probability = 0.001  # probability that the bound of one image is wrong
    seed: Seed = 0  # of the noise
    precision: Precision = "float32"  # of the forward passes, for which the certificate is

    def __post_init__(self) -> None:
        if self.alpha < 0.5**self.samples:
            fix = f"even if all agree; expected at least {math.ceil(math.log2(1 / self.alpha))}"
            raise UserError(f"samples {self.samples}: too few to certify any image at alpha {self.alpha:g}, {fix}")

    @property
    def reach(self) -> float:
        return float(certified_radius(self.samples, self.samples, self.sigma, self.alpha))


@dataclass(frozen=True)
class Smoothed:
    """Result of smoothing for each image."""

    ids: Int64[Tensor, " samples"]
    prediction: Int64[Tensor, " samples"]  # class predicted by the smoothed model, or ABSTAIN
    radius: Float[Tensor, " samples"]  # certified, L2, in units of the [0, 1] pixel range; 0: it abstains
    top: Int64[Tensor, " samples"]  # class chosen by the ``select`` draws, even if the model abstains
    count: Int64[Tensor, " samples"]  # of the ``samples`` draws that voted for ``top``
    smoothing: Smoothing
    seconds: float


@validated
def smooth(
    model: Classifier,
    images: Annotated[Float[Tensor, "samples channels height width"], NOT_EMPTY, UNIT_RANGE],
    *,
    sigma: Positive,
    select: Count = 100,
    samples: Count = 100_000,
    alpha: Probability = 0.001,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " samples"], UNIQUE] | None = None,
    batch_size: Size | None = None,
    precision: Precision = "float32",
    progress: str = "",
    on_finished: Callable[[int, dict[str, Any]], None] | None = None,
) -> Smoothed:
    """Predict the class of each image by majority vote over noisy copies, and certify an L2 radius.

    With probability at least 1 − α per image (not jointly), the smoothed model g(x) = argmax_c P(f(x + ε) = c), ε ~
    N(0, σ²I), predicts ``prediction`` everywhere within L2 distance ``radius``; this holds for g, not for f. Noisy
    copies are not clamped to [0, 1], because the theorem assumes Gaussian noise. The noise is keyed by (seed, id,
    draw): 1,000 draws are the first of a longer run.

    ``sigma`` to ``seed`` and ``precision`` are the settings of :class:`Smoothing`; ``ids`` key the noise, the positions
    if None; ``batch_size`` is in noisy copies; ``progress`` is the title of a bar on stderr. ``on_finished`` gets the
    position of each finished image and its ``prediction``, ``radius``, ``top`` and ``count``.
    """
    began = time.monotonic()
    settings = Smoothing(sigma, select, samples, alpha, seed, precision)
    ids = torch.arange(len(images)) if ids is None else ids.detach().cpu()
    verdicts: list[dict[str, Any]] = []
    bar = terminal.progress_bar(progress, len(images), bool(progress))
    with attacked(model, precision, device=images.device) as oracle, bar as advance:
        for votes in _votes(oracle, images, ids, settings, batch_size, advance):
            verdicts.append(_certify(votes, settings))
            if on_finished is not None:
                on_finished(len(verdicts) - 1, verdicts[-1])
    columns = {name: torch.from_numpy(np.array([one[name] for one in verdicts])) for name in verdicts[0]}
    return Smoothed(ids, **columns, smoothing=settings, seconds=time.monotonic() - began)


def _certify(votes: Int64[Tensor, " draws"], smoothing: Smoothing) -> dict[str, Any]:
    """Apply CERTIFY to one image's votes; the draws that choose the class are not used for the bound."""
    top = int(votes[: smoothing.select].bincount().argmax())
    count = int((votes[smoothing.select :] == top).sum())
    radius = float(certified_radius(count, smoothing.samples, smoothing.sigma, smoothing.alpha))
    verdict = {"prediction": top, "radius": radius, "top": top, "count": count}
    return verdict | {"prediction": ABSTAIN, "radius": 0.0} if math.isnan(radius) else verdict


def _votes(
    oracle: Oracle,
    images: Tensor,
    ids: Tensor,
    smoothing: Smoothing,
    size: int | None,
    advance: Callable[[float], object],
) -> Iterator[Int64[Tensor, " draws"]]:
    draws, pixels = smoothing.select + smoothing.samples, math.prod(images.shape[1:])
    block, batch = _SIZES.get(oracle.device.type, _ELSEWHERE)
    size = size or min(batch, max(QUANTUM, _BATCH_NUMBERS // pixels))
    bases = [streams.key(smoothing.seed, "smoothing", name) for name in ("select", "samples")]
    keys = [streams.sample_keys(base, ids) for base in bases]
    waiting: list[Tensor] = []
    for first in range(0, len(images) * draws, size):
        number = torch.arange(first, min(first + size, len(images) * draws))
        position, draw = number // draws, number % draws
        selects = draw < smoothing.select
        noise_keys = torch.where(selects, keys[0][position], keys[1][position]).to(oracle.device)
        offset = torch.where(selects, draw, draw - smoothing.select).to(oracle.device) * pixels
        blocks = zip(*(part.split(max(1, block // pixels)) for part in (noise_keys, offset)), strict=True)
        noise = torch.cat([streams.normal(key, pixels, start) for key, start in blocks])
        near = images[position[0] : position[-1] + 1].to(oracle.device)  # each image is copied once
        clean = near[(position - position[0]).to(near.device)]
        waiting.append(oracle.logits(clean + smoothing.sigma * noise.view_as(clean).to(clean.dtype)).argmax(1).cpu())
        advance(len(number) / draws)
        if (first + len(number)) // draws > first // draws:
            parts = torch.cat(waiting).split(draws)
            waiting = [part for part in parts if len(part) < draws]
            yield from (part for part in parts if len(part) == draws)
