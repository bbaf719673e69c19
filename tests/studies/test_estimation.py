"""From rows to estimates: pairing, and what is not averaged unseen."""

import numpy as np
import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.studies.claims import Check
from antiphase.studies.estimation import difference, estimates, mean, peak, share_above, trend

VALUE = pl.col("value")


def rows(series, seeds=(0, 1), samples=(3, 5, 7), cell="", shift=0.0):
    return pl.DataFrame(
        [
            (series, seed, sample, cell or f"{series}{seed}", np.sin(seed * 7 + sample) + shift)
            for seed in seeds
            for sample in samples
        ],
        {"series": pl.String, "training_seed": pl.Int64, "sample": pl.Int64, "cell": pl.String, "value": pl.Float64},
        orient="row",
    )


def test_means_are_over_seeds_and_samples_in_any_order():
    both = pl.concat([rows("a"), rows("b", shift=9.0)]).sample(fraction=1.0, shuffle=True, seed=1)
    by_series = {row["series"]: row for row in estimates(both, ["series"], VALUE, kind="size").iter_rows(named=True)}
    matrix = np.sin(np.array([[3, 5, 7], [10, 12, 14]]))
    assert by_series["a"]["value"] == pytest.approx(matrix.mean())
    assert by_series["b"]["low"] == pytest.approx(crossed_mean(matrix).low + 9.0)
    assert (by_series["a"]["n"], by_series["a"]["seeds"]) == (3, 2)


def test_differences_are_paired_by_seed_and_sample():
    both = pl.concat([rows("b", shift=0.25), rows("a")])
    estimate = difference(both, {"series": "b"}, {"series": "a"}, VALUE)
    assert estimate is not None
    assert estimate.value == pytest.approx(0.25)
    assert estimate.n == 3


def test_seeds_that_only_one_has_are_left_out_and_none_in_common_is_no_estimate():
    both = pl.concat([rows("b", seeds=(0, 1)), rows("a", seeds=(1, 2))])
    estimate = difference(both, {"series": "b"}, {"series": "a"}, VALUE)
    assert estimate is not None
    assert estimate.value == pytest.approx(0.0)
    apart = pl.concat([rows("b", seeds=(0,)), rows("a", seeds=(1,))])
    assert difference(apart, {"series": "b"}, {"series": "a"}, VALUE) is None
    assert difference(apart, {"series": "b"}, {"series": "c"}, VALUE) is None


def test_other_samples_are_refused():
    both = pl.concat([rows("b", samples=(1, 2)), rows("a", samples=(3, 4))])
    with pytest.raises(UserError, match="measured on different images"):
        difference(both, {"series": "b"}, {"series": "a"}, VALUE)


def test_a_seed_that_lacks_images_is_refused():
    uneven = pl.concat([rows("a", seeds=(0,)), rows("a", seeds=(1,), samples=(3,))])
    with pytest.raises(UserError, match="not every seed was measured on the same images"):
        estimates(uneven, ["series"], VALUE)


def test_two_cells_are_not_averaged_unseen():
    pooled = pl.concat([rows("a", cell="constant"), rows("a", cell="depth")])
    with pytest.raises(UserError, match="rows of several cells per seed and sample"):
        estimates(pooled, ["series"], VALUE)
    assert len(estimates(pooled, ["series", "cell"], VALUE)) == 2


def of_seeds(values, samples=40):
    """One value for every sample of a seed."""
    return pl.DataFrame(
        [("a", seed, sample, f"a{seed}", value) for seed, value in enumerate(values) for sample in range(samples)],
        {"series": pl.String, "training_seed": pl.Int64, "sample": pl.Int64, "cell": pl.String, "value": pl.Float64},
        orient="row",
    )


@pytest.mark.parametrize(
    ("values", "kind", "least", "most"),
    [((0.9, 0.99, 0.93), "share", 0.0, 1.0), ((4.0, 31.0, 19.0), "size", 0.0, np.inf)],
)
def test_intervals_stay_within_the_range_of_their_values(values, kind, least, most):
    estimate = estimates(of_seeds(values), ["series"], VALUE, kind=kind).row(0, named=True)
    raw = crossed_mean(np.repeat(np.array(values)[:, None], 40, axis=1))
    assert not (raw.low > least and raw.high < most)
    assert least < estimate["low"] < estimate["value"] < estimate["high"] < most


def test_differences_of_shares_stay_within_100_points():
    both = pl.concat([of_seeds((1.0, 0.6)), of_seeds((0.0, 0.0)).with_columns(series=pl.lit("b"))])
    estimate = difference(both, {"series": "a"}, {"series": "b"}, VALUE)
    assert estimate is not None
    assert estimate.high > 1
    shown = Check("a − b", estimate).estimate
    assert shown is not None
    assert (shown.low, shown.high) == (-1.0, 1.0)
    assert Check("a − b", estimate, "").estimate == estimate


def by_depth(means, seeds, samples=30, spread=0.05):
    """Rows of models of several depths: seeds of each, noise of seeds and samples that all depths share."""
    draw = np.random.default_rng(5)
    by_seed, by_sample = draw.normal(size=40) * spread, draw.normal(size=samples) * spread
    return pl.DataFrame(
        [
            ("a", seed, sample, f"{depth}-{seed}", depth, mean + by_seed[seed] + by_sample[sample])
            for (depth, mean), count in zip(means.items(), seeds, strict=True)
            for seed in range(count)
            for sample in range(samples)
        ],
        {
            "series": pl.String,
            "training_seed": pl.Int64,
            "sample": pl.Int64,
            "cell": pl.String,
            "depth": pl.Int64,
            "value": pl.Float64,
        },
        orient="row",
    )


