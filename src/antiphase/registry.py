"""What users choose by name, and where it is defined: a line of ``registry.toml`` registers one thing.

The tables hold strings, imported when first used, so that the command line lists its choices without importing torch.
"""

import importlib
import tomllib
from pathlib import Path
from typing import Any

from antiphase.errors import UserError

# name: "module:attribute", or the object itself
Table = dict[str, Any]

_TABLES: dict[str, Table] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ATTACKS = _TABLES["ATTACKS"]
TASKS = _TABLES["TASKS"]
QUESTIONS = _TABLES["QUESTIONS"]
ESTIMATORS = _TABLES["ESTIMATORS"]
MODELS = _TABLES["MODELS"]
ATTENTION = _TABLES["ATTENTION"]
RUNS = _TABLES["RUNS"]
VITS = _TABLES["VITS"]
CLIPS = _TABLES["CLIPS"]
VARIANTS = _TABLES["VARIANTS"]
DEFENCES = _TABLES["DEFENCES"]
LAMBDAS = _TABLES["LAMBDAS"]
SCHEDULES = _TABLES["SCHEDULES"]
COMMANDS = _TABLES["COMMANDS"]


def find(table: Table, name: str, kind: str) -> Any:
    """Return the object that is registered under a name; ``kind`` says in the error what the table holds."""
    if name not in table:
        raise UserError(f"{kind} {name!r}: expected one of {', '.join(table)}")
    return imported(table[name])


def imported(place: Any) -> Any:
    """Return the object at ``"module:attribute"``; what is no text is the object itself."""
    if not isinstance(place, str):
        return place
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
