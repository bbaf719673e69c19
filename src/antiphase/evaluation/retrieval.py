"""Image–text retrieval: the rank of the right image for each caption, and of the right captions for each image."""

from functools import partial
from typing import Annotated, Literal

import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase import arguments, modules
from antiphase.data.images import PairSet, model_images
from antiphase.data.sources import RETRIEVAL_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, Numbers, estimate, observed, outcome_rows, task_metrics
from antiphase.evaluation.tasks import Groups, Protocol, Source, make_task
from antiphase.evaluation.zero_shot import Vectors, zero_shot_rows
from antiphase.models.zeroshot import as_dual_encoder, zero_shot_classifier

Captions = Literal["first", "all"]  # of each image
_BATCH_SIZE = 256  # images or captions of a validation
_HELD = 2**26  # similarities at a time: 256 MB in float32


@arguments.validated
def ranks(
    queries: Annotated[Float[Tensor, "queries embed"], arguments.FINITE],
    candidates: Annotated[Float[Tensor, "candidates embed"], arguments.FINITE],
    owners: Int64[Tensor, " candidates"],
    wanted: Int64[Tensor, " queries"],
) -> Int64[Tensor, " queries"]:
    """Return the rank of the best right candidate of each query, from 0, by the cosines of unit vectors.

    A candidate is right if its owner is the one that the query wants. Wrong candidates of equal similarity rank first.
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
        best = torch.full_like(similar[:, 0], -torch.inf).scatter_reduce(0, query, similar[query, candidate], "amax")
        similar[query, candidate] = -torch.inf  # right candidates are not counted
        parts.append(len(candidates) - (similar < best[:, None]).sum(1))  # NaN is not a hit
    return torch.cat(parts)


def chosen_captions(pairs: PairSet, captions: Captions) -> tuple[list[str], Int64[Tensor, " m"]]:
    """Return all captions or the first of each image, and the position of the image of each."""
    chosen = [several[:1] if captions == "first" else several for several in pairs.captions]
    owners = [position for position, several in enumerate(chosen) for _ in several]
    return [text for several in chosen for text in several], torch.tensor(owners)


def retrieval_rows(
    images: Vectors, texts: Float[Tensor, "m embed"], owners: Int64[Tensor, " m"], ids: Numbers
) -> pl.DataFrame:
    """Return a row for each caption (setting ``image``: it looks for its image) and each image (``text``)."""
    places = torch.arange(len(images), device=owners.device)
    of_texts, of_images = ranks(texts, images, places, owners), ranks(images, texts, owners, places)
    by_caption = outcome_rows(setting="image", unit=range(len(texts)), group=ids[owners.cpu()], rank=of_texts)
    return pl.concat([by_caption, outcome_rows(setting="text", unit=ids, group=ids, rank=of_images)])


@torch.no_grad()
def encoder_numbers(model: nn.Module, pairs: PairSet, captions: Captions = "all") -> dict[str, float]:
    """Return retrieval and, if the set has classes, zero-shot metrics in [0, 1] by name: what a training logs."""
    encoder = as_dual_encoder(model)
    device = encoder.logit_scale.device
    texts, owners = chosen_captions(pairs, captions)
    rows = torch.arange(len(pairs)).split(_BATCH_SIZE)
    pixels = (model_images(pairs, batch.tolist(), encoder.square).to(device) for batch in rows)
    words = (texts[start : start + _BATCH_SIZE] for start in range(0, len(texts), _BATCH_SIZE))
    encoded = map(encoder.encode_image, pixels), map(encoder.encode_text, words)
    images, sentences = (torch.cat([part.float().cpu() for part in parts]) for parts in encoded)
    images, sentences = F.normalize(images, dim=-1), F.normalize(sentences, dim=-1)
    frame = retrieval_rows(images, sentences, owners, pairs.ids)
    metrics = {f"{metric.setting} {metric.name}": metric for metric in task_metrics("retrieval", frame)}
    if pairs.labels is not None:
        weights = zero_shot_classifier(model, pairs.class_names, prompts=pairs.prompts).weights.cpu()
        frame = zero_shot_rows(images, weights, pairs.labels, pairs.ids)
        top, *_, per_class = task_metrics("zero-shot", frame)
        metrics |= {"zero-shot": top, "zero-shot per class": per_class}
    return {name: round(estimate(metric).value, 4) for name, metric in metrics.items()}


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs: PairSet = source.test
    texts, owners = chosen_captions(pairs, protocol.captions)
    place = modules.device_of(model)
    images = store.project(model, store.image_features(model, pairs))
    words = store.text_vectors(model, texts, f"captions of {pairs.name}")
    return retrieval_rows(images.to(place), words.to(place), owners.to(place), pairs.ids)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    images = rows["group"].n_unique()
    metric = partial(Metric, setting, clustered=images < len(rows))
    hits = ((k, observed(rows, pl.col("rank") < k)) for k in (1, 5, 10))
    return [metric(f"R@{k}", values, chance=min(1.0, k / images)) for k, values in hits]


def _doubts(name: str, rows: pl.DataFrame, source: Source, protocol: Protocol) -> list[str]:
    """Return a line if captions belong to several images: as wrong candidates they stand before the right one."""
    texts, owners = chosen_captions(source.test, protocol.captions)
    pairs = pl.DataFrame({"text": [" ".join(text.lower().split()) for text in texts], "image": owners.numpy()})
    shared = pairs.with_columns(shared=pl.col("image").n_unique().over("text") > 1)
    if not (count := shared["shared"].sum()):
        return []
    hits = pairs.group_by("text", "image").len().group_by("text").max()["len"].sum()  # one image is first
    distinct = ~shared.group_by("image").agg(pl.col("shared").all())["shared"]
    most = f"image R@1 is at most {hits / len(pairs):.1%} and text R@1 at most {distinct.mean():.1%}"
    fix = "leave out duplicates, or compare models on the same data only"
    return [f"{source.name}: {count:,} of {len(pairs):,} captions belong to several images: {most}; {fix}"]


TASK = make_task(
    "retrieval",
    serves=lambda source: isinstance(source.test, PairSet),
    measure=_measure,
    metrics=_metrics,
    stands_for=lambda data, metric: metric == "R@5",
    doubts=_doubts,
    paper_data=RETRIEVAL_SETS,
)
