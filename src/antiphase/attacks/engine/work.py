"""Run all searches of an attack in full batches until every sample is decided.

Searches start from a schedule, leave the batch as soon as they are decided, and are replaced. The items of a sample
(targets, restarts) count in order until one succeeds, or all of them with ``early_stop=False``. Rows that would be
empty run items early; their passes count only if the items do. Since rows are independent and random draws are keyed by
sample, results depend neither on the batch size nor on the order of the samples.

Searches in low precision that fail within rounding error are repeated in float32, in a separate batch, before the
sample counts as robust.
"""

from collections import Counter

import torch
from torch import Tensor

from antiphase.attacks.engine.inputs import check_targets
from antiphase.attacks.engine.lane import Lane
from antiphase.attacks.engine.options import Run
from antiphase.attacks.engine.oracle import Oracle, largest_batch
from antiphase.attacks.engine.rows import Rows
from antiphase.attacks.engine.search import Search
from antiphase.attacks.objectives import margin
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys

_ROWS = 128  # default batch size (dev/attack-engine.md)
_MOST_ROWS = 2**31  # torch cannot split by more than 64 bits
# A search in low precision is repeated in float32 (dev/low-precision.md) if the margin of its best example is at least
_ROUNDINGS = 2  # times minus the rounding error of its logits, and its distance is at most
_REACH = 1.02  # times ε


