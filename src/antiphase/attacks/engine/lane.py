"""One batch in one precision: refilled from its schedule, advanced by the search, and emptied of finished rows."""

import torch

from antiphase.attacks.engine.oracle import QUANTUM, Oracle
from antiphase.attacks.engine.rows import Rows
from antiphase.attacks.engine.schedule import Schedule
from antiphase.attacks.engine.search import Search

_PATIENCE = 20  # steps that a finished search waits for others, to be confirmed in one batch


class Lane:
    """The batch of one oracle.

    Args:
        oracle: oracle of the search.
        size: largest number of rows.
        early_stop: whether a row ends as soon as its search succeeds.
    """

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
        room = self.size - len(self.batch)
        if len(self.waiting) and room > 0:
            self.batch = self.batch.join(self.waiting.take(slice(room)))
            self.waiting = self.waiting.take(slice(room, None))
            room = self.size - len(self.batch)
        if room < 1:
            return []
        # rows in place of padding are free on a CPU; on a GPU, rows now cost less than in a smaller batch later
        spare = -len(self.batch) % QUANTUM if self.oracle.device.type == "cpu" else room
        return self.schedule.next(room, min(spare, room), room)

    def start(self, rows: Rows, search: Search) -> None:
        """Add new rows to the batch."""
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        search.start(rows)
        self.batch = self.batch.join(rows)

    def sort_out(self) -> None:
        """Set the rows aside whose search has ended."""
        if not len(self.batch):
            return
        ready = self.batch["done"] | (self.batch["found"] & self.early_stop)
        if ready.any():
            self.tried = self.tried.join(self.batch.take(ready))
            self.batch = self.batch.take(~ready)

    def ended(self) -> Rows:
        """Remove and return the rows to confirm now; none while waiting for more is cheaper."""
        count = len(self.tried)
        self.waited = self.waited + 1 if count else 0
        if not len(self.batch):  # nothing to wait for, and rows that stay together share their passes
            now = count
        elif count < self.together and self.waited < _PATIENCE:
            now = 0
        else:
            now = count - count % self.together or count
        if not now:
            return Rows()
        ended = self.tried.take(slice(min(now, self.size)))
        self.tried, self.waited = self.tried.take(slice(len(ended), None)), 0
        return ended

    def leave(self) -> Rows:
        """Remove and return the rows that must continue in float32."""
        leaving = self.batch.get("exact")
        if leaving is None or not leaving.any():
            return Rows()
        rows, self.batch = self.batch.take(leaving), self.batch.take(~leaving)
        return rows

    def resume(self, rows: Rows) -> None:
        """Continue rows whose example was not confirmed."""
        rows["found"] = torch.zeros_like(rows["found"])
        self.batch = self.batch.join(rows)

    def drop(self, last: torch.Tensor) -> None:
        """Drop rows whose item comes after the last that can count, given per sample."""
        last = last.to(self.oracle.device)
        for name in ("waiting", "batch", "tried"):
            rows: Rows = getattr(self, name)
            if len(rows):
                setattr(self, name, rows.take(rows["item"] <= last[rows["position"]]))
