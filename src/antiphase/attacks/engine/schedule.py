"""The order in which the items of all samples run and count.

The items (targets, restarts) of a sample count in order: the first success decides, and later items are ignored. They
may still run early, to fill rows that would otherwise be empty; their outcomes are held back until every earlier item
has failed.
"""

import heapq
from collections.abc import Sequence


class Schedule:
    """The pending items of all undecided samples.

    Args:
        early_stop: whether the first success decides a sample; otherwise all items count.
    """

    def __init__(self, early_stop: bool) -> None:
        self.early_stop = early_stop
        self.items: dict[int, Sequence[int]] = {}  # items of each undecided sample
        # a heap of (position, turn): samples that have begun come first, so that results arrive steadily
        self.due: list[tuple[int, int]] = []
        self.started: dict[int, int] = {}  # for running samples: items begun
        self.turn: dict[int, int] = {}  # for running samples: index of the item that counts next
        self.outcomes: dict[int, dict[int, bool]] = {}  # outcomes by index of items that ended early
        self.ended = self.succeeded = 0  # items

    def add(self, position: int, items: Sequence[int]) -> None:
        """Add a sample with its items (at least one), in the order in which they count."""
        self.items[position] = items
        heapq.heappush(self.due, (position, 0))

    def next(self, room: int, spare: int = 0, likely: int = 0) -> list[tuple[int, int]]:
        """Return at most ``room`` (item, position) that are due, then some that run early.

        Args:
            room: rows for items that are due.
            spare: rows to fill in any case, with early items if none is due.
            likely: rows to fill with early items that are at least as likely as not to count.
        """
        chosen: list[tuple[int, int]] = []
        while self.due and len(chosen) < room:
            position, turn = heapq.heappop(self.due)
            chosen.append((self.items[position][turn], position))
            self.started[position] = turn + 1
            self.turn[position] = turn
        if not self.due and max(spare, likely) > len(chosen):
            chosen += self._ahead(spare - len(chosen), likely - len(chosen))
        return chosen

    def _ahead(self, spare: int, likely: int) -> list[tuple[int, int]]:
        """Return early items, of the samples with the fewest running items first."""
        # an item counts if all before it fail; samples that succeed do so early, so little is wasted
        fails = 1 - self.succeeded / (self.ended + 1) if self.early_stop else 1.0
        heap = [
            (begun - self.turn[position], begun, position)
            for position, begun in self.started.items()
            if begun < len(self.items[position]) and not any(self.outcomes.get(position, {}).values())
        ]
        heapq.heapify(heap)
        chosen: list[tuple[int, int]] = []
        while heap and len(chosen) < max(spare, likely):
            lead, turn, position = heapq.heappop(heap)
            if len(chosen) >= spare and fails**lead < 0.5:
                break
            chosen.append((self.items[position][turn], position))
            self.started[position] = turn + 1
            if turn + 1 < len(self.items[position]):
                heapq.heappush(heap, (lead + 1, turn + 1, position))
        return chosen

    def end(self, position: int, item: int, success: bool) -> tuple[list[int], bool]:
        """Record an outcome; return the items that count now, in order, and whether the sample is decided.

        Items of decided samples are ignored.
        """
        if position not in self.turn:
            return [], False
        self.ended += 1
        self.succeeded += success
        items = self.items[position]
        outcomes = self.outcomes.setdefault(position, {})
        outcomes[items.index(item)] = success
        counted: list[int] = []
        decided = False
        while not decided and self.turn[position] in outcomes:
            turn = self.turn[position]
            counted.append(items[turn])
            self.turn[position] = turn + 1
            decided = (outcomes.pop(turn) and self.early_stop) or turn + 1 == len(items)
        if decided:
            del self.items[position], self.turn[position], self.started[position], self.outcomes[position]
        elif self.started[position] == self.turn[position]:
            heapq.heappush(self.due, (position, self.turn[position]))
        return counted, decided

    def __len__(self) -> int:
        """Number of samples with an item due."""
        return len(self.due)
