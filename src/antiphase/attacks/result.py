"""The result of an attack: one entry per sample, every success confirmed in float32; and ε at which ASR is a level."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int64
from scipy import stats
from torch import Tensor

from antiphase.arguments import Probability, Share, validated
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.terminal import eps_label

_COLUMNS = ("label", "clean_prediction", "prediction", "success", "distance", "forwards", "backwards")


@dataclass(frozen=True, repr=False)
class AttackResult:
    """The result of one attack under one threat model.

    A sample's ``success``: its prediction differs from the attacked class with ‖δ‖ ≤ ε + ``threat.slack`` and every
    pixel within bounds, confirmed in float32 after the search.
    """

    attack: str  # its name
    threat: Threat
    settings: dict[str, Any]  # parameters of the attack, including defaults
    ids: Int64[Tensor, " samples"]  # which key the random streams
    label: Int64[Tensor, " samples"]  # the attacked class: the given label, or the clean prediction
    clean_prediction: Int64[Tensor, " samples"]
    prediction: Int64[Tensor, " samples"]  # of the adversarial image
    success: Bool[Tensor, " samples"]
    adversarial: Float[Tensor, " samples *shape"]  # or the iterate of highest loss if the attack failed
    distance: Float[Tensor, " samples"]  # ‖δ‖ in the threat's norm
    forwards: Int64[Tensor, " samples"]  # passes, including the one on the clean image
    backwards: Int64[Tensor, " samples"]
    warnings: tuple[str, ...] = ()  # reasons to doubt the result, each with what to do about it
    stages: tuple["AttackResult", ...] = ()  # of an ensemble, each attack on the samples it was given
    seconds: float = field(default=0.0, compare=False)  # wall-clock time of the call

    def __len__(self) -> int:
        return len(self.success)

    @property
    def asr(self) -> float:
        """Attack success rate: successes over samples, in [0, 1]."""
        return float(self.success.double().mean())

    @property
    def arrays(self) -> dict[str, Tensor]:
        """What it holds for each sample, by name."""
        return {name: getattr(self, name) for name in ("ids", *_COLUMNS, "adversarial")}

    def take(self, rows: Tensor) -> Self:
        """Return the result of some of its samples: a boolean mask or positions."""
        arrays: dict[str, Any] = {name: tensor[rows] for name, tensor in self.arrays.items()}
        return replace(self, **arrays)

    def __repr__(self) -> str:
        warned = f", warnings: {len(self.warnings)}" if self.warnings else ""
        return (
            f"<AttackResult {self.attack}, {self.threat.norm}, ε = {eps_label(self.threat.eps)}: "
            f"{int(self.success.sum())} of {len(self):,} samples broken, {self.seconds:.1f} s{warned}>"
        )

    def frame(self) -> pl.DataFrame:
        """Return a row for each sample: its id, labels and predictions, success, distance and passes."""
        columns = {name: getattr(self, name).cpu().numpy() for name in _COLUMNS}
        return pl.DataFrame({"sample": self.ids.cpu().numpy(), **columns})


Distances = Float[np.ndarray, " samples"]  # minimal adversarial distances, in units of the norm
Successes = Bool[np.ndarray, " samples"]


@dataclass(frozen=True)
class NormAt:
    """The smallest ε at which the ASR of ``n`` samples reaches a level, with its bootstrap interval from low to high.

    It is infinite if too few samples were broken.
    """

    level: float
    eps: float
    low: float
    high: float
    n: int


@validated
def eps_at(
    distance: Distances, success: Successes, levels: Sequence[Share] = (0.5, 0.95, 1.0), confidence: Probability = 0.95
) -> list[NormAt]:
    """Return the ε at which the ASR reaches each level.

    It is the k-th smallest distance, k = ⌈level·n⌉. In a bootstrap resample the k-th smallest is at most the j-th of
    the original with probability I_{j/n}(k, n − k + 1) (the regularised incomplete beta function), so the percentile
    interval is computed exactly, without resampling. At level 1 the interval cannot exceed the largest distance
    observed, so it says little about other images.

    Source: B. Efron, *Bootstrap Methods: Another Look at the Jackknife*, 1979, Section 3 (the median).
    """
    if distance.shape != success.shape or not distance.size:
        shapes = f"distances of shape {distance.shape} and successes of {success.shape}"
        raise UserError(f"{shapes}: expected one per sample")
    if not (distance[success] >= 0).all():
        raise UserError("negative or NaN distance of a broken sample: expected numbers of at least 0")
    ordered, n, rows = np.sort(np.where(success, distance, np.inf)), len(distance), []
    for level in levels:
        k = math.ceil(level * n - 1e-9)  # 0.07 · 100 is just above 7
        tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        ranks = np.ceil(n * stats.beta.ppf(tails, k, n - k + 1)).astype(int)
        eps, low, high = (float(ordered[min(max(rank, 1), n) - 1]) for rank in (k, *ranks))
        rows.append(NormAt(level, eps, low, high, n))
    return rows
