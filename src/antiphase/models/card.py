"""Metadata of a loaded model, and what follows from them for the images that several models get."""

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from antiphase import arguments, modules, terminal
from antiphase.attention.lambdas import lambda_of, reads_tokens
from antiphase.data.decoding import Square, describe_transform
from antiphase.data.images import FileImages, ImageSet
from antiphase.errors import UserError
from antiphase.models.preprocessing import Preprocessing

AttentionKind = Literal["softmax", "differential", "none", "unknown"]

_LIBRARIES = {"antiphase", "open_clip", "timm", "torch", "torchvision", "transformers"}
# by full name, so that these libraries need not be imported
_KNOWN: dict[str, AttentionKind] = {"antiphase.attention.modules._SelfAttention": "softmax"}
for _kind, _names in tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8")).items():
    _KNOWN |= dict.fromkeys(_names, _kind)
_RECIPE = """data epochs batch_size optimizer learning_rate weight_decay schedule warmup_epochs augment adversarial
defences loss crop captions patch_dropout"""
_CLASS = re.compile("attention|attn", re.IGNORECASE)
_PART = re.compile(r"(\w*_)?(attn|attention)|(to_|w_?)?(q|qkv|query|queries)(_proj|_lin|_linear)?")
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
Model = TypeVar("Model", bound=nn.Module)


def attention_kind(model: nn.Module) -> AttentionKind:
    """Return the kind of attention of a model, as far as its modules' classes tell.

    It is ``"unknown"`` if a module that is not known looks like attention by the names of its class, submodules or
    parameters, or is the user's own code: only running that would tell.
    """
    kinds = {kind for _, kind in attention_modules(model)}
    return strongest(kinds | {"unknown"} if _runs_own_code(model) else kinds)


def _runs_own_code(module: nn.Module) -> bool:
    if _known(module) or isinstance(module, torch.fx.GraphModule):  # a graph was read
        return False
    return is_users(type(module)) or "forward" in vars(module) or any(map(_runs_own_code, module.children()))


def strongest(kinds: Set[str]) -> AttentionKind:
    """Return the kind of a model whose modules have these kinds of attention."""
    order: tuple[AttentionKind, ...] = ("differential", "unknown", "softmax")
    return next((kind for kind in order if kind in kinds), "none")  # pyright: ignore[reportReturnType]


def attention_modules(module: nn.Module) -> list[tuple[nn.Module, AttentionKind]]:
    """Return the modules that are known as attention or look like it, with their kinds by their classes."""
    if known := _known(module):
        return [(module, known)]
    inside = [pair for part in module.children() for pair in attention_modules(part)]
    # by keys(), since TorchScript's dictionaries do not iterate
    parts: Any = [*module._modules.keys(), *module._parameters.keys(), *module._buffers.keys()]
    # exported, scripted and traced modules have no parts of known classes
    kept = {torch.jit.ScriptModule: "inlined_graph", torch.fx.GraphModule: "graph"}
    graphs = (str(getattr(module, name, "")) for kind, name in kept.items() if isinstance(module, kind))
    like_attention = named_attention(module) or any(map(_PART.fullmatch, parts))
    like_attention = like_attention or any(re.search("softmax|scaled_dot_product", one) for one in graphs)
    return inside if inside or not like_attention else [(module, "unknown")]


def is_own_code(model: nn.Module) -> bool:
    """Return whether any module's class or ``forward`` is not from antiphase or a library that it knows."""
    kinds = ((type(part), getattr(type(part), "forward", None), part) for part in model.modules())
    return any(is_users(kind) or is_users(forward) or "forward" in vars(part) for kind, forward, part in kinds)


def is_hooked(model: nn.Module) -> bool:
    """Return whether a user's hook runs with any module, which may change what it returns."""
    hooks = [hook for part in model.modules() for hook in (part._forward_hooks, part._forward_pre_hooks)]
    return any(is_users(hook) for kept in hooks for hook in kept.values())


def named_attention(module: nn.Module) -> bool:
    """Return whether a module's class name contains "attention" or "attn"."""
    return bool(_CLASS.search(type(module).__name__))


def is_users(kind: Any) -> bool:
    """Return whether a class or function is neither antiphase's nor of a library that it knows."""
    return (getattr(kind, "__module__", None) or "torch").partition(".")[0] not in _LIBRARIES


def _known(module: nn.Module) -> AttentionKind | None:
    kind: Any = type(module)
    for base in kind.__mro__:
        if known := _KNOWN.get(f"{base.__module__}.{base.__qualname__}"):
            changed = "forward" in vars(module) or (is_users(kind) and kind.forward is not base.forward)
            ours = base.__module__.startswith("antiphase.") and lambda_of(module) is not None
            return "unknown" if changed else "differential" if ours else known
    if lambda_of(module) is not None:
        return "differential"
    if family := vars(module).get("attention_family"):  # of the slot that it was made for
        return "unknown" if "forward" in vars(module) else family
    parts = dict(module.named_children()) if kind.__module__.startswith("transformers.") else {}
    plain = any(all(isinstance(parts.get(name), nn.Linear) for name in names) for names in _PROJECTIONS)
    return "softmax" if plain else None


