"""Attacks of other libraries, such as foolbox and torchattacks: any function that perturbs images."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from antiphase import arguments, modules
from antiphase.attacks.engine.oracle import Classifier, Oracle, two_classes
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import Logits
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Points, Threat
from antiphase.errors import UserError

Foreign = Callable[[nn.Module, Tensor, Tensor], Tensor]  # model, images, labels → adversarial images
_KNOWN = ("seed", "ids", "batch_size", "precision", "progress", "on_finished")


class ForeignOptions(RunOptions, total=False):
    """Options of attacks of other libraries: some of :class:`~antiphase.attacks.engine.search.RunOptions`, and two.

    ``name``: name of the attack in the result. ``settings``: parameters of the attack, for the record. ``seed``: of the
    global generators. ``precision``: must be float32. Also ``ids``, ``batch_size``, ``progress`` and ``on_finished``.
    """

    name: str
    settings: dict[str, Any]


@arguments.validated
def run_foreign(
    attack: Foreign,
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat,
    **options: Unpack[ForeignOptions],
) -> AttackResult:
    """Run a function that perturbs images as an attack.

    The function is called once per batch, with the samples whose clean prediction is the attacked label. Success is
    judged in float32, of images clipped to the bounds; one with a NaN or infinite pixel counts as failed. Passes are
    counted on the model that the function receives: each sample gets the mean of its batch, rounded up. The global
    generators of Python, numpy and torch are seeded before each batch (from ``seed``, the name and the first id of the
    batch) and restored after it. Unlike for other attacks, results may depend on batch size and order of the samples.

    Args:
        attack: function from (model, images, labels) to adversarial images of the same shape, such as ``lambda model,
            x, y: torchattacks.PGD(model, eps=8 / 255)(x, y)``; docs/own-attack.md has foolbox's.
        threat: norm, ε and bounds that define success; they are not passed to the function.
    """
    run: Any = dict(options)
    own_name = getattr(attack, "attack", None) or getattr(attack, "__name__", type(attack).__name__)
    name, settings = run.pop("name", "") or own_name, run.pop("settings", {})
    if odd := [option for option in run if option not in _KNOWN]:
        raise UserError(f"option {odd[0]!r}: expected one of name, settings, {', '.join(_KNOWN)}")
    if run.get("precision") == "bf16":
        raise UserError("precision 'bf16': expected 'float32' or 'auto' for attacks of other libraries")
    search = _Foreign(attack, name, threat)
    result = run_search(model, images, labels, threat, search, run, settings=settings)
    beyond = result.distance > threat.eps + threat.slack(result.adversarial)
    counts = {
        "held NaN or infinite pixels: they count as failed": search.unusable,
        f"left the bounds by up to {search.excess:.3g}: they were clipped to {threat.bounds}": search.clipped,
        f"left ε = {threat.eps:g}: they count as failed": int((~result.success & beyond).sum()),
    }
    returned = f"of {len(result)} images that {search.name} returned"
    messages = [f"{count} {returned} {fault}" for fault, count in counts.items() if count]
    return replace(result, warnings=(*result.warnings, *messages))


@dataclass
class _Foreign:
    """A search that calls the foreign attack once and ends."""

    attack: Foreign
    name: str
    threat: Threat
    unusable: int = 0  # images with NaN or infinite pixels
    clipped: int = 0  # images beyond the bounds
    excess: float = 0.0  # how far beyond
    targets, restarts = None, 1

    def start(self, rows: Rows) -> None:
        rows["loss"] = torch.zeros_like(rows["eps"])

    def step(self, rows: Rows, oracle: Oracle) -> None:
        clean, label = rows["clean"], rows["label"]
        counter = _Counter(oracle.model)
        with _seeded(int(rows["key"][0]), clean.device), torch.enable_grad():
            returned = self.attack(counter, clean.clone(), label.clone())
        if not isinstance(returned, Tensor) or returned.shape != clean.shape:
            shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
            raise UserError(f"{self.name} returned {shape}: expected images of shape {tuple(clean.shape)}")
        returned = returned.detach().to(clean)
        usable = returned.isfinite().flatten(1).all(1)  # the oracle would reject the others
        clipped = returned.clamp(*self.threat.bounds)
        excess = (returned - clipped).abs().flatten(1).amax(1)[usable]
        self.unusable += int((~usable).sum())
        self.clipped += int((excess > self.threat.tolerance * max(1.0, *map(abs, self.threat.bounds))).sum())
        self.excess = max([self.excess, *excess.tolist()])
        rows.put(usable, best=clipped)
        rows["forwards"] = rows["forwards"] + math.ceil(counter.forwards / len(clean))
        rows["backwards"] = rows["backwards"] + math.ceil(counter.backwards / len(clean))
        rows["done"] = torch.ones_like(rows["done"])


class _Counter(nn.Module):
    """The model, with counts of the rows of its forward and backward passes."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0
        self.training = False

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, as the model is for the whole attack."""
        return self

    def forward(self, x: Points) -> Logits:
        with modules.running(self.model, x):
            logits = two_classes(self.model(x.clone()))  # which the model may write to
        self.forwards += len(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: setattr(self, "backwards", self.backwards + len(gradient)))
        return logits


@contextlib.contextmanager
def _seeded(key: int, device: torch.device) -> Iterator[None]:
    """Seed all global generators within a block: other libraries use them."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(key % 2**63)
        random.seed(key)
        np.random.seed(key % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
