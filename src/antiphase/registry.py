"""Everything that is found by name: one line registers one thing, which is imported when it is first used."""

import importlib
from typing import Any

from antiphase.errors import UserError

# name: "module:attribute", or the object itself
Table = dict[str, Any]

ATTACKS: Table = {
    "pgd": "antiphase.attacks.pgd:PGD",
    "patch": "antiphase.attacks.patch:PATCH",
    "fgsm": "antiphase.attacks.fgsm:FGSM",
    "apgd-ce": "antiphase.attacks.apgd:APGD_CE",
    "apgd-dlr": "antiphase.attacks.apgd:APGD_DLR",
    "apgd-t": "antiphase.attacks.apgd:APGD_T",
    "fab": "antiphase.attacks.fab:FAB",
    "fab-t": "antiphase.attacks.fab:FAB_T",
    "square": "antiphase.attacks.square:SQUARE",
    "carlini-wagner": "antiphase.attacks.carlini_wagner:CARLINI_WAGNER",
    "noise": "antiphase.attacks.noise:NOISE",
    "autoattack": "antiphase.attacks.autoattack:AUTOATTACK",
}


def find(table: Table, name: str, kind: str) -> Any:
    """Return the object that is registered under a name.

    Args:
        table: one of the tables above.
        name: one of its keys.
        kind: what the table holds, for the error message.

    Raises:
        UserError: for a name that is not registered.
    """
    if name not in table:
        raise UserError(f"{kind} {name!r}: expected one of {', '.join(table)}")
    found = table[name]
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    return getattr(importlib.import_module(module), attribute)
