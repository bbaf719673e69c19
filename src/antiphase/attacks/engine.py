"""The engine: keeps a batch full of samples that are still standing and gives each its verdict.

An attack is a :class:`Search`: a state for each row and a step that asks the model once about all rows.
The engine starts rows from a queue, drops a row as soon as its verdict is known, and refills the batch.
A sample may have several items (targets, restarts): they are tried in their order until one succeeds, or
all of them where the best is wanted (``early_stop=False``).
Because rows never look at each other and random draws are keyed by sample, a verdict depends neither on
the batch size nor on the order of the samples.
"""

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from antiphase.attacks.options import Run, RunOptions
from antiphase.attacks.oracle import Classifier, Oracle, attacked
from antiphase.attacks.result import AttackResult
from antiphase.attacks.rows import Rows
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys

DEFAULT_BATCH_SIZE = 64


class Search(Protocol):
    """One attack's search for an adversarial example, many rows at a time.

    The engine hands over rows with ``clean`` (the image), ``label`` (the attacked class), ``eps`` (the
    budget), ``item`` (which try of the sample: every target of the first restart, then the second),
    ``restart``, ``target`` (the class that ranked next after the label on the clean image, then the one
    after it, …), ``key`` (the random stream of seed, sample, attack and item), ``forwards`` and
    ``backwards`` (passes so far).

    Attributes:
        name: of the attack; part of the key of its random streams.
        targets: how many other classes are tried one by one; 0 for an untargeted attack. A model with
            fewer classes has fewer targets.
        restarts: how many tries a sample has (with each target).
    """

    name: str
    targets: int
    restarts: int

    def start(self, rows: Rows) -> None:
        """Add the search's own state: at least ``best`` (image), ``loss`` (of it), ``found`` and ``done``."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Ask the model once and move every row.

        Sets ``found`` where ``best`` is adversarial, and ``done`` where the budget is spent. Rows must
        not look at each other.
        """


def run(
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    threat: Threat,
    search: Search,
    settings: dict[str, Any],
    options: RunOptions,
) -> AttackResult:
    """Attack every sample and return the verdicts.

    Args:
        model: a classifier of images within the threat's bounds.
        images: ``(samples, C, H, W)``.
        labels: the classes to attack; None attacks the clean predictions.
        threat: what is allowed.
        search: the attack.
        settings: its parameters, for the record.
        options: seed, batch size and the like.

    Raises:
        UserError: for images outside the bounds, labels or ids that do not fit, or a model whose logits
            are not finite.
    """
    began = time.monotonic()
    chosen = Run(**options)
    ids = torch.arange(len(images)) if chosen.ids is None else chosen.ids.cpu()
    _check(images, labels, threat, ids)
    with attacked(model) as oracle:
        queue = _Queue(oracle, images, labels, threat, search, chosen, ids)
        with _bar(search.name, len(images), chosen.progress) as show:
            shown = -1
            while queue.advance():
                if queue.resolved != shown:
                    shown = queue.resolved
                    show(shown, queue.fallen)
    settings = settings | {"seed": chosen.seed, "early_stop": chosen.early_stop}
    return AttackResult(search.name, threat, settings, ids, **queue.results, seconds=time.monotonic() - began)


