"""What a scheme of model specifications is, such as ``timm:`` in ``timm:vit_tiny_patch16_224``, and what they share."""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line, refusing, shown
from antiphase.models.card import Model, ModelCard, attention_kind, with_card
from antiphase.models.preprocessing import Preprocessing
from antiphase.modules import advice, device_of

ImageShape = tuple[int, int, int]  # channels, height, width
_SIDES = (8, 16, 28, 32, 48, 64, 96, 112, 128, 144, 160, 192, 224, 240, 256, 288, 320, 336, 384, 448, 512)
_USUAL = 224  # of a model that takes any
_NAMED = re.compile(r"(?:(\w[\w .+-]*)=)?(.*?)(?:@seed=(\d{1,18}))?", re.DOTALL)


@dataclass(frozen=True)
class Wanted:
    """What a caller of ``load_model`` asked of a scheme."""

    spec: str  # the whole specification
    name: str  # its part after the scheme
    random_weights: bool = False  # build the model with random weights, without a download
    seed: int = 0  # of these weights
    as_built: bool = False  # return what a user's code builds as it is; it may take no images

    def split(self) -> tuple[str, str]:
        name, _, file = self.name.partition("@")
        return name, file

    def loaded(self, model: Model, name: str, count: int = 0, used: Preprocessing | None = None, **facts: Any) -> Model:
        """Return the model in evaluation mode with its card: ``used``, its preprocessing, and other ``facts``."""
        shape = used.image_shape if used else (0, 0, 0)
        facts = {"image_shape": shape, "preprocessing": used, "num_classes": count} | facts
        seed = self.seed if self.random_weights else None
        return with_card(model, ModelCard(name, self.spec, attention_kind(model), seed, **facts))


Loader = Callable[[Wanted], nn.Module]


@dataclass(frozen=True)
class Scheme:
    """A kind of specification, as registered in :data:`antiphase.registry.MODELS`."""

    form: str  # how it is written
    description: str  # in one line
    load: Loader  # returns the model with its card, in evaluation mode
    random: bool = False  # whether it can build models with random weights


def scheme(form: str, description: str, *, random: bool = False) -> Callable[[Loader], Scheme]:
    """Make the scheme of a function that loads a model; the arguments are as in :class:`Scheme`."""
    return lambda load: Scheme(form, description, load, random)


class NamedSpec(NamedTuple):
    """The parts of ``NAME=SPEC@seed=N``."""

    name: str  # empty if there is none
    spec: str
    seed: int | None


def named_spec(text: str) -> NamedSpec:
    """Return name, specification and training seed of ``NAME=SPEC@seed=N``, where name and seed may be missing."""
    match = None if os.path.isdir(text) else _NAMED.fullmatch(text.strip())
    if match is None:
        return NamedSpec("", text, None)
    name, spec, seed = match.groups()
    return NamedSpec((name or "").strip(), spec.strip(), None if seed is None else int(seed))


def downloading(fault: str, fix: str, failures: tuple[type[Exception], ...] = OFFLINE) -> AbstractContextManager[None]:
    """Refuse what cannot be downloaded: ``fault`` is the matter, the error in one line, and how to ``fix`` it."""
    return refusing(fault, f"; {fix}", *failures)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which other libraries draw weights, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_known(name: str, known: Sequence[str], lacks: str, lists: str) -> None:
    """Refuse a name that is not known, such as ``lacks`` "timm has no model"; ``lists`` tells who lists them."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        hint = f"did you mean {', '.join(near)}?" if near else lists
        raise UserError(f"{lacks} {shown(name)}; {hint}")


def probe(model: nn.Module, spec: str, image_shape: ImageShape | None = None) -> tuple[ImageShape, int, bool]:
    """Run a classifier to find its image shape (None: usual ones are tried), its logits, and if it takes any size."""
    errors: list[Exception] = []
    for shape in [image_shape] if image_shape else _shapes(model):
        try:
            count = _logits(model, shape, spec)
        except Exception as error:
            errors.append(error)
        else:
            channels, height, width = shape
            if image_shape is None:
                with suppress(Exception):
                    if _logits(model, (channels, 2 * height, 2 * width), "") == count:
                        return (channels, _USUAL, _USUAL), count, True
            return shape, count, False
    errors = errors or [UserError(f"{spec}: no usual size of images has whole patches")]
    if odd := next((error for error in errors if isinstance(error, UserError)), None):
        raise odd
    tried = f"shape {image_shape}" if image_shape else f"{_SIDES[0]} to {_SIDES[-1]} pixels"
    other = "for another shape give the model an attribute image_shape = (channels, height, width)"
    why = f"{type(errors[0]).__name__}: {first_line(errors[0])}"
    fix = advice(model, torch.float32, errors[0]) or other
    raise UserError(f"{spec}: fails on images of {tried} ({why}); {fix}") from errors[0]


def _shapes(model: nn.Module) -> Iterator[ImageShape]:
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    channels = (3, 1) if first is None else (first.in_channels,)
    patch = first.stride[0] if first is not None and first.stride == first.kernel_size else 1
    for side in _SIDES:
        if patch == 1 or (side % patch == 0 and side > patch):
            yield from ((count, side, side) for count in channels)


def _logits(model: nn.Module, shape: ImageShape, spec: str) -> int:
    with torch.no_grad():
        output: Any = model(torch.full((2, *shape), 0.5, device=device_of(model)))
    words = f"a {type(output).__name__}"
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.ndim == 2 and len(output) == 2 and output.shape[1]:
            return output.shape[1]
        words = f"a tensor of {str(output.dtype).removeprefix('torch.')} and shape {tuple(output.shape)}"
    fix = "expected logits, a tensor of shape (images, classes)"
    raise UserError(f"{spec}: returns {words} for images of shape {(2, *shape)}; {fix}")
