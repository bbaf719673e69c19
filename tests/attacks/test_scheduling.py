"""The schedule: whatever ends first, the same items count, in their order."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphase.attacks.engine.scheduling import Schedule
from antiphase.attacks.engine.search import Rows


def _schedule(samples, items, early_stop=True):
    return Schedule(torch.ones(samples, dtype=torch.bool), items, early_stop)


def _next(schedule, room, spare=0, running=0, repeats=False):
    """Return (item, position) of what starts."""
    return [tuple(pair) for pair in schedule.next(repeats, room, spare, running).T.tolist()]


def _end(schedule, position, item, success=False, near=False):
    rows = {"position": [position], "item": [item], "success": [success], "near": [near]}
    return schedule.end(Rows({name: torch.tensor(values) for name, values in rows.items()})).tolist()


@given(
    outcomes=st.integers(1, 5).flatmap(
        lambda items: st.lists(st.lists(st.booleans(), min_size=items, max_size=items), min_size=1, max_size=7)
    ),
    early_stop=st.booleans(),
    room=st.integers(1, 11),
    spare=st.integers(0, 11),
    seed=st.randoms(use_true_random=False),
)
def test_items_count_in_order_up_to_the_first_success(outcomes, early_stop, room, spare, seed):
    schedule = _schedule(len(outcomes), len(outcomes[0]), early_stop)
    running, decided = [], []
    while True:
        new = _next(schedule, room - len(running), spare, len(running))
        assert len(new) <= room - len(running)
        assert not set(new) & set(running)
        running += new
        if not running:
            break
        item, position = running.pop(seed.randrange(len(running)))
        decided += _end(schedule, position, item, outcomes[position][item])
        running = [(i, p) for i, p in running if i <= schedule.last[p]]
    assert sorted(decided) == list(range(len(outcomes)))
    for position, results in enumerate(outcomes):
        until = results.index(True) if early_stop and True in results else len(results) - 1
        last = min(int(schedule.last[position]), int(schedule.turn[position]) - 1, len(results) - 1)
        assert last == until


def test_a_sample_that_has_begun_goes_on_before_others_begin():
    schedule = _schedule(2, 2)
    assert _next(schedule, 1) == [(0, 0)]
    assert _end(schedule, 0, 0) == []
    assert _next(schedule, 2) == [(1, 0), (0, 1)]


def test_spare_rows_run_items_ahead_of_their_turn_the_least_advanced_sample_first():
    schedule = _schedule(2, 3)
    assert _next(schedule, 8, 5)[:5] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert _end(schedule, 0, 2, True) == []
    assert schedule.turn[0] == 0
    assert _end(schedule, 0, 0) == []
    assert schedule.turn[0] == 1
    assert _end(schedule, 0, 1) == [0]


def test_items_that_are_likely_to_count_run_ahead_of_their_turn():
    schedule = _schedule(3, 12)
    schedule.undecided[2] = False
    schedule.state[2] = 2
    assert len(_next(schedule, 6)) == 6  # nothing has succeeded yet: all are likely
    schedule.ended, schedule.succeeded = 6, 1
    # one of six has succeeded: 6/7 to the power of 4 is more than a half, to the power of 5 it is not
    assert len(_next(schedule, 16, running=6)) == 4
    assert _next(schedule, 16, running=10) == []
    assert _next(schedule, 16, spare=2, running=10) == [(5, 0), (5, 1)]  # rows that cost nothing


def test_where_all_items_count_all_run_ahead():
    schedule = _schedule(1, 5, early_stop=False)
    assert _next(schedule, 1) == [(0, 0)]
    assert _end(schedule, 0, 0, True) == []
    assert _next(schedule, 16) == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_near_failures_of_a_robust_sample_are_repeated_once():
    schedule = _schedule(2, 2)
    _next(schedule, 4)
    for position, success in ((1, True), (0, False)):
        _end(schedule, position, 0, near=True)
        assert _next(schedule, 4, repeats=True) == []
        assert _end(schedule, position, 1, success) == ([1] if success else [])
    assert _next(schedule, 4, repeats=True) == [(2, 0)]
    assert _end(schedule, 0, 2) == [0]
    assert _next(schedule, 4, repeats=True) == []
