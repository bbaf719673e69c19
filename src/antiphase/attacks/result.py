"""What an attack returns: one entry a sample, every success confirmed."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from antiphase.attacks.threat import Threat


@dataclass(frozen=True)
class AttackResult:
    """The verdicts of one attack at one budget.

    Attributes:
        attack: its name.
        threat: norm, budget and bounds.
        settings: the parameters it ran with, defaults included.
        ids: the samples' ids, by which their random streams are keyed.
        label: the class that was attacked: the given label, or the clean prediction.
        clean_prediction: the class of the clean image.
        prediction: the class of the adversarial image.
        success: prediction differs from the attacked class, ‖δ‖ ≤ ε (but for rounding:
            ``threat.tolerance``) and every pixel is within bounds; confirmed in float32 after the search.
        adversarial: the adversarial image; where the attack failed, the iterate of highest loss.
        distance: ‖δ‖ of it, in the threat's norm.
        forwards, backwards: passes that the sample cost, the first look at the clean image included.
        warnings: what makes the verdicts doubtful, each a sentence that says what to do about it.
        stages: of an ensemble, each attack's own result on the samples that it was given.
        seconds: wall-clock time of the whole call.
    """

    attack: str
    threat: Threat
    settings: dict[str, Any]
    ids: Int64[Tensor, " samples"]
    label: Int64[Tensor, " samples"]
    clean_prediction: Int64[Tensor, " samples"]
    prediction: Int64[Tensor, " samples"]
    success: Bool[Tensor, " samples"]
    adversarial: Float[Tensor, "samples *shape"]
    distance: Float[Tensor, " samples"]
    forwards: Int64[Tensor, " samples"]
    backwards: Int64[Tensor, " samples"]
    warnings: tuple[str, ...] = ()
    stages: tuple["AttackResult", ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.success)

    @property
    def asr(self) -> float:
        """Attack success rate: successes over samples, in [0, 1]."""
        return float(self.success.double().mean())
