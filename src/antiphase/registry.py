"""What users choose by name, and where it is defined: one line registers one thing.

The tables hold strings, imported when first used, so that the command line lists its choices without importing torch.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from antiphase.errors import UserError

ATTENTION: dict[str, Any] = {
    "softmax": "antiphase.models.towers:SOFTMAX",
    "differential": "antiphase.models.towers:DIFFERENTIAL",
}
"""Kinds of attention that a tower of ours can have: an ``AttentionSpec`` each."""

LAMBDAS: dict[str, Any] = {
    "vector": "antiphase.attention.lambdas:make_vector",
    "scalar": "antiphase.attention.lambdas:make_scalar",
    "fixed": "antiphase.attention.lambdas:make_fixed",
}
"""Parameterisations of λ: a function of (``LambdaSizes``, λ_init) each."""


def find(table: Mapping[str, Any], name: str, what: str = "name") -> Any:
    """Return what a table registers under a name.

    Args:
        table: one of this module's; its values are ``"module:attribute"`` or the objects themselves.
        name: the key.
        what: the kind of thing, for the error message.

    Raises:
        UserError: the table has no such name.

    >>> find(LAMBDAS, "matrix", "parameterisation of λ")
    Traceback (most recent call last):
    antiphase.errors.UserError: parameterisation of λ 'matrix': expected one of vector, scalar, fixed
    """
    if name not in table:
        raise UserError(f"{what} {name!r}: expected one of {', '.join(table)}")
    found = table[name]
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    return getattr(importlib.import_module(module), attribute)
