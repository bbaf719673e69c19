"""What a scheme of model specifications is, such as ``timm:`` in ``timm:vit_tiny_patch16_224``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.checkpoints import read_state
from antiphase.modules import advice, device_of


@dataclass(frozen=True)
class Wanted:
    """What a caller of ``load_model`` asked of a scheme.

    Attributes:
        spec: the whole specification.
        name: its part after the scheme.
        random_weights: whether to build the model with random weights, without a download.
        seed: random seed of these weights.
        lambda_init: λ_init of a checkpoint that does not contain it.
    """

    spec: str
    name: str
    random_weights: bool = False
    seed: int = 0
    lambda_init: float | Literal["depth"] | None = None

    @property
    def drawn(self) -> int | None:
        """The seed if the weights are random."""
        return self.seed if self.random_weights else None

    def split(self) -> tuple[str, str]:
        """Return NAME and FILE of ``SCHEME:NAME@FILE``; FILE is empty if there is none."""
        name, _, file = self.name.partition("@")
        return name, file


@dataclass(frozen=True)
class Scheme:
    """A kind of specification.

    Attributes:
        form: how it is written.
        description: what it is, in one line.
        load: returns the model with its card, in evaluation mode.
        random: whether it can build models with random weights.
    """

    form: str
    description: str
    load: Callable[[Wanted], nn.Module]
    random: bool = False


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which other libraries draw weights, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


_SIDES = (8, 16, 28, 32, 48, 64, 96, 112, 128, 144, 160, 192, 224, 240, 256, 288, 320, 336, 384, 448, 512)
_USUAL = 224  # of a model that takes any


@dataclass(frozen=True)
class Probe:
    """What a classifier takes and returns.

    Attributes:
        image_shape: (channels, height, width).
        num_classes: number of logits.
        any_size: whether it also takes images of other sizes.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    any_size: bool = False


def probe(model: nn.Module, spec: str, image_shape: tuple[int, int, int] | None = None) -> Probe:
    """Find the images that a classifier takes, and its number of logits.

    Args:
        model: a classifier in evaluation mode.
        spec: its specification, for error messages.
        image_shape: its own; if None, the usual ones are tried, the smallest first.

    Raises:
        UserError: if the model fails on images of every shape that was tried, or does not return logits.
    """
    odd: UserError | None = None
    failure: BaseException | None = None
    for shape in [image_shape] if image_shape else _shapes(model):
        try:
            output = _run(model, shape)
        except Exception as error:
            failure = failure or error
            continue
        count = _logits(output)
        if count is None:
            odd = odd or UserError(
                f"{spec}: returns {_described(output)} for images of shape {(2, *shape)}; expected logits, a tensor "
                "of shape (images, classes)"
            )
            continue
        if image_shape is None and _takes(model, (shape[0], 2 * shape[1], 2 * shape[2]), count):
            return Probe((shape[0], _USUAL, _USUAL), count, any_size=True)
        return Probe(shape, count)
    if odd is not None:
        raise odd
    assert failure is not None
    tried = (
        f"shape {image_shape}"
        if image_shape
        else f"{_SIDES[0]}×{_SIDES[0]} to {_SIDES[-1]}×{_SIDES[-1]} pixels"
    )
    other = "if it takes images of another shape, give the model an attribute image_shape = (channels, height, width)"
    raise UserError(
        f"{spec}: fails on images of {tried} ({type(failure).__name__}: {first_line(failure)}); "
        f"{advice(model, torch.float32, failure) or other}"
    ) from failure


def _shapes(model: nn.Module) -> Iterator[tuple[int, int, int]]:
    """Yield the usual shapes, with the channels of the first convolution; for patches, whole ones and at least 2×2.

    With a single patch, position embeddings for any number of tokens would fit.
    """
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    channels = (3, 1) if first is None else (first.in_channels,)
    patch = first.stride[0] if first is not None and first.stride == first.kernel_size else 1
    for side in _SIDES:
        if patch == 1 or (side % patch == 0 and side > patch):
            yield from ((count, side, side) for count in channels)


@torch.no_grad()
def _run(model: nn.Module, shape: tuple[int, int, int]) -> object:
    return model(torch.full((2, *shape), 0.5, device=device_of(model)))


def _logits(output: object) -> int | None:
    """Return the number of logits; None if the output is something else."""
    if (
        not isinstance(output, Tensor)
        or not output.is_floating_point()
        or output.ndim != 2
        or len(output) != 2
    ):
        return None
    return output.shape[1] or None


def _takes(model: nn.Module, shape: tuple[int, int, int], count: int) -> bool:
    try:
        return _logits(_run(model, shape)) == count
    except Exception:
        return False


def _described(output: object) -> str:
    if not isinstance(output, Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of {str(output.dtype).removeprefix('torch.')} and shape {tuple(output.shape)}"


def build_to_fit(
    make: Callable[..., nn.Module], file: str, *, positions: str, size: str, **names: str
) -> nn.Module:
    """Build a classifier with the sizes of a file of weights, and load them.

    Args:
        make: builds the model from keyword arguments; without any, with the library's own sizes.
        file: the weights, as :func:`~antiphase.models.checkpoints.read_state` takes them.
        positions: suffix of the name of a vision transformer's position embeddings, ``(1, tokens, dim)``.
        size: name of the argument of ``make`` for the side of the image in pixels.
        **names: argument of ``make`` for ``classes`` and, if it has one, for ``channels``.

    Raises:
        UserError: naming the first parameter that does not match.
    """
    with torch.device("meta"):
        plain = make()
    own = plain.state_dict()
    state = read_state(file, own, sized=False)
    sizes: dict[str, Any] = {}
    heads = [name for name, weight in own.items() if name.endswith(("weight", "bias")) and weight.ndim]
    if (head := heads[-1]) in state and state[head].ndim:
        sizes[names["classes"]] = len(state[head])
    first = next((name for name, weight in own.items() if weight.ndim == 4), None)
    if "channels" in names and first in state and state[first].ndim == 4:
        sizes[names["channels"]] = state[first].shape[1]
    place = next((name for name in own if name.endswith(positions)), None)
    if place in state and first in own and state[place].shape != own[place].shape:
        sizes[size] = _side(state[place], own[place], own[first].shape[-1])
    model = make(**sizes)
    checkpoints.load_into(model, state, file)
    return model


def _side(given: Tensor, own: Tensor, patch: int) -> int:
    """Return the side of the image of given position embeddings; tokens that are no patches are as in ``own``."""
    others = own.shape[-2] - int(own.shape[-2] ** 0.5) ** 2
    return round(max(given.shape[-2] - others, 1) ** 0.5) * patch
