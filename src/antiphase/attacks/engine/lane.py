"""A batch at work in one precision: filled from its schedule, moved by the search, emptied of what has ended."""

import torch

from antiphase.attacks.engine.oracle import QUANTUM, Oracle
from antiphase.attacks.engine.rows import Rows
from antiphase.attacks.engine.schedule import Schedule
from antiphase.attacks.engine.search import Search

_PATIENCE = 20  # steps that an ended search waits for others to be confirmed with


class Lane:
    """The rows that one oracle's answers move.

    Args:
        oracle: that the search asks.
        size: rows at once.
        early_stop: whether a row ends as soon as its search has found something.
    """

    def __init__(self, oracle: Oracle, size: int, early_stop: bool) -> None:
        self.oracle, self.size, self.early_stop = oracle, size, early_stop
        self.schedule = Schedule(early_stop)  # of the items that begin here
        self.waiting = Rows()  # come from another lane
        self.batch, self.tried = Rows(), Rows()  # at work; ended and not yet confirmed
        self.waited = 0  # steps since the first of those
        self.together = min(QUANTUM, size)  # rows that are confirmed in one pass, or a multiple

    @property
    def filled(self) -> float:
        """What is here to do, as a share of what fits, up to 1."""
        rows = len(self.waiting) + len(self.batch) + len(self.tried) + len(self.schedule)
        return min(1.0, rows / self.size)

    def next(self) -> list[tuple[int, int]]:
        """Let those in who wait; return (item, position) of the rows that may start beside them."""
        room = self.size - len(self.batch)
        if len(self.waiting) and room > 0:
            self.batch = self.batch.join(self.waiting.take(slice(room)))
            self.waiting = self.waiting.take(slice(room, None))
            room = self.size - len(self.batch)
        if room < 1:
            return []
        # rows that would only be padding cost nothing on a CPU; others do, but less than in a smaller batch later
        spare = -len(self.batch) % QUANTUM if self.oracle.device.type == "cpu" else room
        return self.schedule.next(room, min(spare, room), room)

    def start(self, rows: Rows, search: Search) -> None:
        """Let new rows in."""
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        search.start(rows)
        self.batch = self.batch.join(rows)

    def step(self, search: Search) -> None:
        """Move every row once."""
        if not len(self.batch):
            return
        search.step(self.batch, self.oracle)
        ready = self.batch["done"] | (self.batch["found"] & self.early_stop)
        if ready.any():
            self.tried = self.tried.join(self.batch.take(ready))
            self.batch = self.batch.take(~ready)

    def ended(self) -> Rows:
        """Take out the rows to be confirmed now: none while it pays to wait for more."""
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
        """Take out the rows that want to go on in float32."""
        leaving = self.batch.get("exact")
        if leaving is None or not leaving.any():
            return Rows()
        rows, self.batch = self.batch.take(leaving), self.batch.take(~leaving)
        return rows

    def resume(self, rows: Rows) -> None:
        """Let rows go on whose example the verdict refused."""
        rows["found"] = torch.zeros_like(rows["found"])
        self.batch = self.batch.join(rows)

    def drop(self, last: torch.Tensor) -> None:
        """Drop the rows whose item comes after the last that can count, given for each sample."""
        last = last.to(self.oracle.device)
        for name in ("waiting", "batch", "tried"):
            rows: Rows = getattr(self, name)
            if len(rows):
                setattr(self, name, rows.take(rows["item"] <= last[rows["position"]]))
