"""Studies: tables and figures from many trainings and measurements, each run once and stored.

What a study of your own needs is here; ``antiphase study new`` writes one.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphase.studies.cells import *  # noqa: F403
    from antiphase.studies.claims import *  # noqa: F403
    from antiphase.studies.estimation import *  # noqa: F403
    from antiphase.studies.figures import *  # noqa: F403
    from antiphase.studies.spec import *  # noqa: F403

# by module, which is imported when one of its names is first used: the command line needs none
_HOMES = {
    "spec": ("Cell", "Profile", "RowsByTable", "Study"),
    "cells": (
        *("Accuracy", "Attack", "AttackAnswers", "Certified", "Evaluate", "Given", "Margin", "Model", "Own", "Radius"),
        *("Relevance", "Sense", "TrainClip", "TrainVit", "TrainVlm", "Transfer", "Untrained", "Variant", "given"),
    ),
    "figures": ("BY_SEED", "ESTIMATES", "IN_255THS", "Artefact", "Panel", "Plot", "Table", "panels", "tables"),
    "claims": ("Check", "Claim", "Unit", "above", "apart", "higher", "no_worse", "on_average"),
    "estimation": "ASR CORRECT SAMPLE SEED contrast difference estimates mean over peak share_above trend".split(),  # noqa: SIM905
}

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"antiphase.studies.{module}"), name)
    raise AttributeError(f"module 'antiphase.studies' has no attribute {name!r}")
