"""Run a search on every sample, in full batches, until every sample is decided.

Searches leave the batch as soon as they are decided, and are replaced. Since rows are independent and random draws are
keyed by sample, results depend neither on the batch size nor on the order of the samples. Searches in low precision
that fail within rounding error are repeated in float32 before the sample counts as robust.
"""

import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.attacks.engine import checks, scheduling
from antiphase.attacks.engine.oracle import Classifier, Oracle, attacked, checked, largest_batch, logits_of
from antiphase.attacks.engine.search import Labels, Rows, RunOptions, Search, read_options
from antiphase.attacks.engine.search_model import search_model
from antiphase.attacks.objectives import Classes, margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Points, Threat, row_norm
from antiphase.streams import key, sample_keys
from antiphase.terminal import status_bar

_ROWS = 128  # default batch size (dev/attack-engine.md)
_MOST_ROWS = 2**31  # torch cannot split by more than 64 bits
# A search in low precision is repeated in float32 (dev/low-precision.md) if the margin of its best example is at least
_ROUNDINGS = 2  # times minus the rounding error of its logits, and its distance is at most
_REACH = 1.02  # times ε
_TOGETHER = 20  # of them whose gradients are in memory at once
_COUNTS = ("forwards", "backwards")
_SETTLED = ("position", "item", "clean", "best", "prediction", "success", "near", "loss", "start_loss")


def run_search(
    model: Classifier,
    images: Tensor,
    labels: Labels,
    threat: Threat,
    search: Search,
    options: RunOptions,
    settings: Mapping[str, Any] | None = None,
) -> AttackResult:
    """Attack every sample; the arguments are those of an attack, such as :func:`~antiphase.attacks.pgd.pgd`.

    ``settings`` are the parameters of the attack, for the record; by default the fields of the search.
    """
    began = time.monotonic()
    if (run := read_options(options, search.name)).goal is not None:
        goal, clean = checks.check_goal(model, images, labels, search.targets, run)
        options = {**options, "goal": None, "context": goal}
        result = run_search(_Towards(model), images, torch.zeros_like(goal), threat, search, options, settings)
        after = logits_of(model, result.adversarial.to(images.device)).argmax(1)
        recorded = result.settings | {"goal": goal.tolist()}
        return replace(result, label=clean, clean_prediction=clean, prediction=after, settings=recorded)
    ids = (torch.arange(len(images)) if run.ids is None else run.ids).cpu()
    images = checks.check_inputs(images, threat, ids, run.context)
    if settings is None:
        names = [one.name for one in fields(cast(Any, search))]
        names = [name for name in names if name not in ("threat", "name", "mask", "loss")]
        settings = {name: getattr(search, name) for name in names}
    settings = {name: "custom" if callable(value) else value for name, value in settings.items()}
    title = run.progress if isinstance(run.progress, str) else search.name
    with attacked(model, "float32", run.compile, run.passes, images.device) as oracle:
        warnings = checks.inspect_model(oracle, images, run.context)
        oracle.search_in(*search_model(oracle.model, images, run.context, run.precision, oracle.device))
        work = _Work(oracle, images, labels, threat, search, run, ids)
        with status_bar(title, len(images), bool(run.progress)) as (show, _):
            while lane := work.next_lane():
                if len(lane.batch):  # none if all that is left waits to be confirmed
                    search.step(lane.batch, lane.oracle)
                work.collect()
                show(work.resolved, f"{work.broken:,} broken")  # no rate: what is decided early is broken
        warnings += checks.inspect_search(oracle, work.failed, work.stuck if threat.eps else 0)
    settings |= {"seed": run.seed, "early_stop": run.early_stop}
    settings |= {"precision": oracle.precision} if oracle.precision != "float32" else {}
    settings |= {"passes": run.passes} if run.passes > 1 else {}
    seconds = time.monotonic() - began
    return AttackResult(search.name, threat, settings, ids, **work.results, warnings=tuple(warnings), seconds=seconds)


