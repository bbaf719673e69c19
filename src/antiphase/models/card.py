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
    """Metadata of a loaded model, available as ``model.card``."""

    name: str  # the last part of the specification
    spec: str  # the specification passed to load_model
    attention: AttentionKind  # "unknown" for any other kind than softmax, differential and none
    seed: Seed | None  # of the training, or of random weights; None if unknown
    image_shape: tuple[int, int, int]  # (channels, height, width)
    num_classes: int  # number of logits; 0 for a dual encoder that is not bound to prompts
    recipe: dict[str, Any] | None = None  # of the training, if known
    class_names: tuple[str, ...] | None = (
        None  # one per output, if known; WordNet ids for timm's ImageNet models
    )
    any_size: bool = False  # whether it also takes images of other heights and widths
    code: str = ""  # digest of the user's code that built it; empty for other models
    lambdas: tuple[float, ...] = ()  # mean λ of each layer, where it was measured in a user's own modules
    preprocessing: Preprocessing | None = None  # of its library; None for our own models and a user's
    doubts: tuple[str, ...] = ()  # what had to be assumed about it, as warnings for records
    tag: str = ""  # its library's name of the pretrained weights, which tells their training


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
        words = f"takes images of {height}×{width} pixels, but pictures are made square"
        raise UserError(f"{card.spec}: {words}; give arrays of that shape, such as npz:FILE")
    inner = getattr(model, "model", None)  # if it is bound to prompts
    squares = [getattr(part, "square", None) for part in (model, inner, card.preprocessing)]
    return next((square for square in squares if isinstance(square, Square)), Square(height))


def with_own_pixels(images: ImageSet, models: Sequence[nn.Module]) -> ImageSet:
    """Return images resized and cropped as for the first model; arrays are left as they are."""
    if not isinstance(images, FileImages):
        return images
    square, *_ = map(square_of, models)  # all are asked, to refuse what is not square
    return images.resized(square) if square.size == images.image_size else images


def doubts_about(models: Sequence[nn.Module], twins: Sequence[nn.Module], data: object = None) -> list[str]:
    """Return what was assumed, and in what models and twins differ besides their attention, as warnings for records.

    There is one twin for each model, or none. ``data`` are the images that all of them get; None: each gets its own.
    """
    everyone = [*models, *twins]
    doubts = [doubt for model in everyone for doubt in card_of(model).doubts]
    if isinstance(data, FileImages) and data.square is not None:
        used = f"{card_of(models[0]).spec}, {describe_transform(data.square, data.channels)}"
        for model in everyone:
            if (square := square_of(model)) != data.square:
                usual = describe_transform(square, data.channels)
                words = f"its own preprocessing would be {usual}; it gets the pictures of {used}"
                doubts.append(f"{card_of(model).spec}: {words}")
    for one, other in zip(map(card_of, models), map(card_of, twins), strict=False):
        sizes = ("×".join(map(str, card.image_shape)) for card in (one, other))
        for what, mine, theirs in (
            ("input sizes", *sizes),
            ("tags of the weights", one.tag, other.tag),
            ("preprocessing", one.preprocessing, other.preprocessing),
        ):
            if mine and theirs and mine != theirs:
                words = f"differ in more than their attention: {what} {mine} and {theirs}"
                doubts.append(f"{one.spec} and its twin {other.spec} {words}")
    return doubts


def size_for(models: Sequence[nn.Module]) -> tuple[int | None, int]:
    """Return side in pixels and channels of the images that models take; no side if they take any, or are not square.

    Refuses models that take images of different sizes.
    """
    cards = [card_of(model) for model in models]
    fixed = [card for card in cards if not card.any_size]
    for card in fixed[1:]:
        if card.image_shape != fixed[0].image_shape:
            shapes = f"{fixed[0].image_shape}, {card.spec} of {card.image_shape}"
            raise UserError(f"{fixed[0].spec} takes images of shape {shapes}; measure each in its own run")
    channels, height, width = (fixed or cards)[0].image_shape
    return (height if fixed and height == width else None), channels


def settle_size(models: Sequence[nn.Module], image_shape: tuple[int, int, int]) -> None:
    """Note in the cards of models that take images of any size which ones they are given."""
    for model in models:
        card = card_of(model)
        if card.any_size and card.image_shape[0] == image_shape[0]:
            with_card(model, replace(card, image_shape=image_shape))
