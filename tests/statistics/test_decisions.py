"""Exact tests of paired outcomes, plain and clustered, and Holm's procedure."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.statistics.decisions import mcnemar_clustered, mcnemar_exact
from antiphase.statistics.intervals import paired_difference

tables = st.tuples(*[st.integers(0, 40)] * 4).filter(lambda table: sum(table) > 0)


def outcomes(both, only_first, only_second, neither):
    cells = np.array([(True, True), (True, False), (False, True), (False, False)])
    pairs = np.repeat(cells, [both, only_first, only_second, neither], axis=0)
    return pairs[:, 0], pairs[:, 1]


@given(tables)
def test_mcnemar_is_the_binomial_tail_doubled(table):
    _, b, c, _ = table
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    assert mcnemar_exact(*outcomes(*table)) == pytest.approx(min(1.0, 2 * tail))


@given(tables)
def test_clustered_mcnemar_of_clusters_of_one_is_mcnemar(table):
    pairs = outcomes(*table)
    p = mcnemar_clustered(*pairs, np.arange(sum(table)))
    assert p == pytest.approx(mcnemar_exact(*pairs))


def test_mcnemar_keeps_its_level_where_the_outcomes_are_equally_frequent():
    @functools.cache
    def p_value(only_first, only_second):
        return mcnemar_exact(*outcomes(1, only_first, only_second, 1))

    draws = np.random.default_rng(11).multinomial(40, [0.3, 0.15, 0.15, 0.4], size=1500)
    assert np.mean([p_value(int(row[1]), int(row[2])) <= 0.05 for row in draws]) <= 0.05


@given(tables, st.randoms(use_true_random=False))
def test_paired_quantities_ignore_the_order_of_samples(table, random):
    first, second = outcomes(*table)
    order = list(range(len(first)))
    random.shuffle(order)
    for quantity in (paired_difference, mcnemar_exact):
        assert quantity(first[order], second[order]) == quantity(first, second)


@pytest.mark.parametrize("quantity", [paired_difference, mcnemar_exact])
@pytest.mark.parametrize("sizes", [(3, 5), (0, 0)])
def test_paired_quantities_need_pairs(quantity, sizes):
    with pytest.raises(ValueError, match="paired outcomes"):
        quantity(np.ones(sizes[0], bool), np.ones(sizes[1], bool))