@arguments.validated
def layer_lambdas(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Return λ of every differential attention layer, own or of a library that is known, first layer first.

    Each has the shape ``()``, ``(heads,)`` or, if it depends on the tokens, ``(batch, heads, queries)``. Layers of the
    last kind are left out unless the model's ``inputs`` are given.
    """
    by_module: dict[nn.Module, Any] = {}
    lambdas: list[Tensor] = []
    readers = [module for module in model.modules() if inputs and reads_tokens(module)]

    def keep(module: nn.Module, args: Any, lam: Tensor) -> None:
        by_module[module] = lam

    with torch.no_grad(), modules.hooked(module.register_forward_hook(keep) for module in readers):
        if readers:
            model(*inputs)
        for module in model.modules():
            if (lam := lambda_of(module)) is not None:
                lambdas += [by_module[lam]] if lam in by_module else [] if reads_tokens(lam) else [lam()]
            elif (timm := getattr(module, "_compute_lambda", None)) and _known(module) == "differential":
                lambdas.append(timm())
    return [lam.detach() for lam in lambdas]


@arguments.validated
def mean_lambdas(model: nn.Module, *inputs: Tensor) -> list[float]:
    """Return λ of each layer averaged over heads, samples and queries, or as measured when it was loaded."""
    means = [float(lam.mean()) for lam in layer_lambdas(model, *inputs)]
    measured = getattr(getattr(model, "card", None), "lambdas", ())
    return list(measured) if len(measured) > len(means) else means


@arguments.validated
@dataclass(frozen=True)
class ModelCard:
    """Metadata of a loaded model, available as ``model.card``."""

    name: str  # the last part of the specification
    spec: str  # the specification passed to load_model
    attention: AttentionKind  # "unknown" for any other kind than softmax, differential and none
    seed: arguments.Seed | None  # of the training, or of random weights; None if unknown
    image_shape: tuple[int, int, int]  # (channels, height, width)
    num_classes: int  # number of logits; 0 for a dual encoder that is not bound to prompts
    recipe: dict[str, Any] | None = None  # of the training, if known
    class_names: tuple[str, ...] | None = None  # of the outputs, if known; WordNet ids for ImageNet models
    any_size: bool = False  # whether it also takes images of other heights and widths
    code: str = ""  # digest of the user's code that built it; empty for other models
    state: str = ""  # of attributes, hooks and classes of a user's model when it was loaded; empty for other models
    lambdas: tuple[float, ...] = ()  # mean λ of each layer, where it was measured in a user's own modules
    preprocessing: Preprocessing | None = None  # of its library; None for our own models and a user's
    doubts: tuple[str, ...] = ()  # what had to be assumed about it, as warnings for records
    tag: str = ""  # its library's name of the pretrained weights, which tells their training

    @property
    def classes(self) -> int:
        """Number of classes that the logits tell apart: a single logit tells two."""
        return 2 if self.num_classes == 1 else self.num_classes


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
    return modules.to_evaluation(model)


def square_of(model: nn.Module) -> Square:
    """Return how pictures are resized and cropped for a model; refuse one whose images are not square."""
    card = card_of(model)
    _, height, width = card.image_shape
    if height != width:
        raise UserError(f"{card.spec}: takes images of {height}×{width} pixels, not square; give npz:FILE")
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
                told = f"its own preprocessing would be {usual}; it gets the pictures of {used}"
                doubts.append(f"{card_of(model).spec}: {told}")
    for one, other in zip(map(card_of, models), map(card_of, twins), strict=False):
        doubts += twin_doubts(one, other)
    return doubts


def twin_doubts(one: ModelCard, other: ModelCard) -> list[str]:
    """Return in what twins differ besides their attention, as warnings; what is not known of both is not compared."""
    sizes = ("×".join(map(str, card.image_shape)) for card in (one, other))
    pairs = [("input sizes", *sizes), ("tags of the weights", one.tag, other.tag)]
    pairs.append(("preprocessing", one.preprocessing, other.preprocessing))
    recipes = [card.recipe or {} for card in (one, other)]
    if all("epochs" in recipe for recipe in recipes):
        unequal = [name for name in _RECIPE.split() if len({str(recipe.get(name)) for recipe in recipes}) > 1]
        words = (", ".join(f"{name} {_in_words(recipe.get(name))}" for name in unequal) for recipe in recipes)
        pairs.append(("recipes", *words))
    told = f"{one.spec} and its twin {other.spec} differ in more than their attention"
    unequal = [(fact, *values) for fact, *values in pairs if all(values) and values[0] != values[1]]
    return [f"{told}: {fact} {first} and {second}" for fact, first, second in unequal]


def _in_words(value: Any) -> str:
    """Return a setting of a recipe as a reader has it: settings of its own in brackets, without those not given."""
    if not isinstance(value, Mapping):
        return "none" if value is None else str(value)
    given = {
        name: terminal.eps_label(one) if name == "eps" and isinstance(one, int | float) else one
        for name, one in value.items()
        if one is not None
    }
    return f"({', '.join(f'{name} {one}'.replace('_', ' ') for name, one in given.items())})"


def size_for(models: Sequence[nn.Module]) -> tuple[int | None, int]:
    """Return side (None: any, or not square) and channels of the images that models take; refuse models that differ."""
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
