"""Attacks of other libraries under our verdicts: foolbox, torchattacks, or any function that perturbs images."""

import contextlib
import importlib
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.attacks.engine.options import Finished, RunOptions
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.rows import Rows
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.precision import Precision

Foreign = Callable[[nn.Module, Tensor, Tensor], Tensor]  # model, images, labels → adversarial images


class ForeignOptions(TypedDict, total=False):
    """What foreign attacks take beside model, images, labels and threat.

    ``name``: of the attack in the result; its own where not given. ``seed``: of the global generators.
    ``ids``: one int64 a sample; positions where not given. ``batch_size``: the most samples at once.
    ``settings``: the attack's parameters, for the record. ``precision``: float32, or it is refused.
    ``progress``, ``on_finished``: as of :class:`~antiphase.attacks.engine.options.Run`.
    """

    name: str
    seed: int
    ids: Int64[Tensor, " samples"] | None
    batch_size: int | None
    settings: dict[str, Any]
    precision: Precision
    progress: bool | str
    on_finished: Finished | None


def run_foreign(
    attack: Foreign,
    model: Classifier,
    images: Float[Tensor, "samples *shape"],
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat,
    **options: Unpack[ForeignOptions],
) -> AttackResult:
    """Let a function perturb the images, and give it the verdicts that our own attacks get.

    It is called once a batch with the samples that the model has not got wrong already. What it returns
    succeeds by our rule: prediction changed, ‖δ‖ ≤ ε + ``threat.tolerance``, every pixel within bounds, confirmed in
    float32. An image with a NaN or beyond the bounds counts as failed, and the clean image stands in for it.

    Passes are counted in the model that the function is given. Which of its samples a call was about is
    not known, so each sample is charged its batch's mean, rounded up: exact for ``batch_size=1``, and where
    all samples are asked about equally often. A backward pass is one gradient that reaches the logits, of
    every row of that call. Passes that go round the given model are not seen.

    Python's, numpy's and torch's global generators are seeded before each batch (from ``seed``, the name
    and the batch's first id) and restored after it. Unlike our own attacks', verdicts may depend on the
    batch size and on the order of the samples.

    Args:
        attack: from (model, images, labels) to adversarial images of the same shape.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, ε and bounds by which success is judged; the function has to know them by itself.
        **options: name, seed, ids, batch size and the like, see :class:`ForeignOptions`.

    Raises:
        UserError: for images, labels or ids that do not fit, an unknown option, and where the function returns
            anything else than one image a sample.
    """
    if odd := [name for name in options if name not in ForeignOptions.__annotations__]:
        raise UserError(f"option {odd[0]!r}: expected one of {', '.join(ForeignOptions.__annotations__)}")
    if options.get("precision", "float32") != "float32":
        raise UserError(f"precision {options.get('precision')!r}: foreign attacks search in float32")
    search = _Foreign(attack, options.get("name") or _name(attack), threat)
    run: RunOptions = {
        "seed": options.get("seed", 0), "ids": options.get("ids"), "batch_size": options.get("batch_size"),
        "progress": options.get("progress", False), "on_finished": options.get("on_finished"),
    }  # fmt: skip
    result = run_search(model, images, labels, threat, search, options.get("settings", {}), run)
    beyond = int((~result.success & (result.distance > threat.eps + threat.tolerance)).sum())
    said = [
        f"{count} of {len(result)} images that {search.name} returned {what}: they count as failed"
        for count, what in (
            (search.unusable, "held NaN or left the bounds"),
            (beyond, f"left ε = {threat.eps:g}"),
        )
        if count
    ]
    return replace(result, warnings=(*result.warnings, *said))


def run_foolbox(
    attack: Any,
    model: Classifier,
    images: Float[Tensor, "samples *shape"],
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat,
    **options: Unpack[ForeignOptions],
) -> AttackResult:
    """Run an untargeted attack of foolbox as :func:`run_foreign` does.

    The attack gets ``epsilons=threat.eps``, or None where ε is infinite, and a model of the threat's bounds. An
    attack that minimises the norm is cut back to ε by foolbox before the verdict.

    Source: J. Rauber et al., *Foolbox Native*, JOSS 2020.

    Args:
        attack: such as ``foolbox.attacks.LinfPGD()``; its norm must be the threat's.
        model: classifier of images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, ε and bounds.
        **options: as for :func:`run_foreign`.

    Raises:
        UserError: as :func:`run_foreign`, where foolbox is not installed, for another norm, and for an
            infinite ε with an attack that needs a budget.
    """
    foolbox = _library("foolbox")
    norm = {2: "l2", math.inf: "linf"}.get(attack.distance.p, f"l{attack.distance.p}")
    if norm != threat.norm:
        raise UserError(f"the attack is of norm {norm} and the threat of {threat.norm}: their ε must agree")
    eps = threat.eps if math.isfinite(threat.eps) else None
    if eps is None and isinstance(attack, foolbox.attacks.base.FixedEpsilonAttack):
        raise UserError(f"eps inf: foolbox's {_name(attack)} needs a finite budget")

    def perturb(asked: nn.Module, clean: Tensor, label: Tensor) -> Tensor:
        wrapped = foolbox.PyTorchModel(asked, bounds=threat.bounds, device=clean.device)
        return attack(wrapped, clean, foolbox.criteria.Misclassification(label), epsilons=eps)[1]

    own: ForeignOptions = {"name": f"foolbox-{_name(attack)}", "settings": _scalars(attack)}
    return run_foreign(perturb, model, images, labels, threat, **(own | options))