class _Towards(nn.Module):
    """The largest logit of the classes that are not an image's goal, and the logit of its goal: predicted or not."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Points, goal: Classes) -> Float[Tensor, "batch 2"]:
        logits = checked(self.model(images), images)
        others = logits.scatter(1, goal[:, None], -torch.inf).amax(1)
        return torch.stack([others, logits.gather(1, goal[:, None]).squeeze(1)], 1)


class _Work:
    """The searches of all samples and their results so far."""

    def __init__(
        self, oracle: Oracle, images: Tensor, labels: Labels, threat: Threat, search: Search, run: Any, ids: Tensor
    ) -> None:
        self.images, self.ids, self.threat, self.search, self.run = images, ids, threat, search, run
        size = min(run.batch_size or largest_batch(images[0], oracle.device, _ROWS), _MOST_ROWS)
        logits = oracle.by_batches(images, run.context, size)
        count, classes = logits.shape
        clean = logits.argmax(1)
        label = clean if labels is None else labels.cpu().long()
        checks.check_classes("labels", label, classes)
        checks.check_targets(search.targets, classes)
        others = logits.scatter(1, label[:, None], -torch.inf).sort(dim=1, descending=True, stable=True)
        wrong = clean != label  # already: nothing to search for
        number = checks.ALL_TARGETS if search.targets == "malt" else search.targets or 0
        self.targets = others.indices[:, : max(1, min(number, classes - 1))].clone()
        self.items = self.targets.shape[1] * search.restarts
        self.keys = torch.tensor([key(run.seed, search.name, item) for item in range(self.items)])
        self.results: dict[str, Any] = {"label": label, "clean_prediction": clean, "prediction": clean.clone()}
        self.results |= {"success": wrong.clone(), "adversarial": images.cpu().clone()}
        self.results["distance"] = torch.zeros(count, dtype=images.dtype)
        self.results["forwards"] = torch.full((count,), oracle.passes)
        self.results["backwards"] = torch.zeros(count, dtype=torch.int64)
        self.loss = torch.full((count,), -torch.inf, dtype=images.dtype)
        self.schedule = scheduling.Schedule(~wrong, self.items, run.early_stop)
        self.main = scheduling.Lane(oracle, size, run.early_stop, repeats=False)
        self.exact = scheduling.Lane(oracle.in_float32(), size, run.early_stop, repeats=True)
        if search.targets == "malt":
            likely = others.indices[:, : min(checks.LIKELY, classes - 1)]
            for some in (~wrong).nonzero().flatten().split(size):
                self._choose_targets(some, likely[some])
        self.held = Rows()  # ended, but an earlier item has not
        self.resolved = self.broken = 0
        self.failed = self.stuck = 0  # items that failed, and those of them whose loss never rose
        self._resolve(wrong.nonzero().flatten())

    def _choose_targets(self, positions: Tensor, likely: Tensor) -> None:
        """Make the targets those whose boundaries are nearest if logits are linear; ``likely`` has a row of classes."""
        device, scores = self.exact.oracle.device, []
        rows = Rows(x=self.images[positions], label=self.results["label"][positions])
        rows |= {name: self.results[name][positions] for name in _COUNTS}
        rows |= {} if self.run.context is None else {"context": self.run.context[positions]}
        rows = Rows({name: tensor.to(device) for name, tensor in rows.items()})
        for classes in likely.to(device).T.split(_TOGETHER):
            losses = [partial(margin, labels=rows["label"], targets=target) for target in classes]
            values, _, gradients = self.exact.oracle.gradients(rows, rows["x"], losses)
            lengths = [row_norm(gradient, "l2").clamp_min(1e-12) for gradient in gradients]
            scores += [-value / length for value, length in zip(values, lengths, strict=True)]
        nearest = torch.stack(scores, 1).argsort(dim=1, stable=True)[:, : self.targets.shape[1]].cpu()
        self.targets[positions] = likely.gather(1, nearest)
        for name in _COUNTS:
            self.results[name][positions] = rows[name].cpu()

    def next_lane(self) -> scheduling.Lane | None:
        """Refill the fuller lane that has rows, and return it; None once every sample is decided."""
        if "exact" in self.main.batch:
            self.exact.waiting = Rows.stack([self.exact.waiting, self.main.remove(self.main.batch["exact"])])
        left = {lane: len(lane) + self.schedule.waiting[lane.repeats] for lane in (self.exact, self.main)}
        for lane in sorted(left, key=lambda lane: -min(left[lane], lane.size)):
            item, position = lane.next(self.schedule, len(self.exact) + len(self.main))
            if len(item):
                index, targets = item % self.items, self.targets.shape[1]
                rows = Rows(position=position, item=item, restart=index // targets)
                rows["key"] = sample_keys(self.keys[index], self.ids[position])
                rows |= {"clean": self.images[position], "label": self.results["label"][position]}
                rows["target"] = self.targets[position, index % targets]
                rows["eps"] = torch.full(item.shape, self.threat.eps, dtype=self.images.dtype)
                rows |= {name: torch.zeros_like(item) for name in _COUNTS}
                if self.run.context is not None:
                    rows["context"] = self.run.context[position]
                lane.start(rows, self.search)
            if len(lane):
                return lane
        return None

    def collect(self) -> None:
        """Confirm in float32 and record the searches that have ended."""
        for lane in (self.main, self.exact):
            if not len(tried := lane.ended()):
                continue
            logits = lane.oracle.verdict(tried["best"], tried.get("context"))
            # failed searches are checked too: in low precision they may have failed by rounding
            tried["forwards"] = tried["forwards"] + lane.oracle.passes
            prediction = logits.argmax(1)
            success = (prediction != tried["label"]) & self.threat.allows(tried["best"], tried["clean"], tried["eps"])
            near = torch.zeros_like(success)
            verdict = Rows(tried, prediction=prediction, success=success, near=near)
            failed = tried["done"] & ~success & (tried["item"] < self.items)
            if self.main.oracle.precision != "float32" and failed.any():  # perhaps by rounding
                rows, exact = tried.take(failed), logits[failed]
                rough = self.main.oracle.logits(rows["best"], rows.get("context"))
                close = margin(exact, rows["label"]) >= -_ROUNDINGS * (rough - exact).abs().amax(1)
                reach = _REACH * rows["eps"] + self.threat.slack(rows["best"])
                near[failed] = close & (self.threat.distance(rows["best"], rows["clean"]) <= reach)
                verdict["forwards"] = tried["forwards"] + lane.oracle.passes * failed
            over = tried["done"] | success
            if not over.all():  # adversarial only in the precision of the search
                rows = tried.take(~over)
                rows["found"] = torch.zeros_like(rows["found"])
                lane.batch = Rows.stack([lane.batch, rows])
            if over.any():
                self._settle(verdict.take(over))

    def _settle(self, rows: Rows) -> None:
        """Take finished rows, and record those that count now, in the order of each sample's items."""
        rows = Rows({name: rows[name].cpu() for name in (*_SETTLED, *_COUNTS) if name in rows})
        decided = self.schedule.end(rows)
        outcomes = Rows.stack([self.held, rows])
        outcomes = outcomes.take(outcomes["item"] <= self.schedule.last[outcomes["position"]])
        counts = outcomes["item"] < self.schedule.turn[outcomes["position"]]
        self.held = outcomes.take(~counts)
        self._record(outcomes.take(counts))
        for lane in (self.main, self.exact):
            lane.drop(self.schedule.last)
        self._resolve(decided)

    def _record(self, rows: Rows) -> None:
        """Count passes; keep of each sample the first of the best rows: successes, then those of the highest loss."""
        position, results, loss, success = rows["position"], self.results, rows["loss"], rows["success"]
        for name in _COUNTS:
            results[name].index_add_(0, position, rows[name])
        if "start_loss" in rows:
            self.failed += int((~success).sum())
            self.stuck += int((~success & (loss <= rows["start_loss"])).sum())
        order = torch.from_numpy(np.lexsort((rows["item"], -loss, ~success, position)))
        first = torch.ones_like(success)
        first[1:] = position[order][1:] != position[order][:-1]
        rows = rows.take(order[first])
        position, loss, success = rows["position"], rows["loss"], rows["success"]
        was = results["success"][position]
        better = (success & ~was) | ((loss > self.loss[position]) & (success >= was))
        rows, position = rows.take(better), position[better]
        self.loss[position] = rows["loss"]
        distance = self.threat.distance(rows["best"], rows["clean"])
        new = {"adversarial": rows["best"], "prediction": rows["prediction"], "distance": distance}
        for name, values in (new | {"success": results["success"][position] | rows["success"]}).items():
            results[name][position] = values

    def _resolve(self, positions: Tensor) -> None:
        self.resolved += len(positions)
        self.broken += int(self.results["success"][positions].sum())
        if self.run.on_finished is not None and len(positions):
            self.run.on_finished(positions, self.results)
