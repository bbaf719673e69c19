"""Few-shot episodes and their accuracies, against a slow loop, by their laws and by what must not change them."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antiphase.errors import UserError
from antiphase.evaluation import few_shot as fewshot
from antiphase.evaluation.few_shot import Episodes, draw_episodes, few_shot_accuracies
from tests.reference import fewshot as slow

SIZES = {"episodes": 29, "ways": 3, "shots": 5, "queries": 7}


def labels_of(*counts):
    """So many images of each class, mixed."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]


TRAIN, TEST = labels_of(11, 5, 17, 13, 7), labels_of(7, 3, 11, 1, 19)


def features(seed, dtype=torch.float64, dim=23, spread=1.0, offset=0.0):
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, dim, generator=draw, dtype=torch.float64)
    return tuple(
        (offset + centres[y] + spread * torch.randn(len(y), dim, generator=draw, dtype=torch.float64)).to(dtype)
        for y in (TRAIN, TEST)
    )


def expected(train, test, episodes):
    return slow.accuracies(train.numpy(), test.numpy(), episodes.support.numpy(), episodes.queries.numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_every_episode_equals_the_slow_loop(dtype, offset):
    train, test = features(0, dtype, spread=2.0, offset=offset)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    accuracies = few_shot_accuracies(train, test, episodes)
    assert accuracies.tolist() == expected(train, test, episodes)
    assert 1 / 3 < accuracies.mean() < 1  # neither chance nor certainty, where all would agree


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.integers(1, 13))
def test_every_size_equals_the_slow_loop(seed, ways, shots, queries):
    train, test = features(seed, spread=2.0)
    sizes = {"episodes": 3, "ways": ways, "shots": shots, "queries": queries}
    episodes = draw_episodes(TRAIN, TEST, **sizes, seed=seed)
    assert few_shot_accuracies(train, test, episodes).tolist() == expected(train, test, episodes)


def test_neither_the_size_of_a_chunk_nor_the_episodes_beside_it_change_an_accuracy(monkeypatch):
    train, test = features(1, spread=2.0)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    whole = few_shot_accuracies(train, test, episodes)
    row = (3 * 5 + 3 * 7) * 23 * 8
    for budget in (1, 7 * row, 28 * row):  # one episode at a time; parts of 7, 7, 7, 7, 1; of 28 and 1
        monkeypatch.setattr(fewshot, "_CPU_BYTES", budget)
        assert torch.equal(few_shot_accuracies(train, test, episodes), whole)
    alone = Episodes(episodes.classes[11:12], episodes.support[11:12], episodes.queries[11:12])
    assert few_shot_accuracies(train, test, alone).item() == whole[11]


def test_the_order_of_classes_shots_and_queries_changes_nothing():
    train, test = features(2, spread=2.0)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    other = Episodes(
        episodes.classes[:, [2, 0, 1]],
        episodes.support[:, [2, 0, 1]].flip(2),
        episodes.queries[:, [2, 0, 1]].roll(2, 2),
    )
    whole = few_shot_accuracies(train, test, episodes)
    assert torch.equal(few_shot_accuracies(train, test, other), whole)


def test_the_images_of_each_class_are_told_by_their_place_alone():
    train, test = features(3, spread=2.0)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    order = torch.randperm(len(TRAIN), generator=torch.Generator().manual_seed(1))
    moved = replace(episodes, support=order.argsort()[episodes.support])
    whole = few_shot_accuracies(train, test, episodes)
    assert torch.equal(few_shot_accuracies(train[order], test, moved), whole)


def test_the_scale_of_the_features_changes_nothing_and_their_memory_is_left_alone():
    train, test = features(4, spread=2.0)
    kept = train.clone(), test.clone()
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    whole = few_shot_accuracies(train, test, episodes)
    assert torch.equal(train, kept[0])
    assert torch.equal(test, kept[1])
    assert torch.equal(few_shot_accuracies(8 * train, 8 * test, episodes), whole)


def test_by_hand():
    # two classes on a line; their support's mean is 0, and what is left of 0 answers class 0
    train = torch.tensor([[-2.0], [-4.0], [2.0], [4.0]])
    test = torch.tensor([[-1.0], [0.5], [-0.1], [9.0], [0.3]])
    episodes = Episodes(
        torch.tensor([[0, 1]]), torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[[0, 1, 2], [3, 4, -1]]])
    )
    assert few_shot_accuracies(train, test, episodes).tolist() == [4 / 5]


def test_classes_far_apart_are_told_and_features_of_noise_are_not():
    episodes = draw_episodes(TRAIN, TEST, **SIZES | {"episodes": 2000})
    assert few_shot_accuracies(*features(5, spread=1e-3), episodes).min() == 1.0
    noise = torch.Generator().manual_seed(6)
    mixed = [torch.randn(len(labels), 23, generator=noise) for labels in (TRAIN, TEST)]
    assert few_shot_accuracies(*mixed, episodes).mean() == pytest.approx(1 / 3, abs=0.05)


def test_an_encoder_that_says_the_same_of_everything_answers_the_first_class():
    train, test = torch.full((53, 23), 0.5), torch.full((41, 23), 0.5)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    assert few_shot_accuracies(train, test, episodes).tolist() == expected(train, test, episodes)


