"""Image–text retrieval: the rank of each image among a caption's, and of the captions among an image's."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.data.pairs import PairSet

Captions = Literal["first", "all"]  # of each image

_HELD = 2**26  # similarities at a time: 256 MB in float32, however many candidates there are


def ranks(
    queries: Float[Tensor, "queries embed"],
    candidates: Float[Tensor, "candidates embed"],
    owners: Int64[Tensor, " candidates"],
    wanted: Int64[Tensor, " queries"],
) -> Int64[Tensor, " queries"]:
    """Return, for each query, how many candidates stand before the best of those that belong to it.

    0 is a hit at 1. Candidates of other owners that are exactly as similar stand before it, so a model that
    says the same of everything finds nothing.

    Args:
        queries: unit vectors.
        candidates: unit vectors.
        owners: what each candidate belongs to.
        wanted: the owner that each query looks for; it has at least one candidate.
    """
    rows = max(_HELD // max(len(candidates), 1), 1)
    order = owners.argsort()
    known = owners[order]
    found = []
    for part, want in zip(queries.split(rows), wanted.split(rows), strict=True):
        similar = part @ candidates.T
        # query and candidate of each entry of `similar` that belongs together
        start, end = torch.searchsorted(known, want), torch.searchsorted(known, want, right=True)
        query = torch.arange(len(part), device=want.device).repeat_interleave(end - start)
        first = (end - start).cumsum(0) - (end - start)
        candidate = order[start[query] + torch.arange(len(query), device=want.device) - first[query]]
        own = similar[query, candidate]
        best = torch.full_like(similar[:, 0], -torch.inf).scatter_reduce(0, query, own, "amax")
        similar[query, candidate] = -torch.inf  # own candidates stand before nobody
        found.append(len(candidates) - (similar < best[:, None]).sum(1))  # NaN is no hit
    return torch.cat(found)


def chosen_captions(pairs: PairSet, captions: Captions) -> tuple[list[str], Int64[Tensor, " m"]]:
    """Return all captions or the first of each image, and the position of the image of each."""
    texts, owners = [], []
    for position, several in enumerate(pairs.captions):
        some = several[:1] if captions == "first" else several
        texts += some
        owners += [position] * len(some)
    return texts, torch.tensor(owners)
