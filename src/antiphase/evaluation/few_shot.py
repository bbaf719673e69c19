"""Few-shot classification of frozen features by the nearest class mean, with the same episodes for all models."""

from dataclasses import dataclass
from typing import Annotated

import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from antiphase import arguments, modules, streams
from antiphase.data.sources import PROBE_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Groups, Metric, observed, outcome_rows
from antiphase.evaluation.tasks import Protocol, Source, can_learn, image_features, labelled, make_task

_TINY = 1e-12  # minimal length for normalisation
_CPU_BYTES, _OTHER_BYTES = 4 * 2**20, 256 * 2**20  # of features gathered at a time; the former fit in a cache


@dataclass(frozen=True)
class Episodes:
    """Small tasks: a few classes with some training (support) and test (query) images each; padded with −1."""

    classes: Int64[Tensor, "episodes ways"]
    support: Int64[Tensor, "episodes ways shots"]  # positions among the training images
    queries: Int64[Tensor, "episodes ways queries"]  # positions among the test images, or −1


@arguments.validated
def draw_episodes(
    train_labels: Int64[Tensor, " train"],
    test_labels: Int64[Tensor, " test"],
    *,
    episodes: arguments.Count = 5000,
    ways: arguments.Count = 5,
    shots: arguments.Count = 5,
    queries: arguments.Count = 6,
    seed: arguments.Seed = 0,
) -> Episodes:
    """Draw classes uniformly, then support and queries uniformly from each, all without replacement.

    The first k episodes do not depend on their number. Of a class with fewer test images than ``queries``, all are
    drawn. A UserError refuses too few classes, or a class of fewer training images than ``shots`` or no test image.

    Source: sizes and protocol of M. El Banani, K. Desai, J. Johnson, *Learning Visual Representations via
    Language-Guided Sampling*, CVPR 2023, whose code draws the same episodes in every run.
    """
    train_labels, test_labels = train_labels.cpu(), test_labels.cpu()
    classes, train_counts = train_labels.unique(return_counts=True)
    if len(classes) < ways:
        raise UserError(f"{len(classes)} classes: expected at least {ways}; use fewer ways")
    known = test_labels[torch.isin(test_labels, classes)]
    test_counts = torch.searchsorted(classes, known).bincount(minlength=len(classes))
    for split, counts, least in (("training", train_counts, shots), ("test", test_counts, 1)):
        if (scarce := counts < least).any():
            label, count = classes[scarce][0], counts[scarce][0]
            raise UserError(f"class {label}: {count} {split} images, expected {least} or more; leave it out")

    # in float64 the bias of drawing from a class of a million is 1e-10
    draw = streams.generator(seed, "few-shot episodes")
    draws = torch.rand(episodes, ways * (1 + shots + queries), dtype=torch.float64, generator=draw)
    one, two, three = draws.split([ways, ways * shots, ways * queries], dim=1)
    chosen = _picks(one, torch.full((episodes,), len(classes)))
    labels = classes[chosen]
    return Episodes(
        labels,
        _images_of(train_labels, labels, _picks(two.unflatten(1, (ways, shots)), train_counts[chosen])),
        _images_of(test_labels, labels, _picks(three.unflatten(1, (ways, queries)), test_counts[chosen])),
    )


