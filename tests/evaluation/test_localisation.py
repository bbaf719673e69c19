"""Pointing game and average precision by hand, against their definitions, and what must not change them."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from antiphase.errors import UserError
from antiphase.evaluation.localisation import enlarge, mask_average_precision, pointing_game


def mask(*rows):
    return np.array([[letter == "#" for letter in row] for row in rows])


LEFT, RIGHT = mask("##..", "##.."), mask("..##", "..##")
FALLING = np.array([[4.0, 3.0, 2.0, 1.0], [3.5, 2.5, 1.5, 0.5]])


def test_the_greatest_value_hits_or_misses():
    hits = pointing_game(np.stack([FALLING, FALLING, -FALLING]), [LEFT, RIGHT, RIGHT])
    assert hits.tolist() == [True, False, True]


def test_of_equal_values_the_first_counts():
    flat = np.ones((1, 2, 4))
    assert pointing_game(flat, [mask("#...", "....")]).all()
    assert not pointing_game(flat, [mask(".###", "####")]).any()


def test_average_precision_by_hand():
    # values fall 4, 3.5, 3, 2.5, 2, …; object pixels come 1st, 3rd and 5th: (1/1 + 2/3 + 3/5) / 3
    (found,) = mask_average_precision(FALLING[None], [mask("###.", "....")])
    assert found == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert mask_average_precision(FALLING[None], [LEFT])[0] == 1.0
    assert mask_average_precision(np.full((1, 2, 4), 0.3), [mask("#...", "#.#.")])[0] == pytest.approx(3 / 8)


def test_each_image_is_measured_at_its_own_mask_s_size():
    generator = np.random.default_rng(0)
    maps = generator.normal(size=(3, 5, 7))
    masks = [generator.random((5 * k, 7 * k)) < 0.3 for k in (1, 2, 3)]
    found = mask_average_precision(maps, masks)
    expected = [
        average_precision_score(own.ravel(), enlarge(values, *own.shape).ravel())
        for own, values in zip(masks, maps, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == np.float64
    hits = pointing_game(maps, masks)
    for hit, values, own in zip(hits, maps, masks, strict=True):
        place = np.unravel_index(enlarge(values, *own.shape).argmax(), own.shape)
        assert hit == own[place]
    assert len(set(hits)) == 2


def test_only_the_order_of_the_values_counts():
    generator = np.random.default_rng(1)
    maps, masks = generator.normal(size=(4, 3, 3)), [generator.random((3, 3)) < 0.5 for _ in range(4)]
    for metric in (pointing_game, mask_average_precision):
        np.testing.assert_array_equal(metric(maps, masks), metric(3 * maps - 8, masks))
        backwards = metric(maps[::-1], masks[::-1])
        np.testing.assert_array_equal(metric(maps, masks), backwards[::-1])


def test_an_enlarged_map_keeps_its_cells_where_they_were():
    values = np.arange(6.0).reshape(2, 3)
    three = enlarge(values, 6, 9)
    np.testing.assert_allclose(three[1::3, 1::3], values)  # centres of the cells
    np.testing.assert_allclose(three[0, 0], values[0, 0])
    np.testing.assert_array_equal(enlarge(values, 2, 3), values)
    assert enlarge(values.astype(np.float32)[:, ::-1], 4, 4).dtype == np.float64


@pytest.mark.parametrize("metric", [pointing_game, mask_average_precision])
def test_mistakes_are_named(metric):
    with pytest.raises(UserError, match="2 masks for 1 maps"):
        metric(FALLING[None], [LEFT, LEFT])
    with pytest.raises(UserError, match="mask 1 is empty"):
        metric(np.stack([FALLING, FALLING]), [LEFT, mask("....", "....")])
    with pytest.raises(ValueError, match="map 0: expected finite"):
        metric(np.full((1, 2, 4), np.nan), [LEFT])