def test_a_trend_is_the_fitted_line_from_end_to_end():
    means = {1: 0.5, 2: 0.9, 4: 0.3, 12: 0.1}
    estimate = trend(by_depth(means, (3, 3, 3, 3)), "depth", {"series": "a"}, VALUE, scale="log2")
    x = np.log2(list(means))
    slope = np.polyfit(x, list(means.values()), 1)[0]
    assert estimate is not None
    assert estimate.value == pytest.approx(slope * (x[-1] - x[0]))
    assert estimate.seeds == 3
    linear = trend(by_depth({1: 0.0, 2: 0.1, 12: 1.1}, (2, 2, 2)), "depth", {}, VALUE)
    assert linear is not None
    assert linear.value == pytest.approx(1.1)
    two = by_depth({1: 0.2, 12: 0.7}, (2, 2))
    apart = difference(two, {"depth": 12}, {"depth": 1}, VALUE)
    fitted = trend(two, "depth", {}, VALUE, scale="log2")
    assert apart is not None
    assert fitted is not None
    assert (fitted.value, fitted.low) == pytest.approx((apart.value, apart.low))


def test_a_trend_uses_the_seeds_that_all_levels_have_and_knows_its_cells():
    rows_ = by_depth({1: 0.5, 2: 0.4, 4: 0.3}, (5, 5, 3))
    estimate = trend(rows_, "depth", {}, VALUE)
    assert estimate is not None
    assert estimate.seeds == 3
    assert estimate.cells == tuple(sorted(f"{depth}-{seed}" for depth in (1, 2, 4) for seed in range(3)))
    pair = difference(rows_, {"depth": 1}, {"depth": 2}, VALUE)
    assert pair is not None
    assert pair.seeds == 5


def test_a_peak_lies_above_the_levels_on_either_side():
    means = {1: 0.1, 2: 0.7, 4: 0.8, 8: 0.2, 12: 0.0}
    sides = dict(peak(by_depth(means, (3,) * 5), "depth", 4, {"series": "a"}, VALUE))
    assert {side: rise.value for side, rise in sides.items() if rise} == pytest.approx({"below": 0.4, "above": 0.7})
    edge = peak(by_depth(means, (3,) * 5), "depth", 1, {}, VALUE)
    assert [side for side, _ in edge] == ["above"]
    rising = dict(peak(by_depth({1: 0.0, 2: 0.5, 4: 0.9}, (3,) * 3), "depth", 2, {}, VALUE))
    assert rising["above"] is not None
    assert rising["above"].value < 0


def test_trends_of_one_level_and_over_the_logarithm_of_zero():
    assert trend(by_depth({1: 0.1}, (3,)), "depth", {}, VALUE) is None
    assert trend(by_depth({1: 0.1, 2: 0.2}, (3, 3)), "depth", {"series": "b"}, VALUE) is None
    with pytest.raises(UserError, match="trend over log2 of depth 0: expected levels above 0"):
        trend(by_depth({0: 0.1, 2: 0.2}, (3, 3)), "depth", {}, VALUE, scale="log2")


def test_the_interval_of_a_trend_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(6)
    depths, seeds, samples, rounds, covered = (1, 2, 8), 8, 30, 400, 0
    grid = np.stack(np.meshgrid(depths, range(seeds), range(samples), indexing="ij"), -1).reshape(-1, 3)
    frame = pl.DataFrame(grid, schema=["depth", "training_seed", "sample"], orient="row")
    for _ in range(rounds):
        # models of each depth and seed are trained independently; images are shared
        noise = (
            generator.normal(size=(3, seeds, 1)) * 0.1
            + generator.normal(size=(1, 1, samples)) * 0.2
            + generator.normal(size=(3, 1, samples)) * 0.1
            + generator.normal(size=(3, seeds, samples)) * 0.2
        )
        truth = np.log2(depths)[:, None, None] * 0.05
        fit = trend(frame.with_columns(value=pl.Series((truth + noise).ravel())), "depth", {}, VALUE, scale="log2")
        assert fit is not None
        covered += fit.low <= 0.15 <= fit.high
    assert 0.95 - 3.5 * np.sqrt(0.95 * 0.05 / rounds) <= covered / rounds <= 0.995


def test_a_mean_against_a_constant():
    estimate = mean(by_depth({1: 0.4, 2: 0.8}, (3, 3)), {"depth": 2}, VALUE - 0.5)
    draw = np.random.default_rng(5)
    noise = draw.normal(size=40)[:3].mean() * 0.05 + draw.normal(size=30).mean() * 0.05
    assert estimate is not None
    assert estimate.value == pytest.approx(0.3 + noise)
    assert mean(by_depth({1: 0.4}, (3,)), {"depth": 2}, VALUE) is None


def test_a_share_above_a_level_stays_a_share():
    values = of_seeds((0.9, 0.99, 0.93))
    raw = mean(values, {"series": "a"}, VALUE - 0.9)
    share = share_above(values, {"series": "a"}, VALUE, 0.9)
    assert raw is not None
    assert share is not None
    assert 0.9 + raw.high > 1
    assert 0.9 + share.low < 0.9 + share.value < 0.9 + share.high < 1
    assert share.value == pytest.approx(raw.value)
    assert (share.seeds, share.spread) == (3, crossed_mean(np.repeat([[0.9], [0.99], [0.93]], 40, axis=1)).spread)
    assert share_above(values, {"series": "b"}, VALUE, 0.9) is None
