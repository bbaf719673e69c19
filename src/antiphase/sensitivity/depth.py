"""How a perturbation travels through the blocks of a model: ‖Δ(d)‖, what each block adds, what cancels.

Source: robustness paper, Section 4.2: ‖Δ(d)‖ ≤ α(d)·L(d)·‖Δ(d−1)‖ with Δ(0) = ξ. The paper leaves α open; here
α(d) = ‖Δ(d)‖ / (L(d)·‖Δ(d−1)‖) as measured, with L(d) the operator norm of block d's Jacobian at the clean
tokens. For small perturbations α is below 1 for any block, standard ones too: few perturbations lie along the
direction that a block stretches most.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.sensitivity.eager import eager_attention
from antiphase.sensitivity.maps import attention_layers, record, until
from antiphase.sensitivity.operator_norm import power_iteration


@dataclass(frozen=True)
class Block:
    """A block as it ran: what it was given, and what it gave."""

    name: str
    module: nn.Module
    tokens: Tensor
    output: Tensor
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def again(self, tokens: Tensor) -> Tensor:
        """Return what the block makes of other tokens."""
        return _first(self.module(tokens, *self.args, **self.kwargs))


@dataclass(frozen=True)
class Path:
    """What a perturbation came to; the last axis is the depth, from 0 (the pixels) to the last block's output.

    Attributes:
        names: of the stages: what is in front of the first block, then the blocks.
        length: ‖Δ(d)‖₂ after each stage, and ‖ξ‖₂ in front of the first: one more than there are stages.
        positive, negative, moved: ‖ΔA1‖, λ‖ΔA2‖ and ‖ΔA1 − λ·ΔA2‖ in Frobenius norm over the heads of each
            attention layer (negative 0 in standard attention).
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
        """‖Δ(d)‖ / ‖Δ(d−1)‖."""
        return self.length[:, 1:] / self.length[:, :-1]

    @property
    def cancellation(self) -> Float[Tensor, "batch layers"]:
        """‖ΔA1 − λΔA2‖ / √(‖ΔA1‖² + λ²‖ΔA2‖²): below 1 what both maps share cancels, above 1 it adds up."""
        return self.moved / (self.positive.square() + self.negative.square()).sqrt()


def blocks(model: nn.Module, images: Float[Tensor, "batch *shape"]) -> list[Block]:
    """Run a model once and return the blocks that hold its attention layers, as they ran.

    A layer's block is the part of the model around it that stands in a list or a sequence.

    Raises:
        UserError: as :func:`~antiphase.sensitivity.attention_layers`.
    """
    parts = dict(model.named_modules())
    names = dict.fromkeys(_block_of(call.name.partition("@")[0], parts) for call in record(model, images))
    found: list[Block] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not args:
                raise UserError(f"{name}: expected its tokens as the first argument")
            found.append(Block(name, module, args[0], _first(output), args[1:], kwargs))

        return hook

    hooks = [parts[name].register_forward_hook(keep(name), with_kwargs=True) for name in names]
    try:
        with eager_attention(), torch.no_grad():
            model(images)
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


def propagate(
    model: nn.Module, images: Float[Tensor, "batch *shape"], perturbed: Float[Tensor, "batch *shape"]
) -> Path:
    """Return how the difference between two inputs travels through a model.

    Args:
        model: any model with attention in blocks.
        images: the clean inputs.
        perturbed: the same, moved.

    Raises:
        UserError: if an image is not moved at all.
    """
    if not (images != perturbed).flatten(1).any(1).all():
        raise UserError("perturbed: expected every image moved; one is the clean image")
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


def stage_norms(
    model: nn.Module, images: Float[Tensor, "batch *shape"], *, steps: int = 20, seed: int = 0,
    ids: Tensor | None = None,
) -> Float[Tensor, "batch stages"]:  # fmt: skip
    """Return L(d) of each stage, l2→l2: the operator norm of its Jacobian at the clean input, from below.

    Args:
        model: any model with attention in blocks.
        images: where.
        steps: of power iteration.
        seed: of its first direction.
        ids: of the images, for their random streams.
    """
    ran = blocks(model, images)

    def embed(x: Tensor) -> Tensor:
        return until(model, ran[0].module, x)[0][0]

    stages: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (embed, images), *((block.again, block.tokens) for block in ran),
    ]  # fmt: skip
    found = [power_iteration(f, x, steps=steps, seed=seed, ids=ids).value for f, x in stages]
    return torch.stack(found, 1)


def crossover(differences: Mapping[int, tuple[float, float]]) -> int | None:
    """Return the depth from which on the differential model is the more robust one; None where undecided.

    The paper's Corollary 1 solves aᴰ = bᴰ, which only D = 0 does unless a = b: it yields no depth. This one
    is read off a family of models of increasing depth.

    Args:
        differences: by depth, the interval of ASR(differential) − ASR(standard).

    Returns:
        The smallest depth from which on every interval lies below 0, if one in front of it lies above 0.

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
