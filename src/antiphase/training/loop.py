"""The training loop: steps, learning rate, log, saved states, exact resume."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType
from pydantic import BaseModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from antiphase.errors import UserError, refusing, shown
from antiphase.files import as_json, digest, read_json_lines, replacing, write_json, write_text
from antiphase.models import checkpoints
from antiphase.processes import start_processes
from antiphase.terminal import status_bar

TIMES = ("images_per_second", "defence_time")  # in the log, other in each run
STATE_FILE = "state.safetensors"
METRICS_FILE = "metrics.jsonl"
_CHECK_EVERY_STEPS = 50  # reading the loss synchronises with the GPU
_CHECK_EVERY_SECONDS = 2.0
_DIVERGED = "training stopped, its last state is kept; try a lower --learning-rate or --precision float32"

Trackers = Sequence[str | GeneralTracker]  # by name or as accelerate's objects
Send = Callable[[dict[str, Any], int], None]  # numbers and their step, to the trackers


def check_trackers(trackers: Trackers) -> None:
    """Refuse trackers that are unknown or not installed."""
    available = {str(one.value) for one in get_available_trackers()}
    known = [str(one.value) for one in LoggerType if one is not LoggerType.ALL]
    for name in trackers:
        if isinstance(name, str) and name not in known:
            raise UserError(f"track {shown(name)}: expected one of {', '.join(known)}")
        if isinstance(name, str) and name not in available:
            raise UserError(f"track {name!r}: is not installed; run pip install {name}")


def start_tracking(accelerator: Accelerator, trackers: Trackers, recipe: dict[str, Any]) -> Send:
    """Start the trackers of a run and return what sends numbers and their step to them, a list element by element."""
    if not trackers:
        return lambda numbers, step: None
    config = {key: value for key, value in recipe.items() if isinstance(value, bool | int | float | str)}
    names = ", ".join(str(getattr(one, "name", one)) for one in trackers)
    # each package has exceptions of its own
    with refusing(f"track {names}: cannot be started", "; set it up or leave out --track", Exception):
        accelerator.init_trackers("antiphase", config)

    def send(numbers: dict[str, Any], step: int) -> None:
        lists = {name: numbers[name] for name in numbers if isinstance(numbers[name], list)}
        single = {name: float(numbers[name]) for name in numbers if name not in lists}
        places = {f"{name}/{index}": float(one) for name in lists for index, one in enumerate(lists[name])}
        accelerator.log(single | places, step)

    return send


@dataclass(frozen=True)
class Task:
    """What is trained, with model and optimizer as prepared by the accelerator; all randomness is keyed by step.

    ``gradients`` iterates over the steps of an epoch, from a step on. Each adds the gradients of a batch to the
    parameters and gives this process's loss without a graph, and the number of images in the whole batch, whose loss
    is the mean over the processes. ``evaluate`` returns what to log at the end of an epoch. ``save`` writes recipe and
    weights, rounded to a type, in the first process; None: the model as it is.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    steps_per_epoch: int
    learning_rate: Callable[[int], float]
    gradients: Callable[[int, int], Iterator[tuple[Tensor, int]]]
    evaluate: Callable[[], dict[str, Any]] = dict
    save: Callable[[dict[str, Any], torch.dtype], None] | None = None


