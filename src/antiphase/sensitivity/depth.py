"""Propagation of a perturbation through the blocks of a model: ‖Δ(d)‖, growth per block, cancellation.

Source: robustness paper, Section 4.2: ‖Δ(d)‖ ≤ α(d)·L(d)·‖Δ(d−1)‖ with Δ(0) = ξ (equation 5). L(d) is the operator norm
of block d's Jacobian at the clean tokens; α(d), the share that the subtraction leaves of a perturbation, is estimated
independently of it in :mod:`antiphase.sensitivity.cancellation`. The column ``alpha`` of stored rows is neither: it is
‖Δ(d)‖ / (L(d)·‖Δ(d−1)‖), with which equation (5) would hold by construction. For small perturbations that is below 1
for every block, also with standard attention, because few perturbations lie along a block's direction of largest
growth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import NOT_EMPTY, UNIQUE, Batch, Count, Seed, validated
from antiphase.errors import UserError
from antiphase.sensitivity.eager import eager_attention
from antiphase.sensitivity.maps import attention_layers, record, until
from antiphase.sensitivity.operator_norm import power_iteration


@dataclass(frozen=True)
class Block:
    """One call of a block: its input and output."""

    name: str
    module: nn.Module
    tokens: Tensor
    output: Tensor
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def again(self, tokens: Tensor) -> Tensor:
        """Run the block on other tokens."""
        return _first(self.module(tokens, *self.args, **self.kwargs))


@dataclass(frozen=True)
class Path:
    """Size of a perturbation along a model; the last axis is the depth.

    Attributes:
        names: names of the stages: the embedding, then the blocks.
        length: ‖ξ‖₂ at the pixels, then ‖Δ(d)‖₂ after each stage.
        positive, negative, moved: Frobenius norms ‖ΔA1‖, λ‖ΔA2‖ and ‖ΔA1 − λ·ΔA2‖ over the heads of each attention
            layer; negative is 0 for standard attention.
        layers: names of the attention layers.
    """

    names: tuple[str, ...]
    length: Float[Tensor, "batch stages_and_one"]
    positive: Float[Tensor, "batch layers"]
    negative: Float[Tensor, "batch layers"]
    moved: Float[Tensor, "batch layers"]
    layers: tuple[str, ...]

    @property
    def gain(self) -> Float[Tensor, "batch stages"]:
        """Growth of each stage, ‖Δ(d)‖ / ‖Δ(d−1)‖."""
        return self.length[:, 1:] / self.length[:, :-1]

    @property
    def cancellation(self) -> Float[Tensor, "batch layers"]:
        """‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²): below 1 the changes of the maps cancel, above 1 they add up."""
        return self.moved / (self.positive.square() + self.negative.square()).sqrt()


def blocks(model: nn.Module, images: Batch) -> list[Block]:
    """Run a model once and return the calls of the blocks that contain its attention layers.

    The block of a layer is the innermost enclosing module that is an element of a ModuleList or Sequential.

    Raises:
        UserError: as :func:`~antiphase.sensitivity.attention_layers`.
    """
    parts = dict(model.named_modules())
    names = dict.fromkeys(_block_of(call.name.partition("@")[0], parts) for call in record(model, images))
    found: list[Block] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not args:
                raise UserError(f"{name}: expected the tokens as the first positional argument")
            found.append(Block(name, module, args[0], _first(output), args[1:], kwargs))

        return hook

    hooks = [parts[name].register_forward_hook(keep(name), with_kwargs=True) for name in names]
    try:
        with eager_attention(), torch.no_grad():
            model(images.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _block_of(name: str, parts: Mapping[str, nn.Module]) -> str:
    steps = name.split(".")
    for end in range(len(steps), 0, -1):
        if isinstance(parts[".".join(steps[: end - 1])], nn.ModuleList | nn.Sequential):
            return ".".join(steps[:end])
    return name


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@validated
def propagate(model: nn.Module, images: Batch, perturbed: Batch) -> Path:
    """Measure the difference between clean and perturbed inputs after every block of a model.

    Args:
        model: any model with attention in blocks.
        images: clean inputs.
        perturbed: perturbed inputs, in the same order.

    Raises:
        UserError: if a perturbed image equals its clean image.
    """
    if not (images != perturbed).flatten(1).any(1).all():
        raise UserError("perturbed: an image equals its clean image; expected every image to be perturbed")
    clean, other = blocks(model, images), blocks(model, perturbed)
    points = [perturbed - images, other[0].tokens - clean[0].tokens]
    points += [b.output - a.output for a, b in zip(clean, other, strict=True)]
    length = torch.stack([point.flatten(1).norm(dim=1) for point in points], 1)
    norms: list[tuple[Tensor, Tensor, Tensor]] = []
    names: list[str] = []
    for a, b in zip(attention_layers(model, images), attention_layers(model, perturbed), strict=True):
        one = b.positive.attention - a.positive.attention
        two = torch.zeros_like(one)
        if a.negative is not None and b.negative is not None:
            two = a.weight[:, None, None] * (b.negative.attention - a.negative.attention)
        norms.append(tuple(part.flatten(1).norm(dim=1) for part in (one, two, one - two)))  # pyright: ignore
        names.append(a.name)
    positive, negative, moved = (torch.stack(column, 1) for column in zip(*norms, strict=True))
    stages = ("embedding", *(block.name for block in clean))
    return Path(stages, length, positive, negative, moved, tuple(names))


@validated
def stage_norms(
    model: nn.Module,
    images: Batch,
    *,
    steps: Count = 20,
    seed: Seed = 0,
    ids: Annotated[Int64[Tensor, " batch"], UNIQUE] | None = None,
) -> Float[Tensor, "batch stages"]:
    """Estimate L(d) of each stage, the L2 operator norm of its Jacobian at the clean input, from below.

    Args:
        model: any model with attention in blocks.
        images: clean inputs.
        steps: steps of power iteration, at least 1.
        seed: random seed of the initial directions.
        ids: sample ids, which key the random streams; None: positions.
    """
    ran = blocks(model, images)

    def embed(x: Tensor) -> Tensor:
        return until(model, ran[0].module, x)[0][0]

    stages: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (embed, images),
        *((block.again, block.tokens) for block in ran),
    ]
    found = [power_iteration(f, x, steps=steps, seed=seed, ids=ids).value for f, x in stages]
    return torch.stack(found, 1)


@validated
def crossover(differences: Annotated[Mapping[int, tuple[float, float]], NOT_EMPTY]) -> int | None:
    """Return the depth from which the differential model is more robust than the standard one; None if undecided.

    The depth is read off a family of models. (The paper's Corollary 1 solves aᴰ = bᴰ, which gives no depth: unless
    a = b, only D = 0 solves it.)

    Args:
        differences: interval (low, high) of ASR(differential) − ASR(standard) by depth.

    Returns:
        The smallest depth such that all intervals from it on lie below 0 and an earlier one lies above 0.

    >>> crossover({1: (0.02, 0.05), 2: (-0.01, 0.02), 4: (-0.06, -0.01)})
    4
    """
    depths = sorted(differences)
    below = [differences[depth][1] < 0 for depth in depths]
    above = [differences[depth][0] > 0 for depth in depths]
    first = next((at for at in range(len(depths)) if all(below[at:])), None)
    if first is None or not any(above[:first]):
        return None
    return depths[first]
