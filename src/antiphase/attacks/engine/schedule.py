"""Which item of which sample runs next, and in which order what ended is taken note of.

A sample's items (targets, restarts) count in their order: the first that succeeds decides, and later ones
are as if they had never run. They may still run ahead of their turn, when rows would otherwise stand
empty: their outcomes wait until every earlier item has failed.
"""

import heapq
from collections.abc import Sequence


class Schedule:
    """The items of every sample still standing.

    Args:
        early_stop: whether a success ends a sample; if not, all items count.
    """

    def __init__(self, early_stop: bool) -> None:
        self.early_stop = early_stop
        self.items: dict[int, Sequence[int]] = {}  # of each sample that is not decided
        # a heap of (position, turn): who has begun goes on before others begin, so that verdicts come all the time
        self.due: list[tuple[int, int]] = []
        self.started: dict[int, int] = {}  # of samples at work: items begun
        self.turn: dict[
            int, int
        ] = {}  # of samples at work: whose outcome counts next, as a place in their items
        self.outcomes: dict[int, dict[int, bool]] = {}  # by that place, where they ended ahead of their turn
        self.ended = self.succeeded = 0  # items

    def add(self, position: int, items: Sequence[int]) -> None:
        """Let a sample wait with its items, at least one, in the order in which they count."""
        self.items[position] = items
        heapq.heappush(self.due, (position, 0))

    def next(self, room: int, spare: int = 0, likely: int = 0) -> list[tuple[int, int]]:
        """Return up to ``room`` (item, position) whose turn has come, then some ahead of theirs.

        Args:
            room: rows for items that are due.
            spare: rows to fill at any rate: what nothing is due for gets items ahead of their turn.
            likely: rows to fill with items ahead of their turn as long as these are as likely as not to count.
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
        """Return items ahead of their turn, of the samples that have the fewest running first."""
        # an item counts if all its sample's before it fail; who succeeds does so early, and little is lost by hoping
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
        """Note an item's outcome; return the items that count now, in order, and whether that decides the sample.

        An item of a sample already decided counts for nothing.
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
        """How many samples have an item due."""
        return len(self.due)
