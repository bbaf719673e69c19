"""Ranks, against slow loops."""

import dataclasses
import functools

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from antiphase.errors import UserError
from antiphase.evaluation import retrieval
from antiphase.evaluation.retrieval import TASK, chosen_captions, ranks, retrieval_rows
from antiphase.evaluation.tasks import Protocol, Source
from tests.training.tiny_pairs import tiny_pairs


@given(st.integers(0, 10_000))
def test_ranks_count_the_strangers_before_the_best_of_ones_own(seed):
    draw = torch.Generator().manual_seed(seed)
    queries, candidates = torch.randn(5, 3, generator=draw), torch.randn(13, 3, generator=draw)
    owners = torch.cat([torch.arange(5), torch.randint(0, 5, (8,), generator=draw)])
    owners = owners[torch.randperm(13, generator=draw)]
    targets = torch.randperm(5, generator=draw)
    best_ranks = ranks(queries, candidates, owners, targets)
    for query, target, rank in zip(queries, targets, best_ranks, strict=True):
        order = sorted(range(13), key=lambda index: -float(query @ candidates[index]))
        first = next(place for place, index in enumerate(order) if owners[index] == target)
        strangers = sum(1 for index in order[:first] if owners[index] != target)
        assert int(rank) == strangers


def test_a_model_that_says_the_same_of_everything_finds_nothing():
    same = torch.ones(7, 3)
    assert ranks(same, same, torch.arange(7), torch.arange(7)).min() >= 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"queries": torch.full((3, 2), torch.nan)}, "queries of shape .*without NaN or infinite values"),
        ({"candidates": torch.full((5, 2), torch.inf)}, "candidates of shape .*without NaN or infinite values"),
        ({"candidates": torch.ones(5, 3)}, "candidates of shape .*: expected embed 2, as in queries"),
        ({"owners": torch.arange(4)}, r"owners of shape \(4,\) .*: expected one per candidate, \(5,\)"),
        ({"wanted": torch.tensor([0, 1, 99])}, "wanted 99: expected an owner of at least one candidate"),
        ({"wanted": torch.arange(3.0)}, "wanted of shape .* and torch.float32"),
    ],
)
def test_ranks_rejects_vectors_and_owners_that_do_not_fit(changed, message):
    good = {
        "queries": torch.ones(3, 2),
        "candidates": torch.ones(5, 2),
        "owners": torch.arange(5),
        "wanted": torch.arange(3),
    }
    with pytest.raises(UserError, match=message):
        ranks(**(good | changed))


def test_ones_own_candidates_that_tie_are_no_strangers():
    candidates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert ranks(candidates[:1], candidates, torch.tensor([4, 4, 2]), torch.tensor([4])).tolist() == [0]


def test_many_queries_are_ranked_in_parts_alike(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(151, 3, generator=draw), torch.randn(31, 3, generator=draw)
    owners, targets = torch.arange(31), torch.arange(151) % 31
    whole = ranks(queries, candidates, owners, targets)
    monkeypatch.setattr(retrieval, "_HELD", 7 * 31)
    assert torch.equal(whole, ranks(queries, candidates, owners, targets))
    monkeypatch.setattr(retrieval, "_HELD", 1)  # more candidates than fit: a query at a time
    assert torch.equal(whole, ranks(queries, candidates, owners, targets))


def test_captions_of_several_images_are_told_with_what_is_out_of_reach():
    pairs = tiny_pairs(7)
    captions = [("a mug", "A  mug"), ("a mug", "red"), ("a mug",), ("lamp",), ("sun", "moon"), ("lamp ", "lit"), ("x",)]
    pairs = dataclasses.replace(pairs, captions=tuple(captions))
    told = functools.partial(TASK.doubts, "clip", None, Source(pairs))
    # mug: 4 captions of 3 images, at most 2 hits; lamp: 2 of 2, at most 1; third and fourth image have no other caption
    (line,) = told(Protocol(captions="all"))
    assert ": 6 of 11 captions belong to several images: image R@1 is at most 72.7% and text R@1 at most 57.1%" in line
    (line,) = told(Protocol(captions="first"))
    assert ": 5 of 7 captions belong to several images: image R@1 is at most 57.1% and text R@1 at most 28.6%" in line
    assert TASK.doubts("clip", None, Source(tiny_pairs(7)), Protocol(captions="first")) == []
    # a model that knows every caption finds no more
    texts, owners = chosen_captions(pairs, "all")
    kinds = {text: place for place, text in enumerate(dict.fromkeys(" ".join(t.lower().split()) for t in texts))}
    vectors = torch.eye(len(kinds))[[kinds[" ".join(text.lower().split())] for text in texts]]
    images = torch.stack([vectors[owners == image].sum(0) for image in range(7)])
    rows = retrieval_rows(F.normalize(images, dim=-1), vectors, owners, pairs.ids)
    share = rows.with_columns(pl.col("rank") == 0).group_by("setting").agg(pl.col("rank").mean())
    recalls = dict(share.iter_rows())
    assert recalls["image"] <= 8 / 11
    assert recalls["text"] <= 4 / 7


def test_all_captions_or_the_first_of_each_image():
    pairs = tiny_pairs(7)
    first, one = chosen_captions(pairs, "first")
    every, owners = chosen_captions(pairs, "all")
    assert one.tolist() == list(range(7))
    assert owners.tolist() == [image for image in range(7) for _ in range(2)]
    assert every[::2] == first
    assert every[1::2] == [several[1] for several in pairs.captions]
