"""The training loop: steps, learning rate, log, saved states, exact resume."""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from antiphase.errors import UserError
from antiphase.files import replacing, write_json, write_text
from antiphase.models import checkpoints
from antiphase.processes import start_processes
from antiphase.progress import status_bar
from antiphase.reading import as_json, read_json_lines
from antiphase.training.tracking import Send, Tracker, check_trackers, log_options, start_tracking

STATE_FILE = "state.safetensors"
METRICS_FILE = "metrics.jsonl"
_CHECK_EVERY_STEPS = 50  # reading the loss synchronises with the GPU
_CHECK_EVERY_SECONDS = 2.0
_DIVERGED = (
    "training stopped, the last saved state is kept; try a lower --learning-rate or --precision float32"
)


@dataclass(frozen=True)
class Task:
    """Definition of a training run, with model and optimizer as prepared by the accelerator.

    Attributes:
        identity: digest of everything that affects the weights; a saved state with another identity is refused.
        learning_rate: learning rate of a step (from 0).
        backward: for (epoch, step in the epoch), accumulates the parameter gradients of the batch and returns this
            process's loss without a graph, and the number of images in the whole batch. The batch's loss is the mean
            over the processes. All randomness is keyed by the two numbers.
        evaluate: returns what to log at the end of an epoch.
        after_step: called after each step of the optimizer, for example to clamp parameters.
        note: text shown next to the loss while an epoch runs.
        track: sends numbers and their step to experiment trackers.
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
    track: Send = lambda numbers, step: None


def start(
    recipe: dict[str, Any], out: Path, trackers: Sequence[Tracker], **stored: Any
) -> tuple[Accelerator, Send]:
    """Start the processes and trackers of a run, and write its recipe with what is ``stored`` besides."""
    check_trackers(trackers)
    accelerator = start_processes(**log_options(trackers, out))
    if accelerator.is_main_process:
        write_json(out / checkpoints.RECIPE_FILE, recipe | stored)
    return accelerator, start_tracking(accelerator, trackers, recipe)


def finish(
    model: nn.Module, recipe: dict[str, Any], out: Path, accelerator: Accelerator, **stored: Any
) -> None:
    """Write the weights of a run, delete its saved state, and wait for all processes."""
    if accelerator.is_main_process:
        checkpoints.save(model, recipe | stored, out, getattr(torch, recipe["store"]))
        (out / STATE_FILE).unlink(missing_ok=True)
    accelerator.wait_for_everyone()


def decayed(
    model: nn.Module, weight_decay: float, decays: Callable[[nn.Parameter], bool]
) -> list[dict[str, Any]]:
    """Return the parameters in two groups, with weight decay and without."""
    groups = ([p for p in model.parameters() if decays(p) is decay] for decay in (True, False))
    return [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in zip(groups, (weight_decay, 0.0), strict=True)
    ]


@dataclass
class _Standing:
    """Progress of a run; saved with the weights."""

    step: int = 0
    loss_sum: float = 0.0  # over the epoch so far
    metrics: list[dict[str, Any]] = field(default_factory=list)


def shard(model: nn.Module, blocks: list[nn.Module], accelerator: Accelerator) -> None:
    """Divide weights, gradients and optimizer state among the processes, in place, each part on its device.

    A block's weights are put together while it computes; what is in no block stays together throughout a step. All
    must happen in the model's own ``forward``. Each parameter is replaced by a new one, whose gradient is the mean
    over the processes. accelerate divides models on GPUs only, by the same function of PyTorch.

    Source: PyTorch, ``torch.distributed.fsdp.fully_shard``.
    """
    from torch.distributed.device_mesh import init_device_mesh  # not needed by most runs
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each process has a part of a tensor."""
    return hasattr(tensor, "full_tensor")


