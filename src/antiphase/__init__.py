"""antiphase measures how fragile differential attention is, and helps to build models that are not.

>>> import antiphase as ap
>>> model = ap.load_model("specimen:diffvit-0")
>>> data = ap.load_data("specimen-fashion-mnist", limit=20)
>>> result = ap.attacks.pgd(model, data.images(range(20)), None, ap.attacks.Threat(eps=8 / 255))
>>> result.success.shape
torch.Size([20])
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError

if TYPE_CHECKING:
    from antiphase import attacks, attention, data, evaluation, models, sensitivity, studies, training
    from antiphase.commands.check.run import check
    from antiphase.commands.convert import convert
    from antiphase.commands.python import (
        attack,
        audit,
        certify,
        evaluate,
        finetune,
        look,
        sense,
        study,
        train,
        train_vlm,
        transfer,
    )
    from antiphase.commands.verify.run import verify
    from antiphase.data import load_data
    from antiphase.models import load_model

# MKL chooses kernels by shape; its strict mode makes the rounding of a row independent of the other rows, so that
# results do not depend on the batch size. Read at the first matrix product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# GNU OpenMP's threads spin while they wait for each other, so long that on a shared machine an audit is 2 to 5 times as
# fast with shorter spins; on an idle one it is as fast (dev/attack-engine.md). Read when torch is first imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# commands as functions; what they work on; what is measured; the error for invalid input
__all__ = ["attack", "audit", "certify", "evaluate", "finetune", "look", "sense", "study", "train", "train_vlm"]
__all__ += ["transfer"]
_PLACES = dict.fromkeys(__all__, "commands.python")
__all__ += ["check", "compare", "convert", "verify"]
__all__ += ["data", "load_data", "load_model", "models", "training", "vlm"]
__all__ += ["attacks", "attention", "evaluation", "sensitivity", "studies"]
__all__ += ["UserError"]

_PLACES |= {name: f"commands.{name}.run" for name in ("check", "compare", "verify")}
_PLACES |= {"convert": "commands.convert", "load_data": "data", "load_model": "models"}


def __getattr__(name: str) -> Any:
    """Import submodules on first access, so that ``antiphase --help`` is fast."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"antiphase.{_PLACES[name]}"), name)
    if name == "open":
        return importlib.import_module("antiphase.commands.result").open_result
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("antiphase")
    if name in __all__:
        return importlib.import_module(f"antiphase.{name}")
    raise AttributeError(f"module 'antiphase' has no attribute {name!r}")


def __dir__() -> list[str]:
    # open is not in __all__: a star import would hide the builtin
    return sorted([*__all__, "open", "__version__", "__doc__"])
