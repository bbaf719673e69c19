"""The schedule: whatever ends first, the same items count, in their order."""

from hypothesis import given
from hypothesis import strategies as st

from antiphase.attacks.engine.scheduling import Schedule


def _end(schedule, position, item, success):
    return schedule.end(position, item, success, item)


def _schedule(positions, items, early_stop):
    schedule = Schedule(early_stop)
    for position in positions:
        schedule.add(position, items)
    return schedule


def _play(outcomes, early_stop, room, spare, likely, pick):
    """Run every item; ``pick`` says which running one ends next. Return what counted for each sample, in order."""
    schedule = _schedule(range(len(outcomes)), range(len(outcomes[0])), early_stop)
    running, counted, decided = [], {p: [] for p in range(len(outcomes))}, set()
    while True:
        left = room - len(running)
        new = schedule.next(left, min(spare, left), min(likely, left))
        assert len(new) <= room - len(running)
        assert not {(i, p) for i, p in new} & set(running)
        running += new
        if not running:
            return counted, decided
        item, position = running.pop(pick(len(running)))
        items, over = _end(schedule, position, item, outcomes[position][item])
        counted[position] += items
        if over:
            decided.add(position)
            running = [(i, p) for i, p in running if p != position]


@given(
    outcomes=st.integers(1, 5).flatmap(
        lambda items: st.lists(
            st.lists(st.booleans(), min_size=items, max_size=items), min_size=1, max_size=7
        )
    ),
    early_stop=st.booleans(),
    room=st.integers(1, 11),
    spare=st.integers(0, 11),
    likely=st.integers(0, 11),
    seed=st.randoms(use_true_random=False),
)
def test_items_count_in_order_up_to_the_first_success(outcomes, early_stop, room, spare, likely, seed):
    counted, decided = _play(outcomes, early_stop, room, spare, likely, seed.randrange)
    for position, results in enumerate(outcomes):
        until = results.index(True) + 1 if early_stop and True in results else len(results)
        assert counted[position] == list(range(until))
    assert decided == set(range(len(outcomes)))


def test_a_sample_that_has_begun_goes_on_before_others_begin():
    schedule = _schedule([3, 1], range(2), early_stop=True)
    assert schedule.next(1) == [(0, 1)]
    assert _end(schedule, 1, 0, False) == ([0], False)
    assert schedule.next(2) == [(1, 1), (0, 3)]


def test_spare_rows_run_items_ahead_of_their_turn_the_least_advanced_sample_first():
    schedule = _schedule([4, 7], range(3), early_stop=True)
    assert schedule.next(8, 5) == [(0, 4), (0, 7), (1, 4), (1, 7), (2, 4)]
    assert _end(schedule, 4, 2, True) == ([], False)
    assert _end(schedule, 4, 0, False) == ([0], False)
    assert _end(schedule, 4, 1, False) == ([1, 2], True)
    assert _end(schedule, 4, 1, True) == ([], False)  # decided already
    assert schedule.next(8, 0) == []


def test_items_need_be_neither_all_nor_in_a_row():
    schedule = Schedule(early_stop=True)
    schedule.add(5, [1, 6])
    schedule.add(2, [0, 3, 4])
    assert schedule.next(1) == [(0, 2)]
    assert len(schedule) == 1
    assert schedule.next(4, 3) == [(1, 5), (3, 2), (6, 5)]
    assert _end(schedule, 5, 6, True) == ([], False)
    assert _end(schedule, 5, 1, False) == ([1, 6], True)
    assert _end(schedule, 2, 0, False) == ([0], False)
    assert schedule.next(2) == []


def test_items_that_are_likely_to_count_run_ahead_of_their_turn():
    schedule = _schedule([4, 7], range(12), early_stop=True)
    assert len(schedule.next(16, likely=6)) == 6  # nothing has succeeded yet: all are likely
    for position in (4, 7):
        for item in range(3):
            _end(schedule, position, item, False)
    schedule.add(1, range(9))
    assert schedule.next(1) == [(0, 1)]
    _end(schedule, 1, 0, True)
    # one of seven has succeeded: 7/8 to the power of 5 is more than a half, to the power of 6 it is not
    assert len(schedule.next(16, likely=16)) == 12
    assert schedule.next(16, likely=16) == []
    assert schedule.next(16, spare=2, likely=16) == [(9, 4), (9, 7)]  # rows that cost nothing


def test_where_all_items_count_all_run_ahead():
    schedule = _schedule([4], range(5), early_stop=False)
    assert schedule.next(1) == [(0, 4)]
    _end(schedule, 4, 0, True)
    assert schedule.next(16, likely=16) == [(1, 4), (2, 4), (3, 4), (4, 4)]
