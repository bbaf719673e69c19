"""Metadata of a loaded model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from antiphase.arguments import Seed, validated
from antiphase.errors import UserError
from antiphase.models.kinds import AttentionKind

Model = TypeVar("Model", bound=nn.Module)


@validated
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
        any_size: whether it also takes images of other heights and widths.
        code: digest of the user's code that built it; empty for other models.
        lambdas: mean λ of each differential layer, if it was measured because the modules are the user's own.
    """

    name: str
    spec: str
    attention: AttentionKind
    seed: Seed | None
    image_shape: tuple[int, int, int]
    num_classes: int
    recipe: dict[str, Any] | None = None
    class_names: tuple[str, ...] | None = None
    any_size: bool = False
    code: str = ""
    lambdas: tuple[float, ...] = ()


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


def size_for(models: Sequence[nn.Module]) -> tuple[int | None, int]:
    """Return side in pixels and channels of the images that models take; no side if they take any."""
    cards = [card_of(model) for model in models]
    fixed = next((card for card in cards if not card.any_size), None)
    channels, side, _ = (fixed or cards[0]).image_shape
    return (None if fixed is None else side), channels


def settle_size(models: Sequence[nn.Module], image_shape: tuple[int, int, int]) -> None:
    """Note in the cards of models that take images of any size which ones they are given."""
    for model in models:
        card = card_of(model)
        if card.any_size and card.image_shape[0] == image_shape[0]:
            with_card(model, replace(card, image_shape=image_shape))
