"""What is known of a loaded model beside its weights."""

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from antiphase.errors import UserError
from antiphase.models.kinds import AttentionKind

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class ModelCard:
    """What is known of a loaded model beside its weights; ``model.card``.

    Attributes:
        name: short name, the last part of the specification.
        spec: the specification.
        attention: ``"softmax"``, ``"differential"``, ``"none"``, or ``"unknown"`` for attention of another kind.
        seed: of its training (of its weights, if random); None where unknown.
        image_shape: (channels, height, width).
        num_classes: number of logits; 0 for a dual encoder that is bound to no prompts.
        recipe: how it was trained, where known.
        class_names: one name for each output, where known; WordNet ids for timm's models of ImageNet.
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
    """Return the card of a model that ``load_model`` loaded.

    Raises:
        UserError: if it has none.
    """
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard):
        raise UserError(f"{type(model).__name__} has no card; expected a model loaded by load_model")
    return card


def with_card(model: Model, card: ModelCard) -> Model:
    """Attach a card and put the model in evaluation mode."""
    object.__setattr__(model, "card", card)  # past nn.Module, which would look for parameters in it
    return model.eval()