class _Queue:
    """Samples waiting, samples in the batch, and what is known of each."""

    def __init__(
        self, oracle: Oracle, images: Tensor, labels: Tensor | None, threat: Threat, search: Search,
        options: Run, ids: Tensor,
    ) -> None:  # fmt: skip
        self.oracle, self.images, self.threat, self.search = oracle, images, threat, search
        self.options, self.ids = options, ids
        self.size = options.batch_size or DEFAULT_BATCH_SIZE
        count = len(images)
        logits = torch.cat(
            [oracle.logits(batch.to(oracle.device)).cpu() for batch in images.split(self.size)]
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
        self.items = wanted * search.restarts
        self.results = {
            "label": label,
            "clean_prediction": clean,
            "prediction": clean.clone(),
            "success": clean != label,  # already wrong: nothing to search for
            "adversarial": images.detach().cpu().clone(),
            "distance": torch.zeros(count, dtype=images.dtype),
            "forwards": torch.ones(count, dtype=torch.int64),
            "backwards": torch.zeros(count, dtype=torch.int64),
        }
        self.loss = torch.full((count,), -torch.inf, dtype=images.dtype)
        self.keys = torch.tensor([key(options.seed, search.name, item) for item in range(self.items)])
        self.batch = Rows()
        standing = (~self.results["success"]).nonzero().flatten().tolist()
        self.waiting = [(0, position) for position in standing]  # a heap: every first item before any second
        self.resolved = count - len(standing)
        self.fallen = self.resolved
        if self.resolved:
            self._report(self.results["success"].nonzero().flatten())

    def advance(self) -> bool:
        """Refill the batch, take one step, settle what is decided; return whether anything was left to do."""
        self._refill()
        if not len(self.batch):
            return False
        self.search.step(self.batch, self.oracle)
        ready = self.batch["done"] | (self.batch["found"] & self.options.early_stop)
        if ready.any():
            self.batch["forwards"] = self.batch["forwards"] + ready  # the confirmation
            confirmed, prediction = self._verify(self.batch.take(ready))
            ended = self.batch["done"].clone()
            ended[ready] |= confirmed
            self.batch["found"][ready] = confirmed
            self._settle(self.batch.take(ended), confirmed[ended[ready]], prediction[ended[ready]])
            self.batch = self.batch.take(~ended)
        return True

    def _refill(self) -> None:
        room = min(self.size - len(self.batch), len(self.waiting))
        if room < 1:
            return
        item, position = torch.tensor([heapq.heappop(self.waiting) for _ in range(room)]).unbind(1)
        clean = self.images[position]
        rows = Rows(
            position=position, item=item, key=sample_keys(self.keys[item], self.ids[position]), clean=clean,
            label=self.results["label"][position],
            restart=item // self.targets.shape[1], target=self.targets[position, item % self.targets.shape[1]],
            eps=torch.full((room,), self.threat.eps, dtype=clean.dtype),
            forwards=torch.zeros(room, dtype=torch.int64), backwards=torch.zeros(room, dtype=torch.int64),
        )  # fmt: skip
        rows = Rows({name: tensor.to(self.oracle.device) for name, tensor in rows.items()})
        self.search.start(rows)
        self.batch = self.batch.join(rows)

    def _verify(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Ask the model again about the candidates alone: (adversarial and allowed, prediction)."""
        prediction = self.oracle.predict(rows["best"])
        allowed = self.threat.allows(rows["best"], rows["clean"], rows["eps"])
        return (prediction != rows["label"]) & allowed, prediction

    def _settle(self, rows: Rows, success: Tensor, prediction: Tensor) -> None:
        """Record the rows that ended; a sample whose item failed goes back for its next item."""
        rows = Rows({name: rows[name].cpu() for name in (*_SETTLED, "clean")})
        success, prediction = success.cpu(), prediction.cpu()
        position, results = rows["position"], self.results
        was = results["success"][position]
        results["forwards"][position] += rows["forwards"]
        results["backwards"][position] += rows["backwards"]
        better = (success & ~was) | ((rows["loss"] > self.loss[position]) & (success >= was))
        at = position[better]
        self.loss[at] = rows["loss"][better]
        results["adversarial"][at] = rows["best"][better]
        results["prediction"][at] = prediction[better]
        results["distance"][at] = self.threat.distance(rows["best"], rows["clean"])[better]
        results["success"][position] = was | success
        again = (rows["item"] + 1 < self.items) & ~(success & self.options.early_stop)
        for where, item in zip(position[again].tolist(), rows["item"][again].tolist(), strict=True):
            heapq.heappush(self.waiting, (item + 1, where))
        self.resolved += int((~again).sum())
        self.fallen += int(results["success"][position[~again]].sum())
        self._report(position[~again])

    def _report(self, positions: Tensor) -> None:
        if self.options.on_finished is not None and len(positions):
            self.options.on_finished(positions, self.results)


_SETTLED = ("position", "item", "loss", "best", "forwards", "backwards")


@contextlib.contextmanager
def _bar(name: str, total: int, progress: bool | str) -> Iterator[Callable[[int, int], None]]:
    """Show samples decided and the success rate so far, on stderr."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("ASR {task.fields[asr]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not progress, transient=True) as bar:
        task = bar.add_task(progress if isinstance(progress, str) else name, total=total, asr="")

        def show(resolved: int, fallen: int) -> None:
            bar.update(task, completed=resolved, asr=f"{fallen / max(1, resolved):.3f}")

        yield show


def _check(images: Tensor, labels: Tensor | None, threat: Threat, ids: Tensor) -> None:
    if images.ndim < 2 or not len(images) or not images.is_floating_point():
        raise UserError(
            f"images of shape {tuple(images.shape)} and {images.dtype}: expected floats (samples, C, H, W)"
        )
    low, high = float(images.min()), float(images.max())
    if not (threat.bounds[0] <= low and high <= threat.bounds[1]):  # also catches NaN
        raise UserError(
            f"images have values from {low:g} to {high:g}: expected {threat.bounds[0]:g} to {threat.bounds[1]:g}; "
            "scale them, and let the model normalise"
        )
    if labels is not None and labels.shape != (len(images),):
        raise UserError(
            f"labels of shape {tuple(labels.shape)}: expected one class a sample, ({len(images)},)"
        )
    if ids.shape != (len(images),) or ids.dtype != torch.int64:
        raise UserError(f"ids of shape {tuple(ids.shape)} and {ids.dtype}: expected one int64 a sample")