def divided(tensor: Tensor, like: Any) -> Tensor:
    """Return this process's part of a tensor if ``like`` is divided and of its shape, else the tensor."""
    if not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def run(task: Task, out: Path, accelerator: Accelerator, *, progress: bool = True) -> list[dict[str, Any]]:
    """Train to the end, resuming from the state file in ``out`` if there is one, and return the log.

    On the same machine, a resumed run gives bitwise the same weights as an uninterrupted one.
    """
    path = out / STATE_FILE
    standing = _load(task, path) if path.exists() else _Standing()
    _check_together(standing, path, accelerator)
    saver = _Saver(task, path, accelerator)
    shown = progress and accelerator.is_main_process
    total = task.epochs * task.steps_per_epoch
    with status_bar("", total, shown, standing.step) as bar:
        for epoch in range(standing.step // task.steps_per_epoch, task.epochs):
            note = now = f"epoch {epoch + 1}/{task.epochs}"
            losses: list[Tensor] = []
            images, began = 0, time.monotonic()
            looked = began
            for within in range(standing.step % task.steps_per_epoch, task.steps_per_epoch):
                loss, count = _step(task, epoch, within)
                losses.append(loss)
                images += count
                standing.step += 1
                bar.show(standing.step, note)
                # several processes must check at the same step; a single one may go by the clock
                due = accelerator.num_processes == 1 and time.monotonic() > looked + _CHECK_EVERY_SECONDS
                if due or within + 1 == task.steps_per_epoch or len(losses) == _CHECK_EVERY_STEPS:
                    standing.loss_sum = _finite_sum(standing.loss_sum, losses, standing.step, accelerator)
                    losses.clear()
                    looked = time.monotonic()
                    mean, speed = standing.loss_sum / (within + 1), images / (time.monotonic() - began)
                    note = f"{now} · loss {mean:.4f} · {speed:.0f} images/s{task.note()}"
                    bar.show(standing.step, note)
                    rate = task.learning_rate(standing.step - 1)
                    numbers = {"loss": mean, "learning_rate": rate, "images_per_second": speed}
                    task.track(numbers, standing.step)
                    if within + 1 < task.steps_per_epoch:
                        saver.save_if_due(standing)
            _check_weights(task.model.parameters(), standing.step, accelerator)
            task.model.eval()
            row = {"epoch": epoch + 1, "loss": mean, "learning_rate": task.learning_rate(standing.step - 1)}
            standing.metrics.append({**row, **task.evaluate(), "images_per_second": round(speed, 1)})
            task.track(standing.metrics[-1], standing.step)
            standing.loss_sum = 0.0
            if accelerator.is_main_process:
                write_text(out / METRICS_FILE, "".join(json.dumps(r) + "\n" for r in standing.metrics))
            if shown:
                bar.say(_describe(standing.metrics[-1], task.epochs))
            saver.save_if_due(standing, last=epoch + 1 == task.epochs)
    return standing.metrics


def _check_together(standing: _Standing, path: Path, accelerator: Accelerator) -> None:
    """Raise a UserError unless all processes resume from the same step."""
    if accelerator.num_processes == 1:
        return
    steps: Any = accelerator.gather(torch.tensor([standing.step], device=accelerator.device))
    if len(set(steps.tolist())) > 1:
        where = f"{path}: the processes resume from different steps {steps.tolist()}"
        raise UserError(f"{where}; use a folder shared by all of them")


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
    """Add the losses one by one, so that the sum does not depend on how often they are read."""
    each: Any = accelerator.reduce(torch.stack(losses).double(), "mean")  # over the processes
    total = sum(each.tolist(), before)
    if not math.isfinite(total):
        raise UserError(f"the loss became {total} in the {len(losses)} steps before step {step}: {_DIVERGED}")
    return total


def _check_weights(weights: Iterable[Tensor], step: int, accelerator: Accelerator | None = None) -> None:
    """Refuse weights that are not finite, in all processes if there is an accelerator: the next loss would tell."""
    own = [weight.to_local() if is_sharded(weight) else weight for weight in weights]  # type: ignore[operator]
    wrong: Any = torch.stack([weight.isfinite().logical_not().any() for weight in own]).any().float()
    if accelerator is not None:
        wrong = accelerator.reduce(wrong, "sum")
    if wrong:
        raise UserError(f"weights became NaN or infinite before step {step + 1}: {_DIVERGED}")


def _describe(row: dict[str, Any], epochs: int) -> str:
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.4f}"]
    aside = ("epoch", "loss", "learning_rate", "images_per_second", "lambda")
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.items() if name not in aside]
    if row.get("lambda"):
        parts.append("λ " + " ".join(f"{lam:.3f}" for lam in row["lambda"]))
    return " · ".join([*parts, f"{row['images_per_second']:.0f} images/s"])


