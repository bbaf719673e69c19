"""A CLIP with the weights that its training starts from."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import nn

from antiphase.models.card import ModelCard, with_card
from antiphase.models.clip import build_clip
from antiphase.models.kinds import attention_kind
from antiphase.studies.cells.clip import TrainClip
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell


@final
@dataclass(frozen=True, kw_only=True)
class Untrained:
    """The initial weights of a training, which is not run for it.

    Attributes:
        of: the training.
    """

    version: ClassVar[int] = 1
    of: TrainClip

    @property
    def label(self) -> str:
        """That of the training, and what is different."""
        return f"{self.of.label}, untrained"

    def load(self, lab: Lab) -> nn.Module:
        """Build it."""
        recipe = self.of.make_recipe("")
        model = build_clip(recipe.model, recipe.seed)
        card = ModelCard(
            self.label, self.label, attention_kind(model), recipe.seed, model.image_shape, num_classes=0
        )
        return with_card(model, card)

    def factors(self) -> dict[str, Any]:
        """Return those of the training; the series says that there was none."""
        found = self.of.factors()
        return found | {"series": f"{found['series']}, untrained"}

    def needed(self) -> tuple[Cell, ...]:
        """Return nothing: its weights are drawn."""
        return ()

    def forward_work(self) -> float:
        """Return the operations of one image's forward pass."""
        return self.of.forward_work()
