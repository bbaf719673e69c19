"""Samples at work: keeps a batch full of those still standing until each has its verdict.

The rows of a search start from a schedule, a row leaves as soon as its verdict is known, and the batch is
refilled. A sample may have several items (targets, restarts): they count in their order until one succeeds, or all
of them where the best is wanted (``early_stop=False``). Where rows would stand empty, items run ahead of
their turn; what they cost counts only if their turn comes.
Because rows never look at each other and random draws are keyed by sample, a verdict depends neither on
the batch size nor on the order of the samples.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from antiphase.attacks.options import Run
from antiphase.attacks.oracle import QUANTUM, Oracle
from antiphase.attacks.rows import Rows
from antiphase.attacks.schedule import Schedule
from antiphase.attacks.search import Search
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys

_ROWS = 128  # at once where nothing is said
_ROWS_OF_FLOAT32_ON_CPU = 64  # where more are no faster (dev/LOG.md)
_PATIENCE = 20  # steps that an ended search waits for others to be confirmed with
_PIXELS = 2**21  # at once, which keeps a ViT-B at 224×224 to about 2 GB


class Work:
    """Samples waiting, samples in the batch, and what is known of each."""

    def __init__(
        self, oracle: Oracle, images: Tensor, labels: Tensor | None, threat: Threat, search: Search,
        options: Run, ids: Tensor,
    ) -> None:  # fmt: skip
        self.oracle, self.images, self.threat, self.search = oracle, images, threat, search
        self.options, self.ids = options, ids
        self.size = options.batch_size or _default_size(oracle.device, options.precision, images)
        self.together = min(QUANTUM, self.size)  # rows that are confirmed in one pass, or a multiple
        count = len(images)
        logits = torch.cat(
            [oracle.verdict(batch.to(oracle.device)).cpu() for batch in images.split(self.size)]
        )
        clean = logits.argmax(1)
        label = clean if labels is None else labels.cpu().long()
        if int(label.min()) < 0 or int(label.max()) >= logits.shape[1]:
            raise UserError(
                f"labels from {int(label.min())} to {int(label.max())}: the model tells classes 0 to "
                f"{logits.shape[1] - 1} apart"
            )
        others = logits.scatter(1, label[:, None], -torch.inf)
        wanted = max(1, min(search.targets, logits.shape[1] - 1))
        self.targets = others.sort(dim=1, descending=True, stable=True).indices[:, :wanted].clone()
        items = wanted * search.restarts
        self.results = {
            "label": label,
            "clean_prediction": clean,
            "prediction": clean.clone(),
            "success": clean != label,  # already wrong: nothing to search for
            "adversarial": images.cpu().clone(),
            "distance": torch.zeros(count, dtype=images.dtype),
            "forwards": torch.full((count,), oracle.passes),
            "backwards": torch.zeros(count, dtype=torch.int64),
        }
        self.loss = torch.full((count,), -torch.inf, dtype=images.dtype)
        self.last = torch.full((count,), items - 1)  # no later item of a sample can count
        self.keys = torch.tensor([key(options.seed, search.name, item) for item in range(items)])
        self.batch, self.tried = Rows(), Rows()  # at work; ended and not yet confirmed
        self.waited = 0  # steps since the first of those
        standing = (~self.results["success"]).nonzero().flatten()
        self.schedule = Schedule(standing.tolist(), items, options.early_stop)
        self.ahead: dict[tuple[int, int], Rows] = {}  # ended ahead of their turn
        self.resolved = self.fallen = count - len(standing)
        self.failed = self.stuck = 0  # items that failed, and those of them whose loss never rose
        if self.resolved:
            self._report(self.results["success"].nonzero().flatten())

    def advance(self) -> bool:
        """Refill the batch, take one step, settle what is decided; return whether anything was left to do."""
        self._refill()
        if not len(self.batch) and not len(self.tried):
            return False
        if len(self.batch):
            self.search.step(self.batch, self.oracle)
            ready = self.batch["done"] | (self.batch["found"] & self.options.early_stop)
            if ready.any():
                self.tried = self.tried.join(self.batch.take(ready))
                self.batch = self.batch.take(~ready)
        self.waited = self.waited + 1 if len(self.tried) else 0
        idle = not len(self.batch) and not self.schedule
        if len(self.tried) >= self.together or self.waited >= _PATIENCE or (idle and len(self.tried)):
            self._confirm()
        return True

    def _confirm(self) -> None:
        """Ask the model again about rows whose search has ended, in float32, no more at once than search at once."""
        count = len(self.tried)
        tried = self.tried.take(slice(min(count - count % self.together or count, self.size)))
        self.tried, self.waited = self.tried.take(slice(len(tried), None)), 0
        tried["forwards"] = tried["forwards"] + self.oracle.passes
        # a search in low precision may have failed by a hair: what is done is asked again in any case
        verdict = Rows(tried)
        verdict["prediction"] = self.oracle.predict(tried["best"])
        allowed = self.threat.allows(tried["best"], tried["clean"], tried["eps"])
        verdict["success"] = (verdict["prediction"] != tried["label"]) & allowed
        over = tried["done"] | verdict["success"]
        if not over.all():  # adversarial in the search's precision alone
            goes_on = tried.take(~over)
            goes_on["found"] = torch.zeros_like(goes_on["found"])
            self.batch = self.batch.join(goes_on)
        self._settle(verdict.take(over))
        last = self.last.to(self.oracle.device)
        for name in ("batch", "tried"):
            rows: Rows = getattr(self, name)
            if len(rows):
                setattr(self, name, rows.take(rows["item"] <= last[rows["position"]]))

    def _refill(self) -> None:
        room = self.size - len(self.batch)
        if room < 1:
            return
        # rows that would only be padding cost nothing on a CPU, where others would
        spare = -len(self.batch) % QUANTUM if self.oracle.device.type == "cpu" else room
        chosen = self.schedule.next(room, min(spare, room))
        if not chosen:
            return
        item, position = torch.tensor(chosen).unbind(1)
        clean, count = self.images[position], len(chosen)
        rows = Rows(
            position=position, item=item, key=sample_keys(self.keys[item], self.ids[position]), clean=clean,
            label=self.results["label"][position],
            restart=item // self.targets.shape[1], target=self.targets[position, item % self.targets.shape[1]],
            eps=torch.full((count,), self.threat.eps, dtype=clean.dtype),
            forwards=torch.zeros(count, dtype=torch.int64), backwards=torch.zeros(count, dtype=torch.int64),
        )  # fmt: skip
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        self.search.start(rows)
        self.batch = self.batch.join(rows)

    def _settle(self, rows: Rows) -> None:
        """Take note of the rows that ended, each sample's in the order of its items."""
        rows = Rows({name: rows[name].cpu() for name in _SETTLED if name in rows})
        waves: list[list[Rows]] = []  # of rows that may be recorded at once: one a sample
        depth: Counter[int] = Counter()
        decided: list[int] = []
        outcomes = zip(
            rows["position"].tolist(), rows["item"].tolist(), rows["success"].tolist(), strict=True
        )
        for index, (position, item, success) in enumerate(outcomes):
            self.ahead[position, item] = rows.take(torch.tensor([index]))
            counted, over = self.schedule.end(position, item, success)
            for turn in counted:
                waves += [[]] if depth[position] == len(waves) else []
                waves[depth[position]].append(self.ahead.pop((position, turn)))
                depth[position] += 1
            if success and self.options.early_stop:
                self.last[position] = min(item, int(self.last[position]))
            if over:
                self.last[position] = -1
                decided.append(position)
        self.ahead = {known: held for known, held in self.ahead.items() if self.last[known[0]] >= 0}
        for wave in waves:
            self._record(Rows.stack(wave))
        self.resolved += len(decided)
        self.fallen += int(self.results["success"][decided].sum())
        self._report(torch.tensor(decided, dtype=torch.int64))

    def _record(self, rows: Rows) -> None:
        position, results, success = rows["position"], self.results, rows["success"]
        was = results["success"][position]
        results["forwards"][position] += rows["forwards"]
        results["backwards"][position] += rows["backwards"]
        better = (success & ~was) | ((rows["loss"] > self.loss[position]) & (success >= was))
        at = position[better]
        self.loss[at] = rows["loss"][better]
        results["adversarial"][at] = rows["best"][better]
        results["prediction"][at] = rows["prediction"][better]
        results["distance"][at] = self.threat.distance(rows["best"], rows["clean"])[better]
        results["success"][position] = was | success
        if "start_loss" in rows:
            self.failed += int((~success).sum())
            self.stuck += int((~success & (rows["loss"] <= rows["start_loss"])).sum())

    def _report(self, positions: Tensor) -> None:
        if self.options.on_finished is not None and len(positions):
            self.options.on_finished(positions, self.results)


_SETTLED = (
    "position", "item", "clean", "best", "prediction", "success", "loss", "start_loss", "forwards", "backwards",
)  # fmt: skip


def _default_size(device: torch.device, precision: str, images: Tensor) -> int:
    rows = _ROWS_OF_FLOAT32_ON_CPU if device.type == "cpu" and precision == "float32" else _ROWS
    return max(QUANTUM, min(rows, _PIXELS // images[0].numel()))