def train(
    recipe: BaseModel,
    out: Path,
    begin: Callable[[Accelerator], Task],
    *,
    stored: dict[str, Any] | None = None,
    trackers: Trackers = (),
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Train what ``begin`` returns, write it to a directory, and return the log, one entry per epoch.

    Resumes an unfinished run in ``out``, and returns the log of a finished one. ``stored`` is written with the recipe.
    """
    fields = recipe.model_dump(mode="json")
    if (log := _finished(fields, out, stored or {})) is not None:
        return log
    check_trackers(trackers)
    tracked = {"log_with": list(trackers), "project_dir": str(out)} if trackers else {}
    accelerator = start_processes(**tracked)
    task = begin(accelerator)  # fails before anything is written
    written = fields | (stored or {})
    if accelerator.is_main_process:
        write_json(out / checkpoints.RECIPE_FILE, written)
    track = start_tracking(accelerator, trackers, fields)
    metrics = _run(task, fields["epochs"], digest(recipe.model_dump_json()), out, accelerator, track, progress)
    dtype = getattr(torch, fields["store"])
    if accelerator.is_main_process:
        if task.save is not None:
            task.save(written, dtype)
        else:
            checkpoints.save(accelerator.unwrap_model(task.model), written, out, dtype)
        (out / STATE_FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    if trackers:
        accelerator.end_training()
    return metrics


def check_divisible(batch_size: int, processes: int) -> None:
    """Refuse batches that processes cannot share evenly."""
    if batch_size % processes:
        raise UserError(f"batch size {batch_size}: expected a multiple of {processes}, the number of processes")


def decayed(parameters: Sequence[Tensor], weight_decay: float, axes: Sequence[int]) -> list[dict[str, Any]]:
    """Return two groups of parameters: those whose number of axes is in ``axes``, with weight decay, and the others."""
    groups = {decay: [one for one in parameters if (one.ndim in axes) is decay] for decay in (True, False)}
    return [{"params": group, "weight_decay": weight_decay * decay} for decay, group in groups.items()]


@dataclass
class _Standing:
    step: int = 0
    loss_sum: float = 0.0  # over the epoch so far
    metrics: list[dict[str, Any]] = field(default_factory=list)


def _run(
    task: Task, epochs: int, identity: str, out: Path, accelerator: Accelerator, track: Send, progress: bool
) -> list[dict[str, Any]]:
    """Train to the end, bit for bit also if it resumes from the state file in ``out``, and return the log."""
    path, steps = out / STATE_FILE, task.steps_per_epoch
    standing = _load(accelerator, task, identity, path) if path.exists() else _Standing()
    if accelerator.num_processes > 1:
        began_at: Any = accelerator.gather(torch.tensor([standing.step], device=accelerator.device))
        if len(different := set(began_at.tolist())) > 1:
            fault = f"the processes resume from different steps {sorted(different)}"
            raise UserError(f"{path}: {fault}; use a folder shared by all of them")
    due_at = time.monotonic() + 2.0

    def save_if_due(last: bool = False) -> None:
        """Save regularly, in at most 5 % of the run time; this does not affect the result."""
        nonlocal due_at
        began = time.monotonic()
        if accelerator.is_main_process and (began >= due_at or last):
            _write_state(task, standing, identity, path, accelerator)
            ended = time.monotonic()
            due_at = ended + max(2.0, 20.0 * (ended - began))

    shown = progress and accelerator.is_main_process
    with status_bar("training", epochs * steps, shown, standing.step) as (show, write):
        for epoch in range(standing.step // steps, epochs):
            note = now = f"epoch {epoch + 1}/{epochs}"
            losses: list[Tensor] = []
            row: dict[str, Any] = {}
            images, speed, began = 0, 0.0, time.monotonic()
            looked = began
            first = standing.step % steps
            gradients = task.gradients(epoch, first)
            for within in range(first, steps):
                loss, count = _step(task, standing.step, gradients)
                losses.append(loss)
                images += count
                standing.step += 1
                show(standing.step, note)
                # several processes must check at the same step; a single one may go by the clock
                due = accelerator.num_processes == 1 and time.monotonic() > looked + _CHECK_EVERY_SECONDS
                if due or within + 1 == steps or len(losses) == _CHECK_EVERY_STEPS:
                    means: Any = accelerator.reduce(torch.stack(losses).double(), "mean")  # of processes
                    # one by one, so that the sum does not depend on how often losses are read
                    standing.loss_sum = sum(means.tolist(), standing.loss_sum)
                    if not math.isfinite(standing.loss_sum):
                        when = f"in the {len(losses)} steps before step {standing.step}"
                        raise UserError(f"the loss became {standing.loss_sum} {when}: {_DIVERGED}")
                    losses.clear()
                    looked = time.monotonic()
                    mean, speed = standing.loss_sum / (within + 1), images / (time.monotonic() - began)
                    note = f"{now} · loss {mean:.4f} · {speed:.0f} images/s"
                    show(standing.step, note)
                    row = {"loss": mean, "learning_rate": task.learning_rate(standing.step - 1)}
                    track(row | {"images_per_second": speed}, standing.step)
                    if within + 1 < steps:
                        save_if_due()
            _check_weights(task.model.parameters(), standing.step, accelerator)
            task.model.eval()
            row = {"epoch": epoch + 1, **row, **task.evaluate(), "images_per_second": round(speed, 1)}
            standing.metrics.append(row)
            track(row, standing.step)
            standing.loss_sum = 0.0
            if accelerator.is_main_process:
                write_text(out / METRICS_FILE, "".join(json.dumps(r) + "\n" for r in standing.metrics))
            if shown:
                write(f"{now} · {_described({name: row[name] for name in row if name != 'epoch'})}")
            save_if_due(last=epoch + 1 == epochs)
    return standing.metrics


def _described(row: dict[str, Any]) -> str:
    lists = {name: value if isinstance(value, list) else [value] for name, value in row.items()}
    numbers = {name: " ".join(f"{number:.4g}" for number in values) for name, values in lists.items()}
    return " · ".join(f"{name.replace('_', ' ')} {numbers[name]}" for name in numbers if numbers[name])


def _step(task: Task, step: int, gradients: Iterator[tuple[Tensor, int]]) -> tuple[Tensor, int]:
    task.model.train()
    for group in task.optimizer.param_groups:
        group["lr"] = task.learning_rate(step)
    task.optimizer.zero_grad()
    loss_and_images = next(gradients)
    task.optimizer.step()
    return loss_and_images


def _check_weights(weights: Iterable[Tensor], step: int, accelerator: Accelerator | None = None) -> None:
    """Refuse weights that are not finite, in all processes if there is an accelerator: the next loss would tell."""
    wrong: Any = torch.stack([weight.isfinite().logical_not().any() for weight in weights]).any().float()
    if accelerator is not None:
        wrong = accelerator.reduce(wrong, "sum")
    if wrong:
        raise UserError(f"weights became NaN or infinite before step {step + 1}: {_DIVERGED}")


def _write_state(task: Task, standing: _Standing, identity: str, path: Path, accelerator: Accelerator) -> None:
    model = accelerator.unwrap_model(task.model)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, slots in task.optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
    tensors = checkpoints.unshared(state)
    _check_weights((tensors[name] for name in tensors if name.startswith("model.")), standing.step)
    metadata = {"identity": identity, "standing": json.dumps(asdict(standing))}
    metadata["digest"] = digest(checkpoints.weights_digest(tensors), metadata["standing"])
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata)


def _load(accelerator: Accelerator, task: Task, identity: str, path: Path) -> _Standing:
    model, optimizer = accelerator.unwrap_model(task.model), task.optimizer
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it to restart training") from None
    standing = metadata.get("standing", "")
    checksum = digest(checkpoints.weights_digest(tensors), standing)
    if metadata.get("digest", checksum) != checksum:
        raise UserError(f"{path}: damaged: its digest is another; delete it to restart training")
    if metadata.get("identity") != identity:
        raise UserError(f"{path} belongs to a run with other settings; use another --out, or delete it")
    weights = {name.removeprefix("model."): one for name, one in tensors.items() if name.startswith("model.")}
    slots: dict[int, dict[str, Tensor]] = {}
    for name in filter(re.compile(r"optimizer\.").match, tensors):
        _, index, slot = name.split(".")
        slots.setdefault(int(index), {})[slot] = tensors[name]
    model.load_state_dict(weights)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})
    return as_json(standing, path, _Standing, "delete it to restart training")


def _finished(recipe: dict[str, Any], out: Path, stored: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the log of a finished run in ``out``; None if there is no run or it is unfinished."""
    if not (out / checkpoints.RECIPE_FILE).exists():
        return None
    previous = {name: value for name, value in checkpoints.read_recipe(out).items() if name not in stored}
    if previous != recipe:
        names = [name for name in {**recipe, **previous} if previous.get(name) != recipe.get(name)]
        raise UserError(f"{out} contains a run that differs in {', '.join(names)}; use another --out")
    if not (out / checkpoints.WEIGHTS_FILE).exists():
        return None
    checkpoints.read_weights(out / checkpoints.WEIGHTS_FILE, "delete the directory to train again")
    if not (metrics := read_json_lines(out / METRICS_FILE, "delete the directory to train again")):
        raise UserError(f"{out / METRICS_FILE}: is empty; delete the directory to train again")
    return metrics
