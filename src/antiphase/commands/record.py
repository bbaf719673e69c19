"""What every run writes down: which models on which data, by which command, on what machine."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.precision import multiplies_bf16


def run_record(
    models: Sequence[nn.Module],
    names: Sequence[str],
    data: Any,
    settings: dict[str, Any],
    warnings: list[str],
    command: str,
    seconds: float,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a reader needs to judge the numbers and to make them again: the content of ``run.json``."""
    preprocessing = {
        name: asdict(own)
        for name, model in zip(names, models, strict=True)
        if (own := card_of(model).preprocessing) is not None
    }
    return {
        "command": command,
        **({"options": dict(options)} if options else {}),
        "settings": settings,
        "models": dict(zip(names, (card_of(model).spec for model in models), strict=True)),
        "fingerprints": dict(zip(names, map(fingerprint, models), strict=True)),
        **({"preprocessing": preprocessing} if preprocessing else {}),
        "architectures": dict(zip(names, map(_architecture, models), strict=True)),
        "data": data.name,
        "data_fingerprint": data.fingerprint(),
        "n": len(data),
        "seconds": round(seconds, 2),
        **environment_record(device_of(models[0])),
        "warnings": warnings,
    }


def _architecture(model: nn.Module) -> dict[str, Any]:
    """Return the class of a model, without what normalises or binds it, and the number of its parameters."""
    inner = model
    while type(inner).__module__.startswith("antiphase.models.") and isinstance(
        wrapped := getattr(inner, "model", None), nn.Module
    ):
        inner = wrapped
    return {
        "architecture": type(inner).__name__,
        "parameters": sum(each.numel() for each in model.parameters()),
    }


def environment_record(device: torch.device) -> dict[str, Any]:
    """Return what hardware and which libraries a result was made with."""
    cpu = torch.cpu.get_capabilities().get("cpu_name", platform.processor())
    lacking = "" if multiplies_bf16(torch.device("cpu")) else "no bf16, "
    on_cpu = f"{cpu}, {lacking}{torch.get_num_threads()} threads"
    return {
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu,
        "versions": {name: version(name) for name in ("antiphase", "torch", "timm", "numpy")},
    }
