"""Experiment trackers: what a training run sends to tensorboard, wandb, mlflow and others that accelerate supports."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, get_available_trackers
from accelerate.utils import LoggerType

from antiphase.errors import UserError, first_line, shown

Tracker = str | GeneralTracker
Send = Callable[[dict[str, Any], int], None]  # numbers and their step, to the trackers
_PACKAGES = {"comet_ml": "comet-ml"}  # where pip knows it by another name


def check_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse trackers that are unknown or not installed."""
    available = {str(one.value) for one in get_available_trackers()}
    known = [str(one.value) for one in LoggerType if one is not LoggerType.ALL]
    for name in trackers:
        if isinstance(name, str) and name not in known:
            raise UserError(f"track {shown(name)}: expected one of {', '.join(known)}")
        if isinstance(name, str) and name not in available:
            raise UserError(f"track {name!r}: is not installed; run pip install {_PACKAGES.get(name, name)}")


def log_options(trackers: Sequence[Tracker], out: Path) -> dict[str, Any]:
    """Return the options of the accelerator that logs to trackers; files of tensorboard lie under ``out``."""
    return {"log_with": list(trackers), "project_dir": str(out)} if trackers else {}


def start_tracking(accelerator: Accelerator, trackers: Sequence[Tracker], recipe: dict[str, Any]) -> Send:
    """Start the trackers of a run and return what sends numbers and their step to them.

    Single numbers, words and truth values of the recipe are sent once. A list, such as λ by layer, is sent as one
    number for each element: ``lambda/0``, ``lambda/1`` and so on.
    """
    if not trackers:
        return lambda numbers, step: None
    config = {key: value for key, value in recipe.items() if isinstance(value, bool | int | float | str)}
    try:
        accelerator.init_trackers("antiphase", config)
    except Exception as error:  # each package has its own
        names = ", ".join(str(getattr(one, "name", one)) for one in trackers)
        why = f"cannot be started ({first_line(error)}); set it up or leave out --track"
        raise UserError(f"track {names}: {why}") from None
    return lambda numbers, step: accelerator.log(scalars(numbers), step)


def scalars(numbers: dict[str, Any]) -> dict[str, float]:
    """Return one named number for each element of a list.

    >>> scalars({"loss": 1, "lambda": [0.5, 0.25], "none": []})
    {'loss': 1.0, 'lambda/0': 0.5, 'lambda/1': 0.25}
    """
    flat: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list):
            flat |= {f"{name}/{index}": float(one) for index, one in enumerate(value)}
        else:
            flat[name] = float(value)
    return flat
