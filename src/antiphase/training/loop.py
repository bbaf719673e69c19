"""The one training loop: steps, learning rate, log, checkpoints, and exact resume after a kill."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.files import replacing, write_text
from antiphase.models import checkpoints

STATE_FILE = "state.safetensors"
METRICS_FILE = "metrics.jsonl"
_CHECK_EVERY_STEPS = 50  # reading the loss off a GPU waits for it
_CHECK_EVERY_SECONDS = 2.0


@dataclass(frozen=True)
class Task:
    """What the loop runs.

    Attributes:
        model: the model as prepared by the accelerator.
        optimizer: the optimizer as prepared by the accelerator.
        identity: digest of everything that affects the weights; a state of another identity is refused.
        epochs: number of epochs.
        steps_per_epoch: number of steps in each.
        learning_rate: from the step, counted from 0, to the learning rate.
        backward: for (epoch, step within it), adds the gradient of the batch's loss to the parameters' and
            returns (this process's part of the loss, without a graph; images in the whole batch). The
            parts' mean over the processes is the loss. Everything random in it is keyed by the two numbers.
        evaluate: what to log at the end of an epoch.
        after_step: what is done to the parameters when the optimizer has moved them.
        note: what a watcher is told beside the loss, while an epoch runs.
        track: sends numbers and the step they belong to to experiment trackers.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    identity: str
    epochs: int
    steps_per_epoch: int
    learning_rate: Callable[[int], float]
    backward: Callable[[int, int], tuple[Tensor, int]]
    evaluate: Callable[[], dict[str, Any]]
    after_step: Callable[[], None] = lambda: None
    note: Callable[[], str] = lambda: ""
    track: Callable[[dict[str, Any], int], None] = lambda numbers, step: None


@dataclass
class _Standing:
    """Where a run stands; saved with the weights."""

    step: int = 0
    loss_sum: float = 0.0  # over the epoch so far
    metrics: list[dict[str, Any]] = field(default_factory=list)


def run(task: Task, out: Path, accelerator: Accelerator, *, progress: bool = True) -> list[dict[str, Any]]:
    """Train to the end, going on from ``out``'s state file where there is one, and return the log.

    The weights after a resumed run equal those of an uninterrupted one on the same machine, bit for bit.

    Raises:
        UserError: if the loss is not finite (the last state is kept), or the state is of another run.
    """
    path = out / STATE_FILE
    standing = _load(task, path) if path.exists() else _Standing()
    _check_together(standing, path, accelerator)
    saver = _Saver(task, path, accelerator)
    shown = progress and accelerator.is_main_process
    columns = (
        TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        total = task.epochs * task.steps_per_epoch
        line = bar.add_task("", total=total, completed=standing.step, epoch="", note="")
        for epoch in range(standing.step // task.steps_per_epoch, task.epochs):
            bar.update(line, epoch=f"{epoch + 1}/{task.epochs}")
            losses: list[Tensor] = []
            images, began = 0, time.monotonic()
            looked = began
            for within in range(standing.step % task.steps_per_epoch, task.steps_per_epoch):
                loss, count = _step(task, epoch, within)
                losses.append(loss)
                images += count
                standing.step += 1
                bar.update(line, completed=standing.step)
                # processes must look together, so by the step; one alone may look by the clock
                due = accelerator.num_processes == 1 and time.monotonic() > looked + _CHECK_EVERY_SECONDS
                if due or within + 1 == task.steps_per_epoch or len(losses) == _CHECK_EVERY_STEPS:
                    standing.loss_sum = _finite_sum(standing.loss_sum, losses, standing.step, accelerator)
                    losses.clear()
                    looked = time.monotonic()
                    mean, speed = standing.loss_sum / (within + 1), images / (time.monotonic() - began)
                    bar.update(line, note=f"loss {mean:.4f} · {speed:.0f} images/s{task.note()}")
                    rate = task.learning_rate(standing.step - 1)
                    numbers = {"loss": mean, "learning_rate": rate, "images_per_second": speed}
                    task.track(numbers, standing.step)
                    if within + 1 < task.steps_per_epoch:
                        saver.save_if_due(standing)
            task.model.eval()
            row = {"epoch": epoch + 1, "loss": mean, "learning_rate": task.learning_rate(standing.step - 1)}
            standing.metrics.append({**row, **task.evaluate(), "images_per_second": round(speed, 1)})
            task.track(standing.metrics[-1], standing.step)
            standing.loss_sum = 0.0
            if accelerator.is_main_process:
                write_text(out / METRICS_FILE, "".join(json.dumps(r) + "\n" for r in standing.metrics))
            if shown:
                bar.console.print(_describe(standing.metrics[-1], task.epochs), highlight=False)
            saver.save_if_due(standing, last=epoch + 1 == task.epochs)
    return standing.metrics


def _check_together(standing: _Standing, path: Path, accelerator: Accelerator) -> None:
    """Refuse to go on where the processes have not all read the same state."""
    if accelerator.num_processes == 1:
        return
    steps: Any = accelerator.gather(torch.tensor([standing.step], device=accelerator.device))
    if len(set(steps.tolist())) > 1:
        raise UserError(
            f"{path}: the processes go on from steps {steps.tolist()}; expected a folder that all of them see"
        )


def _step(task: Task, epoch: int, within: int) -> tuple[Tensor, int]:
    task.model.train()
    for group in task.optimizer.param_groups:
        group["lr"] = task.learning_rate(epoch * task.steps_per_epoch + within)
    task.optimizer.zero_grad()
    loss, images = task.backward(epoch, within)
    task.optimizer.step()
    task.after_step()
    return loss, images


def _finite_sum(before: float, losses: list[Tensor], step: int, accelerator: Accelerator) -> float:
    """Add the steps' losses one by one, so that it does not matter how many are read at a time."""
    each: Any = accelerator.reduce(torch.stack(losses).double(), "mean")  # over the processes
    total = sum(each.tolist(), before)
    if not math.isfinite(total):
        raise UserError(
            f"the loss became {total} within {len(losses)} steps before step {step}: training stopped, the last "
            "saved state is kept; a lower --learning-rate or --precision float32 usually mends it"
        )
    return total


def _describe(row: dict[str, Any], epochs: int) -> str:
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.4f}"]
    aside = ("epoch", "loss", "learning_rate", "images_per_second", "lambda")
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.items() if name not in aside]
    if row.get("lambda"):
        parts.append("λ " + " ".join(f"{lam:.3f}" for lam in row["lambda"]))
    return " · ".join([*parts, f"{row['images_per_second']:.0f} images/s"])


class _Saver:
    """Saves the state, at most a twentieth of the time; how often does not affect the result."""

    def __init__(self, task: Task, path: Path, accelerator: Accelerator) -> None:
        self.task, self.path, self.accelerator = task, path, accelerator
        self.due = time.monotonic() + 2.0

    def save_if_due(self, standing: _Standing, *, last: bool = False) -> None:
        began = time.monotonic()
        if not self.accelerator.is_main_process or (began < self.due and not last):
            return
        model = self.accelerator.unwrap_model(self.task.model)
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, slots in self.task.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
        metadata = {"identity": self.task.identity, "standing": json.dumps(asdict(standing))}
        with replacing(self.path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
        ended = time.monotonic()
        self.due = ended + max(2.0, 20.0 * (ended - began))


def _load(task: Task, path: Path) -> _Standing:
    """Put the saved weights and optimizer state in place."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it to train from the start") from None
    if metadata["identity"] != task.identity:
        raise UserError(f"{path} belongs to a run with other settings; give another --out or delete it")
    model = getattr(task.model, "module", task.model)
    model.load_state_dict({n[6:]: tensor for n, tensor in tensors.items() if n.startswith("model.")})
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".", 2)
            slots.setdefault(int(index), {})[slot] = tensor
    state = task.optimizer.state_dict()
    task.optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})
    return _Standing(**json.loads(metadata["standing"]))


def finished(recipe: dict[str, Any], out: Path) -> list[dict[str, Any]] | None:
    """Return the log of the run in ``out`` if it has ended, None if it has not or there is none.

    Raises:
        UserError: the run there has another recipe.
    """
    if not (out / checkpoints.RECIPE_FILE).exists():
        return None
    held = checkpoints.read_recipe(out)
    held.pop(checkpoints.CLASS_NAMES, None)
    if held != recipe:
        names = [name for name in {**recipe, **held} if held.get(name) != recipe.get(name)]
        raise UserError(f"{out} holds a run that differs in {', '.join(names)}; give another --out")
    return read_metrics(out) if (out / checkpoints.WEIGHTS_FILE).exists() else None


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """Return the log of a run, one entry an epoch."""
    return [json.loads(line) for line in (out / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
