"""Image–text retrieval: the rank of the right image for each caption, and of the right captions for each image."""

from functools import partial
from typing import Annotated

import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.arguments import FINITE, validated
from antiphase.data import PairSet
from antiphase.data.sources import RETRIEVAL_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import Captions, EvaluationTask, Groups, Protocol, Source
from antiphase.modules import device_of

_HELD = 2**26  # similarities at a time: 256 MB in float32


@validated
def ranks(
    queries: Annotated[Float[Tensor, "queries embed"], FINITE],
    candidates: Annotated[Float[Tensor, "candidates embed"], FINITE],
    owners: Int64[Tensor, " candidates"],
    wanted: Int64[Tensor, " queries"],
) -> Int64[Tensor, " queries"]:
    """Return the rank of the best right candidate of each query, starting at 0.

    Queries and candidates are unit vectors; a candidate is right if its owner is the one that the query wants, which
    has at least one. Wrong candidates of equal similarity rank first, so a model with constant outputs finds nothing;
    CLIP_benchmark counts ties as they come.
    """
    if len(absent := wanted[~torch.isin(wanted, owners)]):
        raise UserError(f"wanted {int(absent[0])}: expected an owner of at least one candidate")
    rows = max(_HELD // max(len(candidates), 1), 1)
    order = owners.argsort()
    known = owners[order]
    parts = []
    for part, want in zip(queries.split(rows), wanted.split(rows), strict=True):
        similar = part @ candidates.T
        # query and candidate of each matching entry of `similar`
        start, end = torch.searchsorted(known, want), torch.searchsorted(known, want, right=True)
        query = torch.arange(len(part), device=want.device).repeat_interleave(end - start)
        first = (end - start).cumsum(0) - (end - start)
        candidate = order[start[query] + torch.arange(len(query), device=want.device) - first[query]]
        right = similar[query, candidate]
        best = torch.full_like(similar[:, 0], -torch.inf).scatter_reduce(0, query, right, "amax")
        similar[query, candidate] = -torch.inf  # right candidates are not counted
        parts.append(len(candidates) - (similar < best[:, None]).sum(1))  # NaN is not a hit
    return torch.cat(parts)


def chosen_captions(pairs: PairSet, captions: Captions) -> tuple[list[str], Int64[Tensor, " m"]]:
    """Return all captions or the first of each image, and the position of the image of each."""
    chosen = [several[:1] if captions == "first" else several for several in pairs.captions]
    owners = [position for position, several in enumerate(chosen) for _ in several]
    return [text for several in chosen for text in several], torch.tensor(owners)


def retrieval_rows(
    images: Float[Tensor, "n embed"],
    texts: Float[Tensor, "m embed"],
    owners: Int64[Tensor, " m"],
    ids: Int64[Tensor, " n"],
) -> pl.DataFrame:
    """Return a row for each caption (setting ``image``: it looks for its image) and each image (``text``).

    ``images`` and ``texts`` are unit vectors, ``owners`` the position of each caption's image.
    """
    places = torch.arange(len(images), device=owners.device)
    by_caption = outcome_rows(
        setting="image",
        unit=list(range(len(texts))),
        group=ids[owners.cpu()].tolist(),
        rank=ranks(texts, images, places, owners).tolist(),
    )
    by_image = outcome_rows(
        setting="text",
        unit=ids.tolist(),
        group=ids.tolist(),
        rank=ranks(images, texts, owners, places).tolist(),
    )
    return pl.concat([by_caption, by_image])


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs = source.test
    assert isinstance(pairs, PairSet)
    texts, owners = chosen_captions(pairs, protocol.captions)
    place = device_of(model)
    images = store.project(model, store.image_features(model, pairs))
    words = store.text_vectors(model, texts, f"captions of {pairs.name}")
    return retrieval_rows(images.to(place), words.to(place), owners.to(place), pairs.ids)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    images = rows["group"].n_unique()
    metric = partial(Metric, setting, clustered=images < len(rows))
    # several captions of an image have a chance slightly below k / images
    return [
        metric(f"R@{k}", observed(rows, pl.col("rank") < k), chance=min(1.0, k / images)) for k in (1, 5, 10)
    ]


TASK = EvaluationTask(
    name="retrieval",
    title="Retrieval",
    summary="R@1, 5, 10 of images by captions and of captions by images",
    notes="Image R@k counts the captions whose image is among the first k, text R@k the images of which a "
    "caption is. Candidates that are exactly as similar stand before the right one.",
    serves=lambda source: isinstance(source.test, PairSet),
    measure=_measure,
    metrics=_metrics,
    stands_for=lambda data, metric: metric == "R@5",
    fields=("captions",),
    reads_text=True,
    paper_data=RETRIEVAL_SETS,
)