@arguments.validated
def few_shot_accuracies(
    train: Annotated[Float[Tensor, "train dim"], arguments.FINITE],
    test: Annotated[Float[Tensor, "test dim"], arguments.FINITE],
    episodes: Episodes,
) -> Float64[Tensor, " episodes"]:
    """Return the accuracy of each episode, in [0, 1], on the CPU.

    With m the mean of an episode's support, z(x) = (x − m)/‖x − m‖ and S_c the support of class c,

        p_c = Σ_{s ∈ S_c} z(s)/|S_c|,    answer(q) = argmin_c ‖z(q) − p_c‖ = argmin_c ‖p_c‖² − 2·z(q)·p_c

    Source: Y. Wang, W.-L. Chao, K. Q. Weinberger, L. van der Maaten, *SimpleShot*, arXiv:1911.04623 (2019), with the
    mean taken over the episode's support, as in El Banani et al., CVPR 2023. Ties go to the first class.
    """
    for name, features, used in (("training", train, episodes.support), ("test", test, episodes.queries)):
        if (last := int(used.max())) >= len(features):
            raise UserError(f"{name} image {last}: expected 0 to {len(features) - 1}; draw other episodes")
    _, ways, shots = episodes.support.shape
    support, queries = (rows.flatten(1).to(train.device) for rows in (episodes.support, episodes.queries))
    present, right = queries >= 0, torch.empty(queries.shape, dtype=torch.bool, device=train.device)
    truth = torch.arange(ways, device=train.device).repeat_interleave(episodes.queries.shape[2])

    budget = _CPU_BYTES if train.device.type == "cpu" else _OTHER_BYTES
    at_once = max(1, budget // ((support.shape[1] + queries.shape[1]) * train.shape[1] * train.element_size()))
    for part in torch.arange(len(support)).split(at_once):
        s, q = F.embedding(support[part], train), F.embedding(queries[part].clamp_min(0), test)
        mean = s.mean(1, keepdim=True)
        for features in (s, q):
            features -= mean
            features /= torch.linalg.vector_norm(features, dim=2, keepdim=True).clamp_min_(_TINY)
        prototypes = s.unflatten(1, (ways, shots)).mean(2)
        distances = torch.baddbmm(prototypes.square().sum(2)[:, None], q, prototypes.mT, alpha=-2)
        right[part] = distances.argmin(2) == truth
    return (right & present).sum(1).cpu().double() / present.sum(1).cpu()


def _picks(draws: Tensor, sizes: Tensor) -> Int64[Tensor, "*rows picks"]:
    """Draw numbers below the sizes without replacement, the j-th as ⌊draw·(size − j)⌋ of those left; −1 if none is."""
    picks = torch.empty(draws.shape, dtype=torch.int64)
    for j in range(draws.shape[-1]):
        left = sizes - j
        pick = (draws[..., j] * left).long()
        for taken in picks[..., :j].sort(dim=-1).values.unbind(-1):
            pick += pick >= taken
        picks[..., j] = torch.where(left > 0, pick, -1)
    return picks


def _images_of(labels: Tensor, classes: Tensor, places: Tensor) -> Int64[Tensor, "episodes ways count"]:
    """Return the position of the image at each place among those of its class; of place −1, −1."""
    ordered, positions = labels.sort(stable=True)
    first = torch.searchsorted(ordered, classes.contiguous())
    return torch.where(places < 0, -1, positions[(first[..., None] + places).clamp(0, len(labels) - 1)])


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    parts = (labelled(data)[0] for data in (source.train, source.test))
    support, queries = (image_features(model, part, protocol, store).to(modules.device_of(model)) for part in parts)
    setting, blocks = f"{protocol.ways}-way {protocol.shots}-shot", []
    for seed in range(protocol.seeds):
        scores = few_shot_accuracies(support, queries, _episodes(source, protocol, protocol.episodes, seed))
        blocks.append(outcome_rows(setting=setting, seed=seed, unit=range(len(scores)), score=scores))
    return pl.concat(blocks)


def _episodes(source: Source, protocol: Protocol, count: int, seed: int) -> Episodes:
    (_, train), (_, labels) = labelled(source.train), labelled(source.test)
    sizes = {"ways": protocol.ways, "shots": protocol.shots, "queries": protocol.queries}
    return draw_episodes(train, labels, episodes=count, seed=seed, **sizes)


def _too_small(source: Source, protocol: Protocol) -> str | None:
    try:
        _episodes(source, protocol, 1, 0)
    except UserError as error:
        return f"few-shot on {source.name}: {error}"
    return None


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    chance = 1 / int(setting.partition("-way")[0])
    return [Metric(setting, "accuracy", observed(rows, pl.col("score")), seeds_alike=False, chance=chance)]


TASK = make_task(
    "few-shot", serves=can_learn, measure=_measure, metrics=_metrics, too_small=_too_small, paper_data=PROBE_SETS
)
