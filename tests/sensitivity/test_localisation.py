"""Pointing game and average precision by hand, against their definitions, and what must not change them."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from antiphase.errors import UserError
from antiphase.sensitivity.relevance import enlarge, localise


def mask(*rows):
    return np.array([[letter == "#" for letter in row] for row in rows])


LEFT, RIGHT = mask("##..", "##.."), mask("..##", "..##")
FALLING = np.array([[4.0, 3.0, 2.0, 1.0], [3.5, 2.5, 1.5, 0.5]])


def test_the_greatest_value_hits_or_misses():
    hits = [localise(*pair)[0] for pair in ((FALLING, LEFT), (FALLING, RIGHT), (-FALLING, RIGHT))]
    assert hits == [True, False, True]


def test_of_equal_values_the_first_counts():
    flat = np.ones((2, 4))
    assert localise(flat, mask("#...", "...."))[0]
    assert not localise(flat, mask(".###", "####"))[0]


def test_average_precision_by_hand():
    # values fall 4, 3.5, 3, 2.5, 2, …; object pixels come 1st, 3rd and 5th: (1/1 + 2/3 + 3/5) / 3
    assert localise(FALLING, mask("###.", "...."))[1] == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert localise(FALLING, LEFT)[1] == 1.0
    assert localise(np.full((2, 4), 0.3), mask("#...", "#.#."))[1] == pytest.approx(3 / 8)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_map_is_measured_at_the_size_of_its_mask(scale):
    generator = np.random.default_rng(scale)
    values, truth = generator.normal(size=(5, 7)), generator.random((5 * scale, 7 * scale)) < 0.3
    fine = enlarge(values, *truth.shape)
    hit, precision = localise(values, truth)
    assert precision == pytest.approx(average_precision_score(truth.ravel(), fine.ravel()), rel=1e-12)
    assert hit == truth[np.unravel_index(fine.argmax(), truth.shape)]


def test_only_the_order_of_the_values_counts():
    generator = np.random.default_rng(1)
    for _ in range(4):
        values, truth = generator.normal(size=(3, 3)), generator.random((3, 3)) < 0.5
        assert localise(values, truth) == localise(3 * values - 8, truth)


def test_an_enlarged_map_keeps_its_cells_where_they_were():
    values = np.arange(6.0).reshape(2, 3)
    three = enlarge(values, 6, 9)
    np.testing.assert_allclose(three[1::3, 1::3], values)  # centres of the cells
    np.testing.assert_allclose(three[0, 0], values[0, 0])
    np.testing.assert_array_equal(enlarge(values, 2, 3), values)
    assert enlarge(values.astype(np.float32)[:, ::-1], 4, 4).dtype == np.float64


def test_localise_rejects_an_empty_mask_and_a_map_that_is_not_finite():
    with pytest.raises(UserError, match="empty mask"):
        localise(FALLING, mask("....", "...."))
    with pytest.raises(ValueError, match="expected finite"):
        localise(np.full((2, 4), np.nan), LEFT)
