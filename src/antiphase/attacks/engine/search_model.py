"""The model that a search runs in: where it pays, a faithful copy of the attacked one, in float32 or bf16.

Verdicts come from the attacked model in float32, so the choice changes how long a search takes. It is measured on the
first images, once for each architecture, shape of image and machine.
"""

import contextlib
import copy
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from antiphase import files, modules
from antiphase.attacks.engine.oracle import two_classes
from antiphase.attention.modes import outputs_only
from antiphase.errors import UserError
from antiphase.precision import Precision, SearchPrecision, autocast, multiplies_bf16

_EXACT = 1e-4  # largest difference of a copy's logits, as a share of the widest range of an image's
_COARSE = 0.1  # the same for bf16: beyond it, most searches would be repeated in float32
_FASTER = 0.9  # a choice is preferred to a plainer one if it takes at most this share of its time
_MEASURED, _LEAST = 32, 16  # images on which the choice is measured, and least number for which it is
_ENOUGH = 0.5  # seconds of measuring, after which a choice is not timed again
_log = logging.getLogger(__name__)
_chosen: dict[str, str] = {}  # of this process


def search_model(
    model: Any, images: Tensor, context: Tensor | None, precision: SearchPrecision, device: torch.device
) -> tuple[Any, Precision]:
    """Return the model to search in and its precision; ``"auto"`` leaves the precision to the measurement."""
    precisions: list[Precision] = ["float32" if precision == "auto" else precision]
    if precision == "auto" and multiplies_bf16(device):
        precisions.append("bf16")
    # whether a copy may pay: a vision transformer has one convolution, its patch embedding
    copies = isinstance(model, nn.Module) and sum(isinstance(part, nn.Conv2d) for part in model.modules()) > 1
    choices = [f"{form} {one}" for one in precisions for form in ("original", "copy")[: 1 + copies]]
    if len(choices) == 1:
        return model, precisions[0]
    given = [part[:_MEASURED].to(device) for part in (images, context) if part is not None]
    key = files.digest(repr((str(model), given[0].shape[1:], choices, _machine(device))))
    if (choice := _chosen.get(key) or _remembered().get(key, "")) not in choices:
        choice = "" if len(images) >= _LEAST else choices[0]
    copied = None
    if copies and not choice.startswith("original"):
        copied = faithful_copy(model, *given)
        choices = [one for one in choices if copied is not None or not one.startswith("copy")]
    models = {"original": model, "copy": copied}
    if not choice:
        choice = _fastest({one: (models[one.split()[0]], one.split()[1]) for one in choices}, given, device)
        _remembered()[key] = choice
        with contextlib.suppress(OSError, RuntimeError, UserError):
            files.write_json(_file(), _chosen)
    form, chosen = choice.split()
    _log.info("%s: the search runs in the %s, in %s", type(model).__name__, form, chosen)
    return models[form] if models[form] is not None else model, "bf16" if chosen == "bf16" else "float32"


def faithful_copy(model: nn.Module, *given: Tensor) -> nn.Module | None:
    """Return a copy with folded batch norms and weights in channels-last order; None if its logits are not the same.

    A copy whose operations need contiguous images, such as ``view``, keeps the order of its weights.
    """
    # which may write to the original, and a folded batch norm would lose its own
    kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    why = "it has hooks" if any(getattr(part, kind) for part in model.modules() for kind in kinds) else ""
    for order in () if why else (torch.channels_last, torch.contiguous_format):
        try:
            with torch.no_grad():
                some = [part[:_LEAST] for part in given]
                exact = model(*(part.clone() for part in some))
                copied = copy.deepcopy(model)
                folded = _fold(copied, some)
                if order is torch.contiguous_format and not folded:
                    break
                copied.to(memory_format=order)
                error = _error(copied(*(part.clone() for part in some)), exact)
        except Exception as problem:  # the user's code
            why = f"{type(problem).__name__}: {problem}"
            continue
        if error <= _EXACT:
            _log.info("copy of %s with %d folded batch norms, %s", type(model).__name__, folded, order)
            return copied
        why = f"its logits differ by {error:.1g} of their range"
    _log.info("no copy of %s for the search: %s", type(model).__name__, why or "it has no batch norm to fold")
    return None