def test_an_episode_has_different_images_of_its_own_classes():
    episodes = draw_episodes(TRAIN, TEST, **SIZES | {"episodes": 307})
    assert episodes.classes.shape == (307, 3)
    assert episodes.support.shape == (307, 3, 5)
    assert episodes.queries.shape == (307, 3, 7)
    for classes, support, queries in zip(
        episodes.classes.tolist(), episodes.support.tolist(), episodes.queries.tolist(), strict=True
    ):
        assert len(set(classes)) == 3
        for label, class_support, class_queries in zip(classes, support, queries, strict=True):
            assert len(set(class_support)) == 5
            assert (TRAIN[class_support] == label).all()
            have = int((label == TEST).sum())
            images = [image for image in class_queries if image >= 0]
            assert len(set(images)) == len(images) == min(have, 7)
            assert class_queries[len(images) :] == [-1] * (7 - len(images))
            assert (TEST[images] == label).all()


def test_classes_and_images_are_drawn_uniformly_and_in_every_order():
    episodes = draw_episodes(TRAIN, TEST, episodes=30_000, ways=3, shots=2, queries=1, seed=3)
    ordered = {order: 0 for order in permutations(range(5), 3)}
    for row in episodes.classes.tolist():
        ordered[tuple(row)] += 1
    assert stats.chisquare(list(ordered.values())).pvalue > 1e-3
    for label in range(5):
        mask = episodes.classes == label
        shown = episodes.support[mask]
        pairs = {pair: 0 for pair in permutations((label == TRAIN).nonzero().flatten().tolist(), 2)}
        for pair in shown.tolist():
            pairs[tuple(pair)] += 1
        assert stats.chisquare(list(pairs.values())).pvalue > 1e-3
        counts = episodes.queries[mask].flatten().bincount(minlength=len(TEST))[label == TEST]
        if len(counts) > 1:
            assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_support_and_queries_are_drawn_apart():
    episodes = draw_episodes(labels_of(5, 5), labels_of(5, 5), episodes=20_000, ways=2, shots=1, queries=1)
    place = (labels_of(5, 5) == 0).cumsum(0) - 1  # of each image among those of class 0
    support, queries = (place[rows.flatten(1)[episodes.classes == 0]] for rows in (episodes.support, episodes.queries))
    table = np.histogram2d(support.numpy(), queries.numpy(), bins=5)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def same(one, two):
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in ("classes", "support", "queries"))


def test_episodes_depend_on_the_seed_and_not_on_torch_s_own_generator_or_on_how_many_follow():
    torch.manual_seed(1)
    first = draw_episodes(TRAIN, TEST, **SIZES)
    torch.manual_seed(2)
    assert same(first, draw_episodes(TRAIN, TEST, **SIZES))
    assert torch.initial_seed() == 2
    other = draw_episodes(TRAIN, TEST, **SIZES, seed=1)
    assert not (first.classes == other.classes).all()
    assert not same(first, other)
    longer = draw_episodes(TRAIN, TEST, **SIZES | {"episodes": 101})
    assert same(first, Episodes(longer.classes[:29], longer.support[:29], longer.queries[:29]))


def test_other_numbers_for_the_classes_give_the_same_images_and_strangers_are_left_out():
    first = draw_episodes(TRAIN, TEST, **SIZES)
    strangers = torch.cat([3 * TEST + 2, torch.tensor([0, 4, 99])])
    renamed = draw_episodes(3 * TRAIN + 2, strangers, **SIZES)
    assert same(first, replace(renamed, classes=(renamed.classes - 2) // 3))


def test_a_class_of_a_million_costs_no_more_than_one_of_ten():
    labels = torch.zeros(1_000_000, dtype=torch.int64)
    episodes = draw_episodes(labels, labels, episodes=5000, ways=1, shots=5, queries=6)
    assert all(len(set(row)) == 5 for row in episodes.support[:, 0].tolist())
    assert episodes.support.max() > 990_000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ways": 7}, "5 classes: expected at least 7"),
        ({"shots": 6}, "class 1: 5 training images, expected 6 or more"),
        ({"queries": 0}, "queries 0: expected an integer of at least 1"),
        ({"test_labels": TEST[TEST != 3]}, "class 3: 0 test images, expected 1 or more"),
    ],
)
def test_draws_that_cannot_be_made_are_named(changed, message):
    with pytest.raises(UserError, match=message):
        draw_episodes(**{"train_labels": TRAIN, "test_labels": TEST, **SIZES, **changed})


def test_features_that_cannot_be_used_are_named():
    train, test = features(7)
    episodes = draw_episodes(TRAIN, TEST, **SIZES)
    with pytest.raises(UserError, match=r"test.* without NaN or infinite values"):
        few_shot_accuracies(train, torch.where(test == test[2, 3], torch.nan, test), episodes)
    with pytest.raises(UserError, match="training image 52: expected 0 to 51"):
        few_shot_accuracies(train[:52], test, replace(episodes, support=episodes.support.fill_(52)))