def run_torchattacks(
    make: Callable[[nn.Module], Any],
    model: nn.Module,
    images: Float[Tensor, "samples *shape"],
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat,
    **options: Unpack[ForeignOptions],
) -> AttackResult:
    """Run an attack of torchattacks as :func:`run_foreign` does.

    Such an attack holds its model, so it is made anew around the counting one.

    Source: H. Kim, *Torchattacks: A PyTorch Repository for Adversarial Attacks*, arXiv:2010.01950.

    Args:
        make: from a model to the attack, as ``lambda model: torchattacks.PGD(model, eps=8 / 255)``; its ε
            and norm must be the threat's.
        model: module that classifies images within the threat's bounds.
        images: clean images.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, ε and bounds.
        **options: as for :func:`run_foreign`.

    Raises:
        UserError: as :func:`run_foreign`, for an attack in place of a function that makes one, and for
            bounds other than (0, 1), which torchattacks takes for granted.
    """
    if tuple(threat.bounds) != (0.0, 1.0):
        raise UserError(f"bounds {threat.bounds}: torchattacks knows only (0, 1); let the model scale")
    if hasattr(make, "set_model") and not isinstance(make, type):
        raise UserError(
            "an attack already made: give a function that makes it, as lambda model: torchattacks.PGD(model)"
        )
    sample = make(model)
    own: ForeignOptions = {"name": f"torchattacks-{_name(sample)}", "settings": _scalars(sample)}

    def perturb(asked: nn.Module, clean: Tensor, label: Tensor) -> Tensor:
        return make(asked)(clean, label)

    return run_foreign(perturb, model, images, labels, threat, **(own | options))


class _Foreign:
    """A search that is over in one step: the engine does the rest."""

    targets = 0
    restarts = 1
    decides_in_float32 = False

    def __init__(self, attack: Foreign, name: str, threat: Threat) -> None:
        self.attack, self.name, self.bounds = attack, name, threat.bounds
        self.unusable = 0  # images returned with a NaN or beyond the bounds

    def start(self, rows: Rows) -> None:
        rows["best"] = rows["clean"].clone()
        rows["loss"] = torch.zeros_like(rows["eps"])
        rows["found"] = torch.zeros_like(rows["label"], dtype=torch.bool)
        rows["done"] = rows["found"].clone()

    def step(self, rows: Rows, oracle: Oracle) -> None:
        clean, label = rows["clean"], rows["label"]
        counter = _Counter(oracle.model).eval()
        with _seeded(int(rows["key"][0]), clean.device), torch.enable_grad():
            returned = self.attack(counter, clean.clone(), label.clone())
        if not isinstance(returned, Tensor) or returned.shape != clean.shape:
            shape = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
            raise UserError(f"{self.name} returned {shape}: expected images of shape {tuple(clean.shape)}")
        returned = returned.detach().to(clean)
        flat, (low, high) = returned.flatten(1), self.bounds
        usable = ((flat >= low) & (flat <= high)).all(1)  # also False for NaN, at which the oracle would stop
        self.unusable += int((~usable).sum())
        rows.put("best", usable, returned)
        rows["forwards"] = rows["forwards"] + math.ceil(counter.forwards / len(clean))
        rows["backwards"] = rows["backwards"] + math.ceil(counter.backwards / len(clean))
        rows["done"] = torch.ones_like(rows["done"])


class _Counter(nn.Module):
    """The model, with the rows that went through it and came back as gradients."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch classes"]:
        logits = self.model(x)
        self.forwards += len(x)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: self._count(len(gradient)))
        return logits

    def _count(self, rows: int) -> None:
        self.backwards += rows


@contextlib.contextmanager
def _seeded(key: int, device: torch.device) -> Iterator[None]:
    """Seed every global generator for a while: other libraries know no generators of their own."""
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


def _library(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they import names that their own dependencies have retired
            return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is not installed ({error}): pip install {name}") from error


def _name(attack: Any) -> str:
    return getattr(attack, "attack", None) or getattr(attack, "__name__", type(attack).__name__)


def _scalars(attack: Any) -> dict[str, Any]:
    """Return an attack's parameters, as far as they are plain values."""
    plain = (bool, int, float, str, type(None))
    return {
        name: value
        for name, value in vars(attack).items()
        if isinstance(value, plain) and not name.startswith("_") and name != "attack"
    }
