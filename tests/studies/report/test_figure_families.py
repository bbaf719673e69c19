import numpy as np
import polars as pl
import pytest
from scipy import stats

from antiphase.evaluation.rates import COMPARISON_SCHEMA, by_seed, family_comparisons, family_results, over_images
from antiphase.report.figure import families


def model(name, attention="softmax", seed=None):
    return {"name": name, "attention": attention, "seed": seed}


def comparison(first, against, difference, eps=0.1):
    numbers = {"difference": difference, "low": 0.0, "high": 1.0, "p_value": 0.5, "n": 7}
    return {"model": first, "against": against, "attack": "pgd", "norm": "linf", "eps": eps} | numbers


TWO_SEEDS = [
    model("d-0", "differential", 0),
    model("d-1", "differential", 1),
    model("v-0", seed=0),
    model("v-1", seed=1),
]


def test_seeds_of_one_architecture_share_a_family_and_a_colour():
    groups = families(TWO_SEEDS)
    assert [(family.name, family.models) for family in groups] == [("d", ("d-0", "d-1")), ("v", ("v-0", "v-1"))]
    assert [family.color for family in groups] == ["#D55E00", "#0072B2"]


@pytest.mark.parametrize(
    ("names", "seeds", "expected"),
    [
        (["run_seed0", "run_seed1"], [0, 1], [("run_seed0", "run_seed1")]),
        (["run/s3", "run/s12"], [3, 12], [("run/s3", "run/s12")]),
        (["small-0", "large-1"], [0, 1], [("small-0",), ("large-1",)]),
        (["a", "b"], [None, None], [("a",), ("b",)]),
        (["0", "1"], [0, 1], [("0",), ("1",)]),
    ],
)
def test_only_the_seed_at_the_end_of_a_name_is_left_out(names, seeds, expected):
    groups = families([model(name, seed=seed) for name, seed in zip(names, seeds, strict=True)])
    assert [family.models for family in groups] == expected


def test_families_never_share_a_name():
    models = [model("m-0", seed=0), model("m-1", seed=1), model("m")]
    models += [model("m-2", "differential", 2), model("m-3", "differential", 3)]
    groups = families(models)
    assert [family.name for family in groups] == ["m, softmax", "m", "m, differential"]
    assert [family.models for family in groups] == [("m-0", "m-1"), ("m",), ("m-2", "m-3")]


def test_families_of_one_attention_have_colours_of_their_own():
    groups = families([model(name) for name in "abcd"])
    assert len({family.color for family in groups}) == 4


def test_mean_over_a_family_is_per_cell_and_skips_single_models():
    rates = [
        (name, "pgd", "linf", eps, "asr", value, 0.0, 1.0, 7)
        for name, values in (("d-0", (0.2, 0.4)), ("d-1", (0.4, 0.8)), ("v-0", (0.1, 0.1)))
        for eps, value in zip((0.1, 0.2), values, strict=True)
    ]
    columns = ["model", "attack", "norm", "eps", "metric", "value", "low", "high", "n"]
    means = family_results(pl.DataFrame(rates, schema=columns, orient="row"), by_seed(TWO_SEEDS[:3]))
    assert means["family"].to_list() == ["d", "d"]
    assert means["value"].to_list() == pytest.approx([0.3, 0.6])
    assert means["n"].to_list() == [2, 2]
    assert (means["low"] < means["value"]).all()


def test_mean_difference_counts_pairs_as_seeds():
    pairs = [comparison("d-0", "v-0", 0.2), comparison("d-1", "v-1", 0.3)]
    means = family_comparisons(pl.DataFrame(pairs, schema=COMPARISON_SCHEMA), by_seed(TWO_SEEDS))
    assert means.select("family", "against_family", "n").rows() == [("d", "v", 2)]
    assert means["difference"][0] == pytest.approx(0.25)


def test_pairs_that_share_a_model_are_no_seeds_of_their_own():
    pairs = [comparison("d-0", "v-0", 0.2), comparison("d-1", "v-0", 0.3)]
    assert family_comparisons(pl.DataFrame(pairs, schema=COMPARISON_SCHEMA), by_seed(TWO_SEEDS)).is_empty()


def test_no_comparisons_have_no_means():
    assert family_comparisons(pl.DataFrame(schema=COMPARISON_SCHEMA), by_seed(TWO_SEEDS)).is_empty()


def test_the_interval_over_images_is_that_of_the_mean_of_the_pairs():
    generator = np.random.default_rng(0)
    fell = generator.random((4, 90)) < np.array([[0.6], [0.5], [0.3], [0.4]])
    rows = pl.DataFrame(
        [
            {"model": name, "attack": "pgd", "norm": "linf", "eps": 0.1, "sample": i, "success": bool(fell[m, i])}
            for m, name in enumerate(("d0", "d1", "v0", "v1"))
            for i in range(90)
        ]
    )
    estimate = over_images(rows, [("d0", "v0"), ("d1", "v1")]).row(0, named=True)
    counts = fell.astype(float)
    differences = (counts[0] + counts[1] - counts[2] - counts[3]) / 2
    interval = stats.t.interval(0.95, 89, differences.mean(), stats.sem(differences))
    assert (estimate["image_low"], estimate["image_high"]) == pytest.approx(interval, abs=1e-5)


def test_rates_over_few_seeds_stay_within_0_and_100_percent():
    cells = {"attack": "pgd", "norm": "linf", "eps": 0.1, "metric": "asr", "low": 0.0, "high": 1.0, "n": 60}
    results = pl.DataFrame([{"model": f"d-{seed}", "value": value} | cells for seed, value in ((0, 0.97), (1, 0.88))])
    mean = family_results(results, by_seed(TWO_SEEDS)).row(0, named=True)
    assert 0.0 < mean["low"] < 0.9 < mean["high"] < 1.0


def test_mean_differences_stay_within_100_points():
    pairs = pl.DataFrame(
        [comparison("d-0", "v-0", 0.9), comparison("d-1", "v-1", 0.1)], COMPARISON_SCHEMA, orient="row"
    )
    mean = family_comparisons(pairs, by_seed(TWO_SEEDS)).row(0, named=True)
    assert (mean["low"], mean["high"]) == (-1.0, 1.0)
