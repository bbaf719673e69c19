"""What shows that a module is attention: how its maps and its output answer to changes of tokens and maps."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.sensitivity.replay import Maps, Replay, Replayed


def agree(one: Tensor, two: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    tolerance = 20 * torch.finfo(one.dtype).eps ** 0.75 * float(two.abs().max())
    return bool((one - two).abs().max() <= tolerance)


def _moved(x: Tensor, token: int, step: Tensor) -> Tensor:
    """Return the tokens with one token of the first sample changed."""
    x = x.clone()
    x[0, token] += step
    return x


def _small(x: Tensor) -> float:
    """Return the size of a rounding error relative to the values that it comes from."""
    return 50 * torch.finfo(x.dtype).eps


def scores_are_of_pairs(run: Replay, x: Tensor, step: Tensor) -> Bool[Tensor, " maps"]:
    """Change token k: log A_ij of other queries may change only at j = k, up to a constant, and row k has to."""
    token = x.shape[1] // 2
    plain, moved = run(x).maps, run(_moved(x, token, step)).maps
    if len(x) > 1 and not agree(moved[1:], plain[1:]):
        return torch.zeros(plain.shape[1], dtype=torch.bool, device=x.device)
    before, after = plain[0].double(), moved[0].double()
    valid = (before > 1e-30) & (after > 1e-30)
    change = torch.where(valid, after.clamp_min(1e-40).log() - before.clamp_min(1e-40).log(), 0.0)
    others = torch.arange(x.shape[1], device=x.device) != token
    own = change - _mean(change, valid & others)  # log A is known up to a constant of each row
    elsewhere = (own * valid)[:, others][..., others].abs().amax((1, 2))
    at_key = (own * valid)[:, others, token].abs().amax(1)
    at_query = (own * valid)[:, token][:, others].abs().amax(1)
    small = max(1e-2 * float(at_key.max()), _small(x))
    return (elsewhere <= small) & (at_key > 10 * elsewhere + _small(x)) & (at_query > _small(x))


def _mean(values: Float[Tensor, "maps tokens tokens"], over: Bool[Tensor, "maps tokens tokens"]) -> Tensor:
    return (values * over).sum(-1, keepdim=True) / over.sum(-1, keepdim=True).clamp_min(1)


def values_are_of_tokens(run: Replay, x: Tensor, like: Maps, step: Tensor) -> bool:
    """Fix maps in which one other token alone attends to token k, and change token k, then that row of the maps."""
    token = x.shape[1] // 2
    reader = (token + 1) % x.shape[1]
    generator = torch.Generator().manual_seed(1)
    maps = torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like) + 0.1
    maps[:, :, :, token] = 0
    maps[:, :, reader, token] = maps[:, :, reader].sum(-1)
    maps /= maps.sum(-1, keepdim=True)
    fixed = run(x, maps).output
    small = _small(x) * float(fixed.abs().max())

    def only(output: Tensor, *rows: int) -> bool:
        """Whether of the outputs only these may differ, and the reader's does."""
        change = (output - fixed).abs().amax(-1)
        allowed = torch.zeros_like(change, dtype=torch.bool)
        allowed[0, list(rows)] = True
        least = float(change[0, reader])
        return least > small and bool((change[~allowed] <= 1e-2 * least + small).all())

    other = maps.clone()
    other[0, :, reader] = maps[0, :, reader].roll(1, -1)
    return only(run(_moved(x, token, step), maps).output, reader, token) and only(
        run(x, other).output, reader
    )


def values_are_averaged(run: Replay, x: Tensor, maps: Maps) -> bool:
    """Move weight between two tokens that are the same: Σ_j A_ij·v_j stays as it is."""
    one, two = x.shape[1] // 2, x.shape[1] // 2 + 1
    x = x.clone()
    x[:, two] = x[:, one]
    moved = maps.clone()
    moved[..., two] += maps[..., one] * 0.7
    moved[..., one] *= 0.3
    before, after = run(x, maps).output, run(x, moved).output
    return agree(after, before)


def only_difference_counts(
    run: Replay, x: Tensor, plain: Replayed, positive: tuple[int, ...], negative: tuple[int, ...], lam: Tensor
) -> bool:
    """Add E to A2 and λ·E to A1, which leaves A1 − λ·A2 as it is."""
    shape = plain.maps.shape
    error = (
        torch.rand(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(x) / shape[-1]
    )
    moved = plain.maps.clone()
    moved[:, list(positive)] += lam[:, None, None] * error[:, list(negative)]
    alone = run(x, moved).output
    for number in set(negative):
        moved[:, number] += error[:, number]
    change = (alone - plain.output).abs().max()
    return bool((run(x, moved).output - plain.output).abs().max() <= 1e-2 * change)
