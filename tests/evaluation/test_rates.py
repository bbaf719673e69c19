import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

from antiphase.errors import UserError
from antiphase.evaluation.rates import ROW_SCHEMA, by_seed, clean_accuracy, compare, over_images, rates, summarise_rates
from antiphase.statistics.decisions import mcnemar_exact
from antiphase.statistics.intervals import paired_difference, proportion

EPS = 2 / 255


def row(model, sample, label, clean, adversarial, eps=EPS, attack="pgd", **changes):
    return {
        "model": model,
        "attention": "differential" if "diff" in model else "softmax",
        "seed": 0,
        "attack": attack,
        "norm": "linf",
        "eps": eps,
        "sample": sample,
        "label": label,
        "clean_prediction": clean,
        "prediction": adversarial,
        "success": clean != adversarial,
        "felled_by": attack if clean != adversarial else None,
        "distance": eps,
        "forwards": 21,
        "backwards": 20,
        "attack_seed": 0,
    } | changes


def table(*rows):
    return pl.DataFrame(list(rows), schema=ROW_SCHEMA)


# Counted by hand. vit: 5 images, 4 right (10, 11, 12, 14), flips at 11 and 13 (13 was wrong already).
VIT = [
    row("vit-0", 10, 1, 1, 1),
    row("vit-0", 11, 2, 2, 7),
    row("vit-0", 12, 3, 3, 3),
    row("vit-0", 13, 4, 0, 4),  # wrong, then flipped onto the true label: still a flip
    row("vit-0", 14, 5, 5, 5),
]
# diffvit: 3 right (10, 11, 13), flips at 10, 11, 12 and 13.
DIFF = [
    row("diffvit-0", 14, 5, 9, 9),
    row("diffvit-0", 13, 4, 4, 1),
    row("diffvit-0", 12, 3, 8, 2),
    row("diffvit-0", 11, 2, 2, 1),
    row("diffvit-0", 10, 1, 1, 0),
]


def test_three_rates_counted_by_hand():
    estimates = {(r["model"], r["metric"]): r for r in rates(table(*VIT, *DIFF)).iter_rows(named=True)}
    expected = {
        ("vit-0", "asr"): (2, 5),
        ("vit-0", "asr_correct"): (1, 4),
        ("vit-0", "robust_accuracy"): (3, 5),
        ("diffvit-0", "asr"): (4, 5),
        ("diffvit-0", "asr_correct"): (3, 3),
        ("diffvit-0", "robust_accuracy"): (0, 5),
    }
    assert set(estimates) == set(expected)
    for key, (hits, n) in expected.items():
        wilson = proportion(hits, n)
        assert [estimates[key][c] for c in ("value", "low", "high", "n")] == [hits / n, wilson.low, wilson.high, n]


def test_robust_and_flipped_parts_make_up_the_clean_accuracy():
    rows = table(*VIT)
    metrics = {r["metric"]: r for r in rates(rows).iter_rows(named=True)}
    clean = clean_accuracy(rows).row(0, named=True)
    flipped = metrics["asr_correct"]["value"] * metrics["asr_correct"]["n"] / clean["n"]
    assert clean["value"] == pytest.approx(0.8)
    assert clean["value"] == pytest.approx(flipped + metrics["robust_accuracy"]["value"])


def test_rates_do_not_depend_on_the_order_of_rows_and_rise_in_eps():
    rows = table(*VIT, *(row("vit-0", s, 1, 1, 1, eps=0.5 / 255) for s in range(10, 15)))
    shuffled = rates(rows.sample(fraction=1.0, shuffle=True, seed=3))
    assert shuffled.equals(rates(rows))
    assert shuffled["eps"].is_sorted()


def test_models_and_attacks_keep_the_order_of_their_rows():
    rows = table(row("z", 1, 0, 0, 0, attack="pgd"), row("z", 1, 0, 0, 0, attack="apgd"), row("a", 1, 0, 0, 0))
    cells = rates(rows).filter(pl.col("metric") == "asr").select("model", "attack").rows()
    assert cells == [("z", "pgd"), ("z", "apgd"), ("a", "pgd")]


def test_each_image_counts_once_in_the_clean_accuracy():
    doubled = table(*VIT, *(r | {"eps": 4 / 255} for r in VIT))
    assert clean_accuracy(doubled).row(0) == clean_accuracy(table(*VIT)).row(0)


def test_a_rate_among_no_images_is_left_out():
    rows = table(row("vit-0", 1, 0, 3, 3), row("vit-0", 2, 0, 3, 4))
    assert rates(rows)["metric"].to_list() == ["asr", "robust_accuracy"]


