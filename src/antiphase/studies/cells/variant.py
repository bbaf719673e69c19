"""A trained model under a name of its own, with or without an intervention on its differential attention."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

from torch import nn

from antiphase.errors import UserError
from antiphase.models.card import card_of, with_card
from antiphase.sensitivity.interventions import (
    Branch,
    mean_negatives,
    replace_negative,
    scale_lambda,
    stop_gradient,
    uniform_like,
)
from antiphase.studies.cells.models import aside
from antiphase.studies.cells.vit import TrainVit
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell

_AVERAGED = 1000  # training images that A2 is averaged over


@final
@dataclass(frozen=True, kw_only=True)
class Variant:
    """A trained model, intervened on at test time.

    Attributes:
        model: its training.
        series: name of its series in tables and figures.
        lam: factor of λ.
        negative: A2 as trained (``"own"``), its mean over 1,000 training images, or uniform attention.
        stopped: maps that pass no gradient to the attacker; verdicts are the trained model's.

    Raises:
        UserError: ``negative`` is unknown, or A2 is replaced and its gradient stopped.
    """

    version: ClassVar[int] = 1
    model: TrainVit
    series: str = aside("")
    lam: float = 1.0
    negative: Literal["own", "mean", "uniform"] = "own"
    stopped: tuple[Branch, ...] = ()

    def __post_init__(self) -> None:
        if self.negative not in ("own", "mean", "uniform"):
            raise UserError(f"negative {self.negative!r}: expected own, mean or uniform")
        if self.negative != "own" and self.stopped:
            raise UserError(f"negative {self.negative!r} with a stopped gradient: expected one of the two")

    @property
    def label(self) -> str:
        """Series and seed."""
        return f"{self.series or self.model.series} seed {self.model.seed}"

    def load(self, lab: Lab) -> nn.Module:
        """Return the intervened model."""
        model = self.model.load(lab)
        if self.lam != 1.0:
            scale_lambda(model, self.lam)
        if self.negative != "own":
            images = lab.images(self.model.data, "train", _AVERAGED, image_size=self.model.pixels)
            means = mean_negatives(model, (batch for _, batch, _ in images.batches(256)))
            replace_negative(model, means if self.negative == "mean" else uniform_like(means))
        if self.stopped:
            stop_gradient(model, self.stopped)
        return with_card(model, replace(card_of(model), name=self.label))

    def factors(self) -> dict[str, Any]:
        """Return the model's factors under this series."""
        return self.model.factors() | {"series": self.series or self.model.series}

    def needed(self) -> tuple[Cell, ...]:
        """Return the training."""
        return (self.model,)

    def forward_work(self) -> float:
        """Return the operations of one image's forward pass."""
        return self.model.forward_work()
