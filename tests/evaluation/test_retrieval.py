"""Ranks and what follows from them, against slow loops."""

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase.evaluation.encoders import ROW_SCHEMA, encoder_metrics, encoder_rows
from antiphase.evaluation.retrieval import embed_pairs, ranks
from antiphase.models import clip
from tests.training.tiny_pairs import TINY, tiny_pairs


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_ranks_count_the_strangers_before_the_best_of_ones_own(seed):
    draw = torch.Generator().manual_seed(seed)
    queries, candidates = torch.randn(5, 3, generator=draw), torch.randn(13, 3, generator=draw)
    owners = torch.cat([torch.arange(5), torch.randint(0, 5, (8,), generator=draw)])
    wanted = torch.randperm(5, generator=draw)
    found = ranks(queries, candidates, owners, wanted)
    for query, want, rank in zip(queries, wanted, found, strict=True):
        order = sorted(range(13), key=lambda at: -float(query @ candidates[at]))
        first = next(place for place, at in enumerate(order) if owners[at] == want)
        strangers = sum(1 for at in order[:first] if owners[at] != want)
        assert int(rank) == strangers


def test_a_model_that_says_the_same_of_everything_finds_nothing():
    same = torch.ones(7, 3)
    assert ranks(same, same, torch.arange(7), torch.arange(7)).min() >= 5


def test_a_model_that_says_nothing_finds_nothing():
    nothing = torch.full((7, 3), torch.nan)
    assert ranks(nothing, nothing, torch.arange(7), torch.arange(7)).min() >= 5


def test_many_queries_are_ranked_in_parts_alike():
    draw = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(1500, 3, generator=draw), torch.randn(31, 3, generator=draw)
    owners, wanted = torch.arange(31), torch.arange(1500) % 31
    whole = ranks(queries, candidates, owners, wanted)
    assert torch.equal(whole[1400:], ranks(queries[1400:], candidates, owners, wanted[1400:]))


def test_all_captions_or_the_first_of_each_image():
    model, pairs = clip(**TINY).eval(), tiny_pairs(7)
    _, first, one = embed_pairs(model, pairs, captions="first")
    _, every, owners = embed_pairs(model, pairs, batch_size=3)
    assert one.tolist() == list(range(7))
    assert owners.tolist() == [at for at in range(7) for _ in range(2)]
    torch.testing.assert_close(every[::2], first)


def test_rows_are_a_row_a_caption():
    model, pairs = clip(**TINY).eval(), tiny_pairs(7)
    rows = encoder_rows(model, pairs, batch_size=2)
    assert dict(rows.schema) == ROW_SCHEMA
    assert rows["sample"].to_list() == [at for at in range(7) for _ in range(2)]
    assert rows["caption"].to_list() == [0, 1] * 7
    assert rows["label"].to_list() == [label for at in range(7) for label in (at % 2, None)]
    assert rows["text_rank"].null_count() == rows["prediction"].null_count() == 7
    assert rows.equals(encoder_rows(model, pairs))
    alone = encoder_rows(model, pairs, captions="first")
    assert alone["caption"].to_list() == [0] * 7
    assert alone["image_rank"].to_list() == rows.filter(caption=0)["image_rank"].to_list()


def test_metrics_of_known_rows():
    rows = pl.DataFrame(
        {"sample": [0, 1, 2, 3], "caption": 0, "image_rank": [0, 1, 5, 0], "text_rank": [4, 9, 9, 9],
         "label": [0, 0, 0, 1], "prediction": [0, 1, 1, 1]},
        schema=ROW_SCHEMA,
    )  # fmt: skip
    found = {name: estimate.value for name, estimate in encoder_metrics(rows).items()}
    assert found == {
        "image R@1": 0.5, "image R@5": 0.75, "text R@1": 0.0, "text R@5": 0.25, "zero-shot": 0.5,
        "zero-shot per class": pytest.approx((1 / 3 + 1) / 2),
    }  # fmt: skip


def test_the_interval_of_the_mean_over_classes_holds_the_truth():
    random = np.random.default_rng(0)
    right = np.array([0.2, 0.7, 0.5])
    held = 0
    for _ in range(200):
        labels = random.choice(3, 120, p=[0.6, 0.25, 0.15])
        hits = random.random(120) < right[labels]
        rows = pl.DataFrame(
            {"sample": range(120), "caption": 0, "image_rank": 0, "text_rank": 0, "label": labels,
             "prediction": np.where(hits, labels, (labels + 1) % 3)},
            schema=ROW_SCHEMA,
        )  # fmt: skip
        estimate = encoder_metrics(rows)["zero-shot per class"]
        held += estimate.low <= right.mean() <= estimate.high
    assert 0.89 <= held / 200 <= 0.99
