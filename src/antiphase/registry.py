"""What users choose by name, and where it is defined: one line registers one thing.

The tables hold strings, imported when first used, so that the command line lists its choices without importing torch.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from antiphase.errors import UserError

TASKS = {
    "retrieval": "antiphase.evaluation.tasks.retrieval:TASK",
    "zero-shot": "antiphase.evaluation.tasks.zero_shot:TASK",
    "probe": "antiphase.evaluation.tasks.probe:TASK",
    "few-shot": "antiphase.evaluation.tasks.few_shot:TASK",
    "mmvp": "antiphase.evaluation.tasks.mmvp:TASK",
}
"""Evaluation tasks, in the order of rows and reports."""


def find(table: Mapping[str, str], name: str, what: str = "name") -> Any:
    """Import and return what a table registers under a name.

    Args:
        table: one of this module's.
        name: the key.
        what: the kind of thing, for the error message.

    Raises:
        UserError: the table has no such name.

    >>> find(TASKS, "prob", "task")
    Traceback (most recent call last):
    antiphase.errors.UserError: task 'prob': expected one of retrieval, zero-shot, probe, few-shot, mmvp
    """
    if name not in table:
        raise UserError(f"{what} {name!r}: expected one of {', '.join(table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
