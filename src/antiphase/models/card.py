"""Metadata of a loaded model."""

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from antiphase.errors import UserError
from antiphase.models.kinds import AttentionKind

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class ModelCard:
    """Metadata of a loaded model, available as ``model.card``.

    Attributes:
        name: short name, the last part of the specification.
        spec: the specification passed to ``load_model``.
        attention: ``"softmax"``, ``"differential"``, ``"none"``, or ``"unknown"`` for any other kind.
        seed: training seed, or the seed of random weights; None if unknown.
        image_shape: (channels, height, width).
        num_classes: number of logits; 0 for a dual encoder that is not bound to prompts.
        recipe: training recipe, if known.
        class_names: one name per output, if known; WordNet ids for timm's ImageNet models.
    """

    name: str
    spec: str
    attention: AttentionKind
    seed: int | None
    image_shape: tuple[int, int, int]
    num_classes: int
    recipe: dict[str, Any] | None = None
    class_names: tuple[str, ...] | None = None


def card_of(model: nn.Module) -> ModelCard:
    """Return the card of a model loaded by ``load_model``.

    Raises:
        UserError: if the model has no card.
    """
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard):
        raise UserError(f"{type(model).__name__} has no card: expected a model returned by load_model")
    return card


def with_card(model: Model, card: ModelCard) -> Model:
    """Attach a card and put the model in evaluation mode."""
    object.__setattr__(
        model, "card", card
    )  # bypasses nn.Module.__setattr__, which would search it for parameters
    return model.eval()