def _fold(model: nn.Module, given: list[Tensor]) -> int:
    """Fold each batch norm whose input is a convolution's output into the convolution; return how many."""
    names = {part: name for name, part in model.named_modules()}
    calls: list[nn.Module] = []
    convolved: list[tuple[Tensor, nn.Conv2d]] = []  # the outputs live on, so that none takes another's place
    pairs: list[tuple[Any, Any]] = []

    def watch(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append(part)
        if isinstance(part, nn.Conv2d):
            convolved.append((output, part))
        elif _after(part) is not None and part.running_var is not None:
            pairs.extend((conv, part) for value, conv in convolved if value is inputs[0])

    watched = (part for part in names if isinstance(part, nn.Conv2d | nn.BatchNorm2d))
    with modules.hooked(part.register_forward_hook(watch) for part in watched):
        model(*(part.clone() for part in given))
    pairs = [pair for pair in pairs if all(calls.count(part) == 1 for part in pair)]
    for conv, norm in pairs:
        model.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
        model.set_submodule(names[norm], _after(norm))
    return len(pairs)


def _after(part: Any) -> Any:
    """Return what a batch norm does after normalising; None if the module is of a kind that is not known."""
    if type(part) is nn.BatchNorm2d:
        return nn.Identity()
    return nn.Sequential(part.drop, part.act) if type(part).__name__ == "BatchNormAct2d" else None  # timm's


def _fastest(choices: dict[str, tuple[Any, str]], given: list[Tensor], device: torch.device) -> str:
    """Return the name of the fastest of some models and precisions; of an earlier one where others gain little."""
    with torch.no_grad(), outputs_only():
        exact = next(iter(choices.values()))[0](*(part.clone() for part in given))
    best, least = next(iter(choices)), math.inf
    for name, (model, precision) in choices.items():
        try:
            seconds = _seconds(model, precision, given, exact, device)
        except Exception as problem:  # the user's code
            _log.info("search in the %s: %s: %s", name, type(problem).__name__, problem)
            continue
        _log.info("search in the %s: %.3g s for %d images", name, seconds, len(exact))
        if seconds < _FASTER * least:
            best, least = name, seconds
    return best


def _seconds(model: Any, precision: Any, given: list[Tensor], exact: Tensor, device: torch.device) -> float:
    """Return the time of a forward and a backward pass; infinity if the logits are far off."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: list[float] = []
    while len(seconds) < 4 and sum(seconds) < _ENOUGH:
        began = clock()
        leaf, *context = (part.clone() for part in given)
        with torch.enable_grad(), outputs_only():
            leaf.requires_grad_()
            with autocast(device, precision):
                logits = model(leaf, *context).float()
            if logits.requires_grad:
                torch.autograd.grad(logits.logsumexp(1).sum(), leaf, materialize_grads=True)
        error = _error(logits.detach(), exact)  # waits for a GPU
        seconds.append(clock() - began)
        if not error <= _COARSE:
            return math.inf
    return min(seconds)


def _error(logits: Tensor, exact: Tensor) -> float:
    """Return the largest difference of logits as a share of the range of an image's: an offset of all is no scale."""
    first, second = two_classes(logits), two_classes(exact)
    return float((first - second).abs().max() / (second.amax(1) - second.amin(1)).max())


def _machine(device: torch.device) -> tuple[Any, ...]:
    if device.type == "cuda":
        return torch.__version__, torch.cuda.get_device_name(device)
    return torch.__version__, device.type, torch.get_num_threads(), sorted(torch.cpu.get_capabilities().items())


def _file() -> Path:
    """Return where choices are kept; raise RuntimeError without a home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphase" / "search-models.json"


def _remembered() -> dict[str, str]:
    """Return the choices of this process, and of others as they are on disk by now."""
    with contextlib.suppress(OSError, ValueError, TypeError, RuntimeError):
        _chosen.update(json.loads(_file().read_text(encoding="utf-8")))
    return _chosen
