"""Which item of which sample runs next, and in which order what ended is taken note of.

A sample's items (targets, restarts) count in their order: the first that succeeds decides, and later ones
are as if they had never run. They may still run ahead of their turn, when rows would otherwise stand
empty: their outcomes wait until every earlier item has failed.
"""

import heapq
from collections.abc import Iterable


class Schedule:
    """The items of every sample still standing.

    Args:
        positions: of the samples.
        items: how many each has, at least 1.
        early_stop: whether a success ends a sample; if not, all items count.
    """

    def __init__(self, positions: Iterable[int], items: int, early_stop: bool) -> None:
        self.items, self.early_stop = items, early_stop
        # a heap of (position, item): who has begun goes on before others begin, so that verdicts come all the time
        self.due = [(position, 0) for position in positions]
        heapq.heapify(self.due)
        self.started: dict[int, int] = {}  # of samples at work: items begun
        self.turn: dict[int, int] = {}  # of samples at work: the item whose outcome counts next
        self.outcomes: dict[int, dict[int, bool]] = {}  # ended ahead of their turn

    def next(self, room: int, spare: int = 0) -> list[tuple[int, int]]:
        """Return up to ``room`` (item, position) whose turn has come, then up to ``spare`` ahead of theirs.

        ``spare`` counts from the rows that are left when nothing is due any more.
        """
        chosen: list[tuple[int, int]] = []
        while self.due and len(chosen) < room:
            position, item = heapq.heappop(self.due)
            chosen.append((item, position))
            self.started[position] = item + 1
            self.turn[position] = item
        if not self.due and spare > len(chosen) and self.items > 1:
            chosen += self._ahead(spare - len(chosen))
        return chosen

    def _ahead(self, room: int) -> list[tuple[int, int]]:
        """Return items ahead of their turn, of the samples that have the fewest running first."""
        heap = [
            (begun - self.turn[position], begun, position)
            for position, begun in self.started.items()
            if begun < self.items and not any(self.outcomes.get(position, {}).values())
        ]
        heapq.heapify(heap)
        chosen: list[tuple[int, int]] = []
        while heap and len(chosen) < room:
            lead, item, position = heapq.heappop(heap)
            chosen.append((item, position))
            self.started[position] = item + 1
            if item + 1 < self.items:
                heapq.heappush(heap, (lead + 1, item + 1, position))
        return chosen

    def end(self, position: int, item: int, success: bool) -> tuple[list[int], bool]:
        """Note an item's outcome; return the items that count now, in order, and whether that decides the sample.

        An item of a sample already decided counts for nothing.
        """
        if position not in self.turn:
            return [], False
        outcomes = self.outcomes.setdefault(position, {})
        outcomes[item] = success
        counted: list[int] = []
        decided = False
        while not decided and self.turn[position] in outcomes:
            turn = self.turn[position]
            counted.append(turn)
            self.turn[position] = turn + 1
            decided = (outcomes.pop(turn) and self.early_stop) or turn + 1 == self.items
        if decided:
            del self.turn[position], self.started[position], self.outcomes[position]
        elif self.started[position] == self.turn[position]:
            heapq.heappush(self.due, (position, self.turn[position]))
        return counted, decided

    def __bool__(self) -> bool:
        """Whether anything is due."""
        return bool(self.due)
