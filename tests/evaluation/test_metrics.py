"""Numbers, intervals and differences from rows of outcomes."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats

from antiphase.evaluation.metrics import ROW_SCHEMA, Metric, difference, estimate, task_metrics
from antiphase.evaluation.mmvp import PAPER_PATTERNS, PATTERNS
from antiphase.statistics.decisions import interval_p, mcnemar_exact
from antiphase.statistics.intervals import Estimate, mean_over_groups, paired_difference, proportion
from antiphase.vlm.pope import NO, YES
from tests.evaluation.outcomes import answer_rows, episode_rows


def classified(labels, hits, seed=0, setting="80"):
    """Return rows of a classifier that is right where ``hits`` says so."""
    columns = {
        "setting": setting,
        "seed": seed,
        "unit": range(len(labels)),
        "group": labels,
        "prediction": 0,
        "rank": np.where(hits, 0, 3),
        "score": None,
        "cost": None,
    }
    return pl.DataFrame(columns, schema=ROW_SCHEMA)


def interval(metric):
    return Estimate(*list(vars(estimate(metric)).values())[:4])


def named(task, rows, groups=None):
    return {(m.setting, m.name): m for m in task_metrics(task, rows, groups)}


def test_zero_shot_of_known_rows():
    labels = np.array([0, 0, 0, 1, 2, 3, 4, 5])
    hits = np.array([1, 1, 0, 1, 0, 0, 0, 0], bool)
    metrics = named("zero-shot", classified(labels, hits))
    assert interval(metrics["80", "top-1"]) == proportion(3, 8)
    assert interval(metrics["80", "top-5"]) == proportion(8, 8)
    assert estimate(metrics["80", "per class"]).value == pytest.approx((2 / 3 + 1) / 6)
    assert ("80", "top-5") not in named("zero-shot", classified(labels % 5, hits))  # of five classes it says nothing


def test_levels_of_chance_and_of_a_constant_answer():
    labels = np.array([0, 0, 0, 1, 2, 3, 4, 5])
    metrics = named("zero-shot", pl.concat(classified(labels, labels < 1, seed) for seed in (0, 1)))
    levels = {name: (metric.chance, metric.constant) for (_, name), metric in metrics.items()}
    sixth = pytest.approx((1 / 6, 1 / 6))
    assert levels == {
        "top-1": pytest.approx((1 / 6, 3 / 8)),
        "top-5": pytest.approx((5 / 6, 7 / 8)),
        "per class": sixth,
    }
    (first, *_) = task_metrics("zero-shot", classified(labels, labels < 1), groups=[str(n) for n in range(1000)])
    assert (first.chance, first.constant) == pytest.approx((1 / 1000, 3 / 8))  # of all classes, not those that occur
    constant = named("probe", classified(labels, labels == 0, setting="norm"))
    for name in ("top-1", "per class"):
        metric = constant["norm", name]
        assert estimate(metric).value == pytest.approx(metric.constant)
    rows = classified(range(40), [True] * 40, setting="image")
    assert named("retrieval", rows)["image", "R@5"].chance == 0.125
    assert named("mmvp", answer_rows(torch.tensor([True, False]), [0, 0]))["", "mean"].chance == 0.25


def test_retrieval_counts_ranks_below_k_each_way():
    rows = pl.concat(
        classified([-1] * 4, [True] * 4, setting=setting).with_columns(rank=pl.Series(ranked))
        for setting, ranked in (("image", [0, 1, 5, 9]), ("text", [4, 5, 10, 10]))
    )
    estimates = {key: estimate(metric).value for key, metric in named("retrieval", rows).items()}
    assert estimates == {
        ("image", "R@1"): 0.25,
        ("image", "R@5"): 0.5,
        ("image", "R@10"): 1.0,
        ("text", "R@1"): 0.0,
        ("text", "R@5"): 0.25,
        ("text", "R@10"): 0.5,
    }


def test_the_interval_of_the_mean_over_classes_holds_the_truth():
    random = np.random.default_rng(0)
    right = np.array([0.2, 0.7, 0.5])
    coverage = 0
    for _ in range(300):
        labels = random.choice(3, 120, p=[0.6, 0.25, 0.15])
        mean = mean_over_groups((random.random(120) < right[labels]).astype(float), labels)
        coverage += mean.low <= right.mean() <= mean.high
    assert 0.91 <= coverage / 300 <= 0.98


def test_the_mean_over_groups_of_one_size_is_the_mean():
    random = np.random.default_rng(1)
    values, groups = random.random(35), np.arange(35) % 7
    mean = mean_over_groups(values, groups)
    assert mean.value == pytest.approx(values.mean())
    within = [values[groups == g].var(ddof=1) / 5 for g in range(7)]
    degrees = 4 * np.sum(within) ** 2 / np.sum(np.square(within))
    half = stats.t.ppf(0.975, degrees) * np.sqrt(np.sum(within)) / 7
    assert mean.high - mean.value == pytest.approx(half)
    alone = mean_over_groups(np.array([1.0, 0.0]), np.array([3, 8]))
    assert (alone.value, alone.low, alone.high) == (0.5, -np.inf, np.inf)
    with pytest.raises(ValueError, match="no samples"):
        mean_over_groups(np.array([]), np.array([], int))


def test_spread_over_seeds_is_told_apart_from_that_over_images_and_episodes():
    random = np.random.default_rng(2)
    one, two = random.random(53) < 0.4, random.random(53) < 0.6
    labels = np.zeros(53, int)
    rows = pl.concat([classified(labels, one, 0, "norm"), classified(labels, two, 1, "norm")])
    spread = estimate(named("probe", rows)["norm", "top-1"])
    images = (one.astype(float) + two) / 2
    assert spread.value == pytest.approx(images.mean())
    assert (spread.high - spread.value) / 2.0066 == pytest.approx(images.std(ddof=1) / np.sqrt(53), rel=1e-4)  # t(52)
    assert spread.n == 53
    assert spread.seed_sd == pytest.approx(np.std([one.mean(), two.mean()], ddof=1))
    assert spread.unit_sd is None

    episodes = [random.random(31) for _ in range(3)]
    rows = pl.concat(episode_rows(torch.tensor(values), "5-way 5-shot", seed) for seed, values in enumerate(episodes))
    spread = estimate(named("few-shot", rows)["5-way 5-shot", "accuracy"])
    assert spread.n == 93
    assert spread.value == pytest.approx(np.mean(episodes))
    assert spread.unit_sd == pytest.approx(np.concatenate(episodes).std(ddof=1))
    assert spread.seed_sd == pytest.approx(np.std([values.mean() for values in episodes], ddof=1))
    assert spread.seeds == 3


def test_differences_are_paired_by_image_whatever_the_order():
    random = np.random.default_rng(3)
    one, two = random.random(41) < 0.7, random.random(41) < 0.4
    labels = np.arange(41) % 3
    first, second = (named("zero-shot", classified(labels, hits)) for hits in (one, two))
    shuffled = named("zero-shot", classified(labels, two).sample(fraction=1, shuffle=True, seed=1))
    for twin in (second, shuffled):
        apart, p = difference(first["80", "top-1"], twin["80", "top-1"])
        assert apart == paired_difference(one, two)
        assert p == mcnemar_exact(one, two)
    apart, p = difference(first["80", "per class"], second["80", "per class"])
    by_class = [one[labels == c].mean() - two[labels == c].mean() for c in range(3)]
    assert apart.value == pytest.approx(np.mean(by_class))
    # McNemar's would be of the images, of which the classes have not the same number
    within = [(one[labels == c] * 1.0 - two[labels == c]).var(ddof=1) / (labels == c).sum() for c in range(3)]
    freedom = sum(within) ** 2 / sum(v**2 / ((labels == c).sum() - 1) for c, v in enumerate(within))
    t = apart.value * 3 / sum(within) ** 0.5
    assert p == pytest.approx(2 * stats.t.sf(abs(t), freedom))
    with pytest.raises(ValueError, match="same units"):
        difference(first["80", "top-1"], named("zero-shot", classified(labels[:7], two[:7]))["80", "top-1"])


def test_the_difference_of_episodes_is_over_the_same_episodes():
    random = np.random.default_rng(4)
    hard = random.random(200)
    rows = [episode_rows(torch.tensor(np.clip(hard + shift, 0, 1)), "5-way 5-shot", 0) for shift in (0.05, 0.0)]
    first, second = (named("few-shot", its)["5-way 5-shot", "accuracy"] for its in rows)
    apart, p = difference(first, second)
    assert 0.04 < apart.low < apart.value < apart.high <= 0.0501
    assert p is None


def test_mmvp_means_are_over_patterns_and_mcnemar_over_pairs():
    random = np.random.default_rng(5)
    patterns = np.repeat(np.arange(9), 5)
    one, two = random.random(45) < 0.6, random.random(45) < 0.3
    first, second = (
        named("mmvp", answer_rows(torch.tensor(right), patterns.tolist()), PATTERNS) for right in (one, two)
    )
    assert {name for _, name in first} == {"mean of 9", "mean of 7", *PATTERNS}
    chosen = np.array([PATTERNS[pattern] in PAPER_PATTERNS for pattern in patterns])
    assert estimate(first["", "mean of 7"]).value == pytest.approx(one[chosen].mean())
    assert interval(first["", PATTERNS[0]]) == proportion(int(one[:5].sum()), 5)
    apart, p = difference(first["", "mean of 7"], second["", "mean of 7"])
    assert apart.value == pytest.approx(one[chosen].mean() - two[chosen].mean())
    assert p == mcnemar_exact(one[chosen], two[chosen])


def test_captions_of_an_image_are_one_draw_together():
    """Two equally good models; the captions of an image share its luck."""
    random = np.random.default_rng(6)
    coverage = 0
    for _ in range(150):
        luck = random.normal(size=(2, 100, 1)) + 0.3 * random.normal(size=(2, 100, 5))
        rows = [classified(np.repeat(np.arange(100), 5), hits.ravel() > 0.5, setting="image") for hits in luck]
        first, second = (named("retrieval", frame)["image", "R@1"] for frame in rows)
        assert first.clustered
        apart, p = difference(first, second)
        coverage += apart.low <= 0 <= apart.high
        assert p == interval_p(apart, 99)
    assert 0.9 <= coverage / 150 <= 0.99
    spread = estimate(first)  # pyright: ignore[reportPossiblyUnboundVariable]
    share = luck[0] > 0.5  # pyright: ignore[reportPossiblyUnboundVariable]
    assert spread.value == pytest.approx(share.mean())
    assert spread.n == 500
    assert (spread.high - spread.value) / 1.9842 == pytest.approx(share.mean(1).std(ddof=1) / 10, rel=1e-3)  # t(99)


def test_one_caption_an_image_is_hits_as_ever():
    rows = classified(np.arange(40), np.arange(40) < 13, setting="image")
    metric = named("retrieval", rows)["image", "R@1"]
    assert not metric.clustered
    assert interval(metric) == proportion(13, 40)


def test_no_interval_over_classes_is_without_width_or_beyond_what_a_rate_can_be():
    labels = np.repeat(np.arange(3), 10)
    for hits in (np.ones(30, bool), np.zeros(30, bool), labels == 0):
        first = named("zero-shot", classified(labels, hits))["80", "per class"]
        mean = estimate(first)
        assert 0 <= mean.low <= mean.value <= mean.high <= 1
        assert mean.high - mean.low > 0.05
        apart, _ = difference(first, first)
        assert -1 <= apart.low < 0 < apart.high <= 1


@pytest.mark.parametrize("clustered", [False, True])
def test_equal_values_do_not_imply_a_rate_without_doubt(clustered):
    values = pl.DataFrame(
        [(seed, 10 * group + item, group, float(seed)) for seed in (0, 1) for group in range(5) for item in range(3)],
        ("seed", "unit", "group", "value"),
        orient="row",
    )
    recall = estimate(Metric("", "recall", values, clustered=clustered))
    draws = 5 if clustered else 15
    half = stats.t.ppf(0.975, draws - 1) * np.sqrt((draws + 1) / (draws + 2) ** 2 / draws)
    assert (recall.value, recall.low, recall.high, recall.n) == pytest.approx((0.5, 0.5 - half, 0.5 + half, 15))


def test_a_precision_of_one_yes_has_no_interval():
    rows = [
        ("random", 0, 6 * image + item, image, *((YES, 0, 0.9) if (image, item) == (3, 0) else (NO, item % 2, 0.1)))
        for image in range(20)
        for item in range(6)
    ]
    names = ("setting", "seed", "unit", "group", "prediction", "rank", "score")
    metrics = named("pope", pl.DataFrame(rows, names, orient="row").with_columns(cost=None).cast(ROW_SCHEMA))
    precision = estimate(metrics["random", "precision"])
    assert (precision.value, precision.low, precision.high) == (1.0, -np.inf, np.inf)
    assert np.isfinite(estimate(metrics["random", "recall"]).high)