class _Saver:
    """Save the state regularly, in at most 5 % of the run time; this does not affect the result."""

    def __init__(self, task: Task, path: Path, accelerator: Accelerator) -> None:
        self.task, self.path, self.accelerator = task, path, accelerator
        self.sharded = any(map(is_sharded, task.model.parameters()))
        self.due = time.monotonic() + 2.0

    def save_if_due(self, standing: _Standing, *, last: bool = False) -> None:
        began = time.monotonic()
        writes = self.accelerator.is_main_process
        due = writes and (began >= self.due or last)
        if self.sharded:  # every process helps to gather what the main one writes
            vote = torch.tensor(due, device=self.accelerator.device).float()
            due = bool(self.accelerator.reduce(vote, "sum"))
        if not due:
            return
        model = self.accelerator.unwrap_model(self.task.model)
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for index, slots in self.task.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
        for name, tensor in list(tensors.items()):
            gathered = checkpoints.whole(tensor)
            if writes:
                tensors[name] = gathered
        if not writes:
            return
        _check_weights((tensors[name] for name in tensors if name.startswith("model.")), standing.step)
        metadata = {"identity": self.task.identity, "standing": json.dumps(asdict(standing))}
        with replacing(self.path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
        ended = time.monotonic()
        self.due = ended + max(2.0, 20.0 * (ended - began))


def _load(task: Task, path: Path) -> _Standing:
    """Load the saved weights and optimizer state, and return the progress."""
    try:
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata(), list(file.keys())
            if metadata["identity"] != task.identity:
                raise UserError(
                    f"{path} belongs to a run with other settings; use another --out, or delete it"
                )
            parts = _like(task)
            tensors = {name: divided(file.get_tensor(name), like=parts(name)) for name in names}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it to restart training") from None
    model = getattr(task.model, "module", task.model)
    model.load_state_dict({n[6:]: tensor for n, tensor in tensors.items() if n.startswith("model.")})
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".", 2)
            slots.setdefault(int(index), {})[slot] = tensor
    state = task.optimizer.state_dict()
    task.optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})
    return as_json(metadata["standing"], path, _Standing, "delete it to restart training")


def _like(task: Task) -> Callable[[str], Tensor | None]:
    """Return what finds the parameter that is sharded as a saved tensor of some name has to be."""
    own = getattr(task.model, "module", task.model).state_dict()
    trained = [parameter for group in task.optimizer.param_groups for parameter in group["params"]]

    def find(name: str) -> Tensor | None:
        kind, _, rest = name.partition(".")
        return own.get(rest) if kind == "model" else trained[int(rest.partition(".")[0])]

    return find


def finished(recipe: dict[str, Any], out: Path) -> list[dict[str, Any]] | None:
    """Return the log of a finished run in ``out``; None if there is no run or it is unfinished."""
    if not (out / checkpoints.RECIPE_FILE).exists():
        return None
    held = checkpoints.read_recipe(out)
    held.pop(checkpoints.CLASS_NAMES, None)
    if held != recipe:
        names = [name for name in {**recipe, **held} if held.get(name) != recipe.get(name)]
        raise UserError(f"{out} contains a run that differs in {', '.join(names)}; use another --out")
    return read_metrics(out) if (out / checkpoints.WEIGHTS_FILE).exists() else None


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """Return the log of a run, one entry per epoch."""
    return read_json_lines(out / METRICS_FILE, "delete the directory to train again")