def test_comparison_pairs_the_images_by_their_id():
    rows = table(*VIT, *DIFF)
    result = compare(rows, "diffvit-0", "vit-0").row(0, named=True)
    first = pl.Series([True, True, True, True, False]).to_numpy()  # images 10 to 14
    second = pl.Series([False, True, False, True, False]).to_numpy()
    estimate = paired_difference(first, second)
    assert result["difference"] == pytest.approx(2 / 5)
    assert (result["low"], result["high"], result["n"]) == (estimate.low, estimate.high, 5)
    assert result["p_value"] == mcnemar_exact(first, second) == 0.5
    back = compare(rows, "vit-0", "diffvit-0").row(0, named=True)
    assert (back["difference"], back["low"]) == pytest.approx((-result["difference"], -result["high"]))


@pytest.mark.parametrize(
    "other", [DIFF[:-1], [*DIFF[:-1], row("diffvit-0", 99, 1, 1, 0)], [r | {"eps": 0.1} for r in DIFF]]
)
def test_comparison_on_different_images_is_refused(other):
    with pytest.raises(UserError, match="same images"):
        compare(table(*VIT, *other), "diffvit-0", "vit-0")


def test_unknown_model_is_named():
    with pytest.raises(UserError, match="'vitt': expected one of vit-0"):
        compare(table(*VIT), "vitt", "vit-0")


def test_a_repeated_sample_is_refused():
    rows = table(*VIT, VIT[2])
    with pytest.raises(UserError, match=r"duplicate rows of sample 12 for vit-0, pgd, ε = 0\.00784"):
        rates(rows)
    with pytest.raises(UserError, match="duplicate rows of sample"):
        compare(rows, "vit-0", "vit-0")


def test_summary_has_exactly_the_promised_shape():
    cards = [
        {"name": "diffvit-0", "attention": "differential", "seed": 0, "lambda": [0.79], "settings": {}},
        {"name": "vit-0", "attention": "softmax", "seed": None, "lambda": []},
    ]
    summary = json.loads(
        json.dumps(summarise_rates(table(*VIT, *DIFF), cards, [("diffvit-0", "vit-0")]), allow_nan=False)
    )
    assert list(summary) == ["version", "models", "results", "comparisons"]
    assert summary["version"] == 1
    assert summary["models"] == [
        {"name": "diffvit-0", "attention": "differential", "seed": 0, "clean_accuracy": 0.6, "lambda": [0.79]},
        {"name": "vit-0", "attention": "softmax", "seed": None, "clean_accuracy": 0.8, "lambda": []},
    ]
    assert len(summary["results"]) == 6
    for result in summary["results"]:
        assert list(result) == ["model", "attack", "norm", "eps", "metric", "value", "low", "high", "n"]
        assert result["eps"] == EPS
    (comparison,) = summary["comparisons"]
    assert list(comparison) == ["model", "against", "attack", "eps", "difference", "low", "high", "p_value"]


def test_summary_of_one_model_has_no_comparisons_and_needs_its_rows():
    card = {"name": "vit-0", "attention": "softmax", "seed": 0, "lambda": []}
    assert summarise_rates(table(*VIT), [card], [])["comparisons"] == []
    with pytest.raises(UserError, match="'vit-1'"):
        summarise_rates(table(*VIT), [card | {"name": "vit-1"}], [])


@pytest.mark.parametrize(
    ("models", "families"),
    [
        ([("vit-0", 0), ("vit-1", 1)], {"vit": ["vit-0", "vit-1"]}),
        ([("depth-1", 0), ("depth-10", 0)], {"depth-1": ["depth-1"], "depth-10": ["depth-10"]}),
        ([("vit-b16", 6), ("vit-b1", 1)], {"vit-b16": ["vit-b16"], "vit-b1": ["vit-b1"]}),
        ([("vit", 0), ("vit-0", 0)], {"vit": ["vit"], "vit-0": ["vit-0"]}),
    ],
)
def test_only_trainings_with_several_seeds_are_a_family(models, families):
    assert by_seed([{"name": name, "seed": seed, "attention": "softmax"} for name, seed in models]) == families


def test_an_interval_over_images_is_newcombe_s_for_one_pair_and_student_s_t_for_several():
    rows = table(*DIFF, *VIT)
    (one,) = over_images(rows, [("diffvit-0", "vit-0")]).rows(named=True)
    expected = paired_difference(np.array([1, 1, 1, 1, 0], bool), np.array([0, 1, 0, 1, 0], bool))
    assert (one["image_low"], one["image_high"]) == (expected.low, expected.high)
    (two,) = over_images(rows, [("diffvit-0", "vit-0"), ("diffvit-0", "vit-0")]).rows(named=True)
    d = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    half = stats.t.ppf(0.975, 4) * d.std(ddof=1) / 5**0.5
    assert (two["image_low"], two["image_high"]) == pytest.approx((d.mean() - half, min(d.mean() + half, 1.0)))
    (single,) = over_images(rows.filter(sample=10), [("diffvit-0", "vit-0")] * 2).rows(named=True)
    assert (single["image_low"], single["image_high"]) == (-np.inf, np.inf)
