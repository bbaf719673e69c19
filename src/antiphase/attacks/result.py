"""The result of an attack: one entry per sample, every success confirmed in float32."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from antiphase.attacks.threat import Threat
from antiphase.terminal import eps_label

if TYPE_CHECKING:
    import polars as pl

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

    def frame(self) -> "pl.DataFrame":
        """Return a row for each sample: its id, labels and predictions, success, distance and passes."""
        import polars as pl

        columns = {name: getattr(self, name).cpu().numpy() for name in _COLUMNS}
        return pl.DataFrame({"sample": self.ids.cpu().numpy(), **columns})