class Work:
    """The searches of all samples and their results so far."""

    def __init__(
        self,
        oracle: Oracle,
        images: Tensor,
        labels: Tensor | None,
        threat: Threat,
        budgets: Tensor,
        search: Search,
        options: Run,
        ids: Tensor,
    ) -> None:
        self.images, self.ids, self.threat, self.search, self.options = images, ids, threat, search, options
        self.budgets = budgets.cpu().to(images.dtype)
        size = largest_batch(images[0], oracle.device, _ROWS)
        self.main, self.exact = (
            Lane(each, min(options.batch_size or size, _MOST_ROWS), options.early_stop)
            for each in (oracle, oracle.in_float32())
        )
        count = len(images)
        self.context = options.context
        logits = torch.cat(
            [self._verdict(oracle, batch) for batch in torch.arange(count).split(self.main.size)]
        )
        if logits.shape[1] < 2:
            raise UserError(
                f"the model returned logits of shape {tuple(logits.shape)}: expected at least two classes"
            )
        clean = logits.argmax(1)
        label = clean if labels is None else labels.cpu().long()
        if int(label.min()) < 0 or int(label.max()) >= logits.shape[1]:
            raise UserError(
                f"labels from {int(label.min())} to {int(label.max())}: the model tells classes 0 to "
                f"{logits.shape[1] - 1} apart"
            )
        others = logits.scatter(1, label[:, None], -torch.inf)
        check_targets(search.targets, logits.shape[1])
        wanted = max(1, min(search.targets, logits.shape[1] - 1))
        self.targets = others.sort(dim=1, descending=True, stable=True).indices[:, :wanted].clone()
        # as many again of a sample may be tried once more, in float32
        self.items = items = wanted * search.restarts
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
        robust = (~self.results["success"]).nonzero().flatten()
        for position in robust.tolist():
            self.main.schedule.add(position, range(items))
        self.ahead: dict[tuple[int, int], Rows] = {}  # ended ahead of their turn
        self.near: dict[int, list[int]] = {}  # of samples at work: items that low precision failed by a hair
        self.resolved = self.broken = count - len(robust)
        self.failed = self.stuck = 0  # items that failed, and those of them whose loss never rose
        if self.resolved:
            self._report(self.results["success"].nonzero().flatten())

    def _verdict(self, oracle: Oracle, at: Tensor) -> Tensor:
        """Return the logits of the clean images at some positions."""
        context = None if self.context is None else self.context[at].to(oracle.device)
        return oracle.verdict(self.images[at].to(oracle.device), context).cpu()

    def next_lane(self) -> Lane | None:
        """Refill the fuller lane and return it; None once every sample is decided."""
        self.exact.waiting = self.exact.waiting.join(self.main.leave())
        lane = max(self.exact, self.main, key=lambda lane: lane.filled)
        if not lane.filled:
            return None
        self._refill(lane)
        return lane

    def collect(self, stepped: Lane) -> None:
        """Confirm and record the searches that have ended, after a step of one lane."""
        stepped.sort_out()
        for lane in (self.main, self.exact):
            tried = lane.ended()
            if len(tried):
                self._confirm(tried, lane)

    def _confirm(self, tried: Rows, lane: Lane) -> None:
        """Confirm the result of finished searches in float32."""
        tried["forwards"] = tried["forwards"] + lane.oracle.passes
        # failed searches are checked too: in low precision they may have failed by rounding
        verdict = Rows(tried)
        logits = lane.oracle.verdict(tried["best"], tried.get("context"))
        verdict["prediction"] = logits.argmax(1)
        allowed = self.threat.allows(tried["best"], tried["clean"], tried["eps"])
        verdict["success"] = (verdict["prediction"] != tried["label"]) & allowed
        verdict["near"] = torch.zeros_like(verdict["success"])
        failed = tried["done"] & ~verdict["success"] & (tried["item"] < self.items)
        rounded = self.main.oracle.precision != "float32" and not self.search.decides_in_float32
        if rounded and failed.any():
            verdict["near"][failed] = self._near(tried.take(failed), logits[failed])
            verdict["forwards"] = verdict["forwards"] + lane.oracle.passes * failed
        over = tried["done"] | verdict["success"]
        if not over.all():  # adversarial only in the precision of the search
            lane.resume(tried.take(~over))
        self._settle(verdict.take(over))
        for lane in (self.main, self.exact):
            lane.drop(self.last)

    def _near(self, rows: Rows, exact: Tensor) -> Tensor:
        """Return whether each failed search may have failed by rounding."""
        rounding = (self.main.oracle.logits(rows["best"], rows.get("context")) - exact).abs().amax(1)
        close = margin(exact, rows["label"]) >= -_ROUNDINGS * rounding
        reach = _REACH * rows["eps"] + self.threat.slack(rows["best"])
        return close & (self.threat.distance(rows["best"], rows["clean"]) <= reach)

    def _refill(self, lane: Lane) -> None:
        chosen = lane.next()
        if not chosen:
            return
        item, position = torch.tensor(chosen).unbind(1)
        which, targets = item % self.items, self.targets.shape[1]
        clean, count = self.images[position], len(chosen)
        rows = Rows(
            position=position,
            item=item,
            key=sample_keys(self.keys[which], self.ids[position]),
            clean=clean,
            label=self.results["label"][position],
            restart=which // targets,
            target=self.targets[position, which % targets],
            eps=self.budgets[position],
            forwards=torch.zeros(count, dtype=torch.int64),
            backwards=torch.zeros(count, dtype=torch.int64),
        )
        if self.context is not None:
            rows["context"] = self.context[position]
        lane.start(rows, self.search)

    def _settle(self, rows: Rows) -> None:
        """Record finished rows, those of each sample in the order of its items."""
        rows = Rows({name: rows[name].cpu() for name in _SETTLED if name in rows})
        waves: list[list[Rows]] = []  # rows to record at once: at most one per sample
        depth: Counter[int] = Counter()
        ended: list[int] = []
        outcomes = zip(
            rows["position"].tolist(), rows["item"].tolist(), rows["success"].tolist(), strict=True
        )
        for index, (position, item, success) in enumerate(outcomes):
            self.ahead[position, item] = rows.take(torch.tensor([index]))
            lane = self.main if item < self.items else self.exact
            counted, over = lane.schedule.end(position, item, success)
            for turn in counted:
                row = self.ahead.pop((position, turn))
                waves += [[]] if depth[position] == len(waves) else []
                waves[depth[position]].append(row)
                depth[position] += 1
                if row["near"]:
                    self.near.setdefault(position, []).append(turn)
            if success and self.options.early_stop:
                self.last[position] = min(item, int(self.last[position]))
            if over:
                self.last[position] = -1
                ended.append(position)
        self.ahead = {known: held for known, held in self.ahead.items() if self.last[known[0]] >= 0}
        for wave in waves:
            self._record(Rows.stack(wave))
        decided = [position for position in ended if not self._tried_again(position)]
        self.resolved += len(decided)
        self.broken += int(self.results["success"][decided].sum())
        self._report(torch.tensor(decided, dtype=torch.int64))

    def _tried_again(self, position: int) -> bool:
        """Schedule float32 repeats of the near failures of a robust sample; return whether there are any."""
        again = [item + self.items for item in self.near.pop(position, [])]
        if not again or self.results["success"][position]:
            return False
        self.exact.schedule.add(position, again)
        self.last[position] = again[-1]
        return True

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
    "position",
    "item",
    "clean",
    "best",
    "prediction",
    "success",
    "near",
    "loss",
    "start_loss",
    "forwards",
    "backwards",
)
