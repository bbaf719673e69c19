"""Image–text retrieval: the rank of each image among a caption's, and of the captions among an image's."""

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.pairs import PairSet, stack_images
from antiphase.models.zeroshot import as_dual_encoder

Captions = Literal["first", "all"]  # of each image

_ROWS = 1024  # similarities of so many captions or images are held at a time


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
    found = []
    for part, want in zip(queries.split(_ROWS), wanted.split(_ROWS), strict=True):
        similar = part @ candidates.T
        own = owners[None, :] == want[:, None]
        best = similar.masked_fill(~own, -torch.inf).amax(1, keepdim=True)
        found.append((~(similar < best) & ~own).sum(1))  # NaN is no hit
    return torch.cat(found)


def embed_pairs(
    model: nn.Module, pairs: PairSet, *, captions: Captions = "all", batch_size: int = 256
) -> tuple[Float[Tensor, "n embed"], Float[Tensor, "m embed"], Int64[Tensor, " m"]]:
    """Return unit vectors of all images and captions, and the position of the image of each caption.

    Args:
        model: a dual encoder in evaluation mode.
        pairs: images with captions.
        captions: ``"all"`` or the ``"first"`` of each image.
        batch_size: images or captions at a time.

    Raises:
        UserError: the model is no dual encoder, or an image cannot be read.
    """
    encoder = as_dual_encoder(model)
    device = encoder.logit_scale.device
    texts, owners = [], []
    for position, several in enumerate(pairs.captions):
        chosen = several[:1] if captions == "first" else several
        texts += chosen
        owners += [position] * len(chosen)
    with torch.no_grad():
        image = [
            encoder.encode_image(stack_images(pairs, rows, encoder.square).to(device)).float().cpu()
            for rows in _chunks(len(pairs), batch_size)
        ]
        text = [
            encoder.encode_text(texts[rows.start : rows.stop]).float().cpu()
            for rows in _chunks(len(texts), batch_size)
        ]
    return F.normalize(torch.cat(image), dim=-1), F.normalize(torch.cat(text), dim=-1), torch.tensor(owners)


def _chunks(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
