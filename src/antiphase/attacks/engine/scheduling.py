"""Which searches run in the batch, and in which order their outcomes count.

The items (targets, restarts) of a sample count in order: the first success decides. Later items may run early, to fill
rows that would otherwise be empty; their outcomes are held back until every earlier item has failed.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from antiphase.attacks.engine.oracle import QUANTUM, Oracle
from antiphase.attacks.engine.search import Rows, Search

_PATIENCE = 20  # steps that a finished search waits for others, to be confirmed in one batch
_WAITING, _RUNNING, _FAILED, _NEAR, _SUCCEEDED = range(5)


class Schedule:
    """The state of every item of every sample: a column for each item, then one for its repeat in float32.

    A repeat waits once all items of its sample have failed, and its own by a hair (``near``). The first success decides
    a sample if ``early_stop``, else all its items.
    """

    def __init__(self, undecided: Bool[Tensor, " samples"], items: int, early_stop: bool) -> None:
        self.undecided, self.items, self.early_stop = undecided.clone(), items, early_stop
        self.state = torch.full((len(undecided), 2 * items), _FAILED, dtype=torch.int8)
        self.state[:, :items][undecided] = _WAITING
        self.turn = torch.zeros(len(undecided), dtype=torch.int64)  # the first item that has not ended
        self.last = torch.full_like(self.turn, 2 * items)  # no later item can count
        self.ended = self.succeeded = 0
        self._count()

    def _count(self) -> None:
        self.waiting = [int((part == _WAITING).sum()) for part in self.state.split(self.items, 1)]

    def next(self, repeats: bool, room: int, spare: int, running: int) -> Int64[Tensor, "2 new"]:
        """Return item and position of at most ``room`` items to start; ``running`` rows are at work already.

        Items ahead of their turn fill ``spare`` rows, and all rows while they are as likely as not to count.
        """
        if not room or not self.waiting[repeats]:
            return torch.empty(2, 0, dtype=torch.int64)
        # samples that have begun come first, so that results arrive steadily
        samples = self.undecided.nonzero().flatten()[: room + running]
        state = self.state[samples]
        ahead = (state <= _RUNNING).cumsum(1) - 1  # items before it that have not ended
        row, item = (state == _WAITING).nonzero(as_tuple=True)
        ahead = ahead[row, item].masked_fill((item >= self.items) != repeats, 2 * self.items)
        ahead, order = ahead.sort(stable=True)
        # an item counts if all before it fail; samples that succeed do so early, so little is wasted
        fails = 1 - self.succeeded / (self.ended + 1) if self.early_stop else 1.0
        fits = (ahead == 0) | (torch.arange(len(order)) < spare) | (fails**ahead >= 0.5)
        order = order[fits & (ahead < 2 * self.items)][:room]
        item, position = item[order], samples[row[order]]
        self.state[position, item] = _RUNNING
        self._count()
        return torch.stack([item, position])

    def end(self, rows: Rows) -> Int64[Tensor, " decided"]:
        """Note the outcomes of ended items; return the positions of the samples that are decided now."""
        success, samples = rows["success"], rows["position"].unique()
        self.ended += len(success)
        self.succeeded += int(success.sum())
        outcome = torch.where(success, _SUCCEEDED, torch.where(rows["near"], _NEAR, _FAILED))
        self.state[rows["position"], rows["item"]] = outcome.to(torch.int8)
        state = self.state[samples]
        won = state == _SUCCEEDED
        if self.early_stop:
            state[won.cumsum(1) > won.long()] = _FAILED  # behind a success
            self.last[samples] = torch.where(won.any(1), won.int().argmax(1), 2 * self.items)
        items, repeats = state.split(self.items, 1)
        robust = (items > _RUNNING).all(1) & ~won.any(1)
        repeats[robust[:, None] & (items == _NEAR)] = _WAITING
        items[robust[:, None] & (items == _NEAR)] = _FAILED
        self.state[samples] = state
        over = (state > _RUNNING).all(1)
        self.turn[samples] = torch.where(over, 2 * self.items, (state <= _RUNNING).int().argmax(1))
        self.undecided[samples] = ~over
        self._count()
        return samples[over]


class Lane:
    """The batch of one oracle: refilled from the schedule, advanced by the search, emptied of finished rows."""

    def __init__(self, oracle: Oracle, size: int, early_stop: bool, repeats: bool) -> None:
        self.oracle, self.size, self.early_stop, self.repeats = oracle, size, early_stop, repeats
        self.waiting = Rows()  # moved here from another lane
        self.batch, self.tried = Rows(), Rows()  # running; finished but not confirmed
        self.waited = 0  # steps since the first of the latter

    def __len__(self) -> int:
        return len(self.waiting) + len(self.batch) + len(self.tried)

    def next(self, schedule: Schedule, running: int) -> Int64[Tensor, "2 new"]:
        """Move waiting rows into the batch; return item and position of the rows that may start as well."""
        moved = self.waiting.take(slice(max(0, self.size - len(self.batch))))
        self.waiting = self.waiting.take(slice(len(moved), None))
        self.batch = Rows.stack([self.batch, moved])
        room = max(0, self.size - len(self.batch))
        # rows in place of padding are free on a CPU; on a GPU, rows now cost less than in a smaller batch later
        spare = -len(self.batch) % QUANTUM if self.oracle.device.type == "cpu" else room
        return schedule.next(self.repeats, room, spare, running)

    def start(self, rows: Rows, search: Search) -> None:
        """Add new rows to the batch, with the state that every search has."""
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        rows["t"], rows["best"] = torch.zeros_like(rows["label"]), rows["clean"].clone()
        rows.fill(-torch.inf, "loss")
        for name in ("found", "done"):
            rows[name] = torch.zeros_like(rows["label"], dtype=torch.bool)
        search.start(rows)
        self.batch = Rows.stack([self.batch, rows])

    def ended(self) -> Rows:
        """Remove and return the rows to confirm now; none while waiting for more, to share a pass, is cheaper."""
        if len(self.batch):
            over = self.batch["done"] | (self.batch["found"] & self.early_stop)
            self.tried = Rows.stack([self.tried, self.remove(over)])
        self.waited = self.waited + 1 if len(self.tried) else 0
        if len(self.batch) and len(self.tried) < min(QUANTUM, self.size) and self.waited < _PATIENCE:
            return Rows()
        ended, self.tried, self.waited = self.tried, Rows(), 0
        return ended

    def remove(self, mask: Tensor) -> Rows:
        """Take rows out of the batch and return them."""
        if not mask.any():
            return Rows()
        rows, self.batch = self.batch.take(mask), self.batch.take(~mask)
        return rows

    def drop(self, last: Tensor) -> None:
        """Drop rows whose item comes after the last that can count, given per sample."""
        last = last.to(self.oracle.device)
        self.waiting, self.batch, self.tried = (
            rows.take(rows["item"] <= last[rows["position"]]) if len(rows) else rows
            for rows in (self.waiting, self.batch, self.tried)
        )
