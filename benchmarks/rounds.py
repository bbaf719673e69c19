"""Contestants that take turns, and the ratio of what they took: what slows the machine slows neighbours alike."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from antiphase.commands.lineup import environment_record
from antiphase.commands.loading import find_device
from antiphase.models.zoo import fingerprint


def take_turns(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return each contestant's seconds in every round; the first is not counted, every second runs backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            contestants[name]()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(one: list[float], two: list[float]) -> dict[str, float | list[float]]:
    """Return the median of the rounds' ratios, its 95 % bootstrap interval, and the ratio of the fastest rounds."""
    ratios = np.array(one) / np.array(two)
    rows = np.random.default_rng(0).integers(0, len(ratios), (5000, len(ratios)))
    ends = np.quantile(np.median(ratios[rows], 1), (0.025, 0.975))
    return {
        "median": round(float(np.median(ratios)), 3),
        "interval": [round(float(x), 3) for x in ends],
        "fastest": round(min(one) / min(two), 3),
    }


def provenance(models: Mapping[str, nn.Module] | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a measurement was made with: commit, machine, versions, and the SHA-256 of each model."""
    record = environment_record(find_device("auto"))
    names = packages_distributions()
    record["versions"] |= {name: version(names[name][0]) for name in packages if name in names}
    here = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": False}
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **here).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **here).stdout.strip()
    return {
        "commit": f"{head}{'+' if changed else ''}",
        "date": time.strftime("%Y-%m-%d"),
        **record,
        "models": {name: fingerprint(model) for name, model in (models or {}).items()},
    }
