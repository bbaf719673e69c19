"""From rows to estimates: pairing, and what is not averaged unseen."""

import numpy as np
import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.evaluation.crossed import crossed_mean
from antiphase.studies.claims import Check
from antiphase.studies.estimation import difference, estimates

VALUE = pl.col("value")


def rows(series, seeds=(0, 1), samples=(3, 5, 7), cell="", shift=0.0):
    return pl.DataFrame(
        [
            (series, seed, sample, cell or f"{series}{seed}", np.sin(seed * 7 + sample) + shift)
            for seed in seeds for sample in samples
        ],
        {"series": pl.String, "training_seed": pl.Int64, "sample": pl.Int64, "cell": pl.String, "value": pl.Float64},
        orient="row",
    )  # fmt: skip


def test_means_are_over_seeds_and_samples_in_any_order():
    both = pl.concat([rows("a"), rows("b", shift=9.0)]).sample(fraction=1.0, shuffle=True, seed=1)
    found = {
        row["series"]: row for row in estimates(both, ["series"], VALUE, kind="size").iter_rows(named=True)
    }
    matrix = np.sin(np.array([[3, 5, 7], [10, 12, 14]]))
    assert found["a"]["value"] == pytest.approx(matrix.mean())
    assert found["b"]["low"] == pytest.approx(crossed_mean(matrix).low + 9.0)
    assert (found["a"]["n"], found["a"]["seeds"]) == (3, 2)


def test_differences_are_paired_by_seed_and_sample():
    both = pl.concat([rows("b", shift=0.25), rows("a")])
    found = difference(both, {"series": "b"}, {"series": "a"}, VALUE)
    assert found is not None
    assert found.value == pytest.approx(0.25)
    assert found.n == 3


def test_seeds_that_only_one_has_are_left_out_and_none_in_common_is_no_estimate():
    both = pl.concat([rows("b", seeds=(0, 1)), rows("a", seeds=(1, 2))])
    found = difference(both, {"series": "b"}, {"series": "a"}, VALUE)
    assert found is not None
    assert found.value == pytest.approx(0.0)
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
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "kind", "least", "most"),
    [((0.9, 0.99, 0.93), "share", 0.0, 1.0), ((4.0, 31.0, 19.0), "size", 0.0, np.inf)],
)
def test_intervals_stay_within_the_range_of_their_values(values, kind, least, most):
    found = estimates(of_seeds(values), ["series"], VALUE, kind=kind).row(0, named=True)
    raw = crossed_mean(np.repeat(np.array(values)[:, None], 40, axis=1))
    assert not (raw.low > least and raw.high < most)
    assert least < found["low"] < found["value"] < found["high"] < most


def test_differences_of_shares_stay_within_100_points():
    both = pl.concat([of_seeds((1.0, 0.6)), of_seeds((0.0, 0.0)).with_columns(series=pl.lit("b"))])
    found = difference(both, {"series": "a"}, {"series": "b"}, VALUE)
    assert found is not None
    assert found.high > 1
    shown = Check("a − b", found).estimate
    assert shown is not None
    assert (shown.low, shown.high) == (-1.0, 1.0)
    assert Check("a − b", found, "").estimate == found
