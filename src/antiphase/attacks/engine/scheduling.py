"""Which searches run in the batch: the order in which the items of all samples run and count, and the batch itself.

The items (targets, restarts) of a sample count in order: the first success decides, and later items are ignored. They
may still run early, to fill rows that would otherwise be empty; their outcomes are held back until every earlier item
has failed.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from antiphase.attacks.engine.oracle import QUANTUM, Oracle
from antiphase.attacks.engine.search import Rows, Search

_PATIENCE = 20  # steps that a finished search waits for others, to be confirmed in one batch


@dataclass
class _Sample:
    """The items of an undecided sample: how many have begun, which counts next, and the outcomes that came early."""

    items: Sequence[int]
    begun: int = 0
    turn: int = 0
    outcomes: dict[int, tuple[bool, Any]] = field(default_factory=dict)


class Schedule:
    """The pending items of all undecided samples, which the first success decides if ``early_stop``, else all items."""

    def __init__(self, early_stop: bool) -> None:
        self.early_stop = early_stop
        self.samples: dict[int, _Sample] = {}  # by position
        # a heap of positions: samples that have begun come first, so that results arrive steadily
        self.due: list[int] = []
        self.ended = self.succeeded = 0  # items

    def __len__(self) -> int:
        return len(self.due)

    def add(self, position: int, items: Sequence[int]) -> None:
        """Add a sample with its items (at least one), in the order in which they count."""
        self.samples[position] = _Sample(items)
        heapq.heappush(self.due, position)

    def next(self, room: int, spare: int = 0, likely: int = 0) -> list[tuple[int, int]]:
        """Return at most ``room`` (item, position) that are due.

        If too few are, early items fill ``spare`` rows in any case, and ``likely`` rows if they are at least as likely
        as not to count.
        """
        chosen: list[tuple[int, int]] = []
        while self.due and len(chosen) < room:
            chosen.append(self._begin(heapq.heappop(self.due)))
        if self.due or max(spare, likely) <= len(chosen):
            return chosen
        # an item counts if all before it fail; samples that succeed do so early, so little is wasted
        fails = 1 - self.succeeded / (self.ended + 1) if self.early_stop else 1.0
        heap = [
            (sample.begun - sample.turn, sample.begun, position)
            for position, sample in self.samples.items()
            if 0 < sample.begun < len(sample.items)
            and not any(success for success, _ in sample.outcomes.values())
        ]
        heapq.heapify(heap)  # the samples with the fewest running items first
        while heap and len(chosen) < max(spare, likely):
            lead, begun, position = heapq.heappop(heap)
            if len(chosen) >= spare and fails**lead < 0.5:
                break
            chosen.append(self._begin(position))
            if begun + 1 < len(self.samples[position].items):
                heapq.heappush(heap, (lead + 1, begun + 1, position))
        return chosen

    def _begin(self, position: int) -> tuple[int, int]:
        sample = self.samples[position]
        sample.begun += 1
        return sample.items[sample.begun - 1], position

    def end(self, position: int, item: int, success: bool, row: Any = None) -> tuple[list[Any], bool]:
        """Take the row of an ended item; return the rows that count now, in order, and whether the sample is decided.

        Items of decided samples are ignored.
        """
        if position not in self.samples:
            return [], False
        self.ended += 1
        self.succeeded += success
        sample = self.samples[position]
        sample.outcomes[sample.items.index(item)] = success, row
        rows: list[Any] = []
        while sample.turn in sample.outcomes:
            success, row = sample.outcomes.pop(sample.turn)
            rows.append(row)
            sample.turn += 1
            if (success and self.early_stop) or sample.turn == len(sample.items):
                del self.samples[position]
                return rows, True
        if sample.begun == sample.turn:
            heapq.heappush(self.due, position)
        return rows, False


class Lane:
    """The batch of one oracle: refilled from its schedule, advanced by the search, emptied of finished rows."""

    def __init__(self, oracle: Oracle, size: int, early_stop: bool) -> None:
        self.oracle, self.size, self.early_stop = oracle, size, early_stop
        self.schedule = Schedule(early_stop)  # items that start here
        self.waiting = Rows()  # moved here from another lane
        self.batch, self.tried = Rows(), Rows()  # running; finished but not confirmed
        self.waited = 0  # steps since the first of the latter
        self.together = min(QUANTUM, size)  # confirm a multiple of this many rows at once

    @property
    def filled(self) -> float:
        """Share of the batch that is occupied, at most 1."""
        rows = len(self.waiting) + len(self.batch) + len(self.tried) + len(self.schedule)
        return min(1.0, rows / self.size)

    def next(self) -> list[tuple[int, int]]:
        """Move waiting rows into the batch; return (item, position) of the rows that may start as well."""
        moved = self.waiting.take(slice(max(0, self.size - len(self.batch))))
        self.batch, self.waiting = self.batch.join(moved), self.waiting.take(slice(len(moved), None))
        room = max(0, self.size - len(self.batch))
        # rows in place of padding are free on a CPU; on a GPU, rows now cost less than in a smaller batch later
        spare = -len(self.batch) % QUANTUM if self.oracle.device.type == "cpu" else room
        return self.schedule.next(room, min(spare, room), room) if room else []

    def start(self, rows: Rows, search: Search) -> None:
        """Add new rows to the batch, with the state that every search has."""
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        rows["t"], rows["best"] = torch.zeros_like(rows["label"]), rows["clean"].clone()
        rows.fill(-torch.inf, "loss")
        for name in ("found", "done"):
            rows[name] = torch.zeros_like(rows["label"], dtype=torch.bool)
        search.start(rows)
        self.batch = self.batch.join(rows)

    def ended(self) -> Rows:
        """Remove and return the rows to confirm now; none while waiting for more is cheaper."""
        count = len(self.tried)
        self.waited = self.waited + 1 if count else 0
        now = count  # if nothing runs, there is nothing to wait for, and rows that stay together share their passes
        if len(self.batch):
            if count < self.together and self.waited < _PATIENCE:
                return Rows()
            now = count - count % self.together or count
        if not now:
            return Rows()
        ended = self.tried.take(slice(min(now, self.size)))
        self.tried, self.waited = self.tried.take(slice(len(ended), None)), 0
        return ended

    def set_aside(self) -> None:
        """Take the rows whose search has ended out of the batch."""
        if len(self.batch):
            self.tried = self.tried.join(
                self._removed(self.batch["done"] | (self.batch["found"] & self.early_stop))
            )

    def leave(self) -> Rows:
        """Remove and return the rows that must continue in float32."""
        return self._removed(self.batch["exact"]) if "exact" in self.batch else Rows()

    def _removed(self, mask: torch.Tensor) -> Rows:
        if not mask.any():
            return Rows()
        rows, self.batch = self.batch.take(mask), self.batch.take(~mask)
        return rows

    def drop(self, last: torch.Tensor) -> None:
        """Drop rows whose item comes after the last that can count, given per sample."""
        last = last.to(self.oracle.device)
        for name in ("waiting", "batch", "tried"):
            rows: Rows = getattr(self, name)
            if len(rows):
                setattr(self, name, rows.take(rows["item"] <= last[rows["position"]]))
