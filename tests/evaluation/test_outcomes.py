"""Rows of outcomes: one shape for every evaluation."""

import polars as pl
import pytest
import torch
import torch.nn.functional as F

from antiphase.evaluation import zero_shot
from antiphase.evaluation.metrics import ROW_SCHEMA, classification_rows
from antiphase.evaluation.retrieval import encoder_numbers, ranks, retrieval_rows
from antiphase.evaluation.zero_shot import zero_shot_rows
from antiphase.models import clip, zero_shot_classifier
from tests.evaluation.outcomes import answer_rows, episode_rows
from tests.training.tiny_pairs import TINY, tiny_pairs


def test_the_rank_of_the_right_class_counts_those_before_it():
    scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    rows = classification_rows(scores, torch.tensor([0, 1, 2]), torch.tensor([10, 20, 30]), "norm", 4)
    assert dict(rows.schema) == ROW_SCHEMA
    assert rows["rank"].to_list() == [0, 2, 1]
    assert rows["prediction"].to_list() == [0, 0, 0]
    assert rows["group"].to_list() == [0, 1, 2]
    assert rows["unit"].to_list() == [10, 20, 30]
    assert rows["seed"].unique().to_list() == [4]


def test_of_equal_scores_the_first_class_is_said_and_ranked_first():
    labels = torch.arange(5)
    rows = classification_rows(torch.zeros(5, 5), labels, labels)
    assert rows["rank"].to_list() == [0, 1, 2, 3, 4]
    assert (rows["rank"] == 0).to_list() == (rows["prediction"] == rows["group"]).to_list()


def test_a_score_that_is_no_number_is_no_hit():
    rows = classification_rows(torch.full((2, 3), torch.nan), torch.tensor([0, 2]), torch.arange(2))
    assert rows["rank"].min() > 0


def test_zero_shot_is_the_nearest_class_in_parts_too(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    images = F.normalize(torch.randn(23, 5, generator=draw), dim=-1)
    classes = F.normalize(torch.randn(5, 7, generator=draw), dim=0)
    labels = torch.randint(0, 7, (23,), generator=draw)
    whole = zero_shot_rows(images, classes, labels, torch.arange(23), "80")
    assert whole["prediction"].to_list() == (images @ classes).argmax(1).tolist()
    monkeypatch.setattr(zero_shot, "_ROWS", 4)
    assert whole.equals(zero_shot_rows(images, classes, labels, torch.arange(23), "80"))


def test_retrieval_has_a_row_for_each_caption_and_each_image():
    draw = torch.Generator().manual_seed(1)
    images, texts = torch.randn(5, 3, generator=draw), torch.randn(11, 3, generator=draw)
    owners = torch.cat([torch.arange(5), torch.tensor([0, 0, 3, 4, 1, 2])])
    rows = retrieval_rows(images, texts, owners, torch.arange(5) * 100)
    by_caption, by_image = rows.filter(setting="image"), rows.filter(setting="text")
    assert by_caption["group"].to_list() == (owners * 100).tolist()
    assert by_caption["rank"].to_list() == ranks(texts, images, torch.arange(5), owners).tolist()
    assert by_image["unit"].to_list() == [0, 100, 200, 300, 400]
    assert by_image["rank"].to_list() == ranks(images, texts, owners, torch.arange(5)).tolist()


def test_episodes_and_answers_have_scores():
    rows = pl.concat(
        [episode_rows(torch.tensor([0.5, 1.0]), "5-way 5-shot", 2), answer_rows(torch.tensor([True]), [3])]
    )
    assert dict(rows.schema) == ROW_SCHEMA
    assert rows["score"].to_list() == [0.5, 1.0, 1.0]
    assert rows["group"].to_list() == [-1, -1, 3]
    assert rows["rank"].null_count() == 3


def test_the_numbers_of_a_training_log_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr("antiphase.evaluation.retrieval._BATCH_SIZE", 3)
    model, pairs = clip(**TINY).eval(), tiny_pairs(7, side=16)
    numbers = encoder_numbers(model, pairs, captions="first")
    with torch.no_grad():
        image = F.normalize(model.encode_image(pairs.array / 255), dim=-1)
        text = F.normalize(model.encode_text([several[0] for several in pairs.captions]), dim=-1)
        predictions = zero_shot_classifier(model, pairs.class_names)(pairs.array / 255).argmax(1)
    for k in (1, 5):
        top = (text @ image.T).topk(k, 1).indices
        assert numbers[f"image R@{k}"] == pytest.approx(
            float((top == torch.arange(7)[:, None]).any(1).double().mean()), abs=1e-4
        )
    assert numbers["zero-shot"] == pytest.approx(float((predictions == pairs.labels).double().mean()), abs=1e-4)
    assert {"text R@1", "text R@5", "text R@10", "zero-shot per class"} <= numbers.keys()
