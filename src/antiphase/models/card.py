"""Metadata of a loaded model, and what follows from them for the images that several models get."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import nn

from antiphase.arguments import Seed, validated
from antiphase.data.decoding import Square, describe_transform
from antiphase.data.images import FileImages, ImageSet
from antiphase.errors import UserError
from antiphase.models.kinds import AttentionKind
from antiphase.models.preprocessing import Preprocessing
from antiphase.modules import to_evaluation

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
        preprocessing: what its library does with a picture; None for our own models and a user's.
        doubts: what had to be assumed about it, as warnings for records.
        tag: its library's name of the pretrained weights, which tells their training; empty if it has none.
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
    preprocessing: Preprocessing | None = None
    doubts: tuple[str, ...] = ()
    tag: str = ""


def card_of(model: nn.Module) -> ModelCard:
    """Return the card of a model loaded by ``load_model``; refuse a model without one."""
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard):
        raise UserError(f"{type(model).__name__} has no card: expected a model returned by load_model")
    return card


def with_card(model: Model, card: ModelCard) -> Model:
    """Attach a card and put the model in evaluation mode."""
    # bypasses nn.Module.__setattr__, which would search it for parameters
    object.__setattr__(model, "card", card)
    return to_evaluation(model)


def square_of(model: nn.Module) -> Square:
    """Return how pictures are resized and cropped for a model; refuse one whose images are not square."""
    card = card_of(model)
    _, height, width = card.image_shape
    if height != width:
        raise UserError(
            f"{card.spec}: takes images of {height}×{width} pixels, but pictures are made square; give arrays of that "
            "shape, such as npz:FILE"
        )
    inner = getattr(model, "model", None)  # if it is bound to prompts
    squares = [getattr(part, "square", None) for part in (model, inner, card.preprocessing)]
    return next((square for square in squares if isinstance(square, Square)), Square(height))


def with_own_pixels(images: ImageSet, models: Sequence[nn.Module]) -> ImageSet:
    """Return images resized and cropped as for the first model; arrays are left as they are."""
    if not isinstance(images, FileImages):
        return images
    square = [square_of(model) for model in models][0]  # noqa: RUF015 (all are asked, to refuse what is not square)
    return images.resized(square) if square.size == images.image_size else images


def doubts_about(models: Sequence[nn.Module], twins: Sequence[nn.Module], data: object = None) -> list[str]:
    """Return what was assumed, and in what models and twins differ besides their attention, as warnings for records.

    There is one twin for each model, or none. ``data`` are the images that all of them get; None: each gets its own.
    """
    everyone = [*models, *twins]
    doubts = [doubt for model in everyone for doubt in card_of(model).doubts]
    if isinstance(data, FileImages) and data.square is not None:
        doubts += [
            f"{card_of(model).spec}: its own preprocessing would be {describe_transform(own, data.channels)}; it gets "
            f"the pictures of {card_of(models[0]).spec}, {describe_transform(data.square, data.channels)}"
            for model in everyone
            if (own := square_of(model)) != data.square
        ]
    for one, other in zip(map(card_of, models), map(card_of, twins), strict=False):
        compared = {
            "input sizes": ["×".join(map(str, card.image_shape)) for card in (one, other)],
            "tags of the weights": [one.tag, other.tag],
            "preprocessing": [one.preprocessing, other.preprocessing],
        }
        doubts += [
            f"{one.spec} and its twin {other.spec} differ in more than their attention: {what} {mine} and {theirs}"
            for what, (mine, theirs) in compared.items()
            if mine and theirs and mine != theirs
        ]
    return doubts


def size_for(models: Sequence[nn.Module]) -> tuple[int | None, int]:
    """Return side in pixels and channels of the images that models take; no side if they take any, or are not square.

    Refuses models that take images of different sizes.
    """
    cards = [card_of(model) for model in models]
    fixed = [card for card in cards if not card.any_size]
    odd = next((card for card in fixed if card.image_shape != fixed[0].image_shape), None)
    if odd is not None:
        raise UserError(
            f"{fixed[0].spec} takes images of shape {fixed[0].image_shape}, {odd.spec} of {odd.image_shape}; measure "
            "each in its own run"
        )
    channels, height, width = (fixed or cards)[0].image_shape
    return (height if fixed and height == width else None), channels


def settle_size(models: Sequence[nn.Module], image_shape: tuple[int, int, int]) -> None:
    """Note in the cards of models that take images of any size which ones they are given."""
    for model in models:
        card = card_of(model)
        if card.any_size and card.image_shape[0] == image_shape[0]:
            with_card(model, replace(card, image_shape=image_shape))
