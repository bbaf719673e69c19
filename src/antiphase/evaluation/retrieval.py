"""Image–text retrieval: the rank of the right image for each caption, and of the right captions for each image."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.arguments import FINITE, validated
from antiphase.data.pairs import PairSet
from antiphase.errors import UserError

Captions = Literal["first", "all"]  # of each image

_HELD = 2**26  # similarities at a time: 256 MB in float32


@validated
def ranks(
    queries: Annotated[Float[Tensor, "queries embed"], FINITE],
    candidates: Annotated[Float[Tensor, "candidates embed"], FINITE],
    owners: Int64[Tensor, " candidates"],
    wanted: Int64[Tensor, " queries"],
) -> Int64[Tensor, " queries"]:
    """Return the rank of the best right candidate of each query, starting at 0.

    Wrong candidates of equal similarity rank first, so a model with constant outputs finds nothing; CLIP_benchmark
    counts ties as they come.

    Args:
        queries: unit vectors.
        candidates: unit vectors.
        owners: the owner of each candidate.
        wanted: the owner that each query looks for, with at least one candidate.

    Raises:
        UserError: A vector is not finite, a number of owners does not fit, or an owner that is wanted has no candidate.
    """
    if len(absent := wanted[~torch.isin(wanted, owners)]):
        raise UserError(f"wanted {int(absent[0])}: expected an owner of at least one candidate")
    rows = max(_HELD // max(len(candidates), 1), 1)
    order = owners.argsort()
    known = owners[order]
    found = []
    for part, want in zip(queries.split(rows), wanted.split(rows), strict=True):
        similar = part @ candidates.T
        # query and candidate of each matching entry of `similar`
        start, end = torch.searchsorted(known, want), torch.searchsorted(known, want, right=True)
        query = torch.arange(len(part), device=want.device).repeat_interleave(end - start)
        first = (end - start).cumsum(0) - (end - start)
        candidate = order[start[query] + torch.arange(len(query), device=want.device) - first[query]]
        own = similar[query, candidate]
        best = torch.full_like(similar[:, 0], -torch.inf).scatter_reduce(0, query, own, "amax")
        similar[query, candidate] = -torch.inf  # right candidates are not counted
        found.append(len(candidates) - (similar < best[:, None]).sum(1))  # NaN is not a hit
    return torch.cat(found)


def chosen_captions(pairs: PairSet, captions: Captions) -> tuple[list[str], Int64[Tensor, " m"]]:
    """Return all captions or the first of each image, and the position of the image of each."""
    texts, owners = [], []
    for position, several in enumerate(pairs.captions):
        some = several[:1] if captions == "first" else several
        texts += some
        owners += [position] * len(some)
    return texts, torch.tensor(owners)
