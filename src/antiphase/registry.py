"""What users choose by name, and where it is defined: one line registers one thing.

The tables hold strings, imported when first used, so that the command line lists its choices without importing torch.
"""

import importlib
from typing import Any

from antiphase.errors import UserError

# name: "module:attribute", or the object itself
Table = dict[str, Any]

ATTACKS: Table = {
    "pgd": "antiphase.attacks.pgd:PGD",
    "patch": "antiphase.attacks.patch:PATCH",
    "fgsm": "antiphase.attacks.pgd:FGSM",
    "apgd-ce": "antiphase.attacks.apgd:APGD_CE",
    "apgd-dlr": "antiphase.attacks.apgd:APGD_DLR",
    "apgd-t": "antiphase.attacks.apgd:APGD_T",
    "fab": "antiphase.attacks.fab:FAB",
    "fab-t": "antiphase.attacks.fab:FAB_T",
    "square": "antiphase.attacks.square:SQUARE",
    "carlini-wagner": "antiphase.attacks.carlini_wagner:CARLINI_WAGNER",
    "fmn": "antiphase.attacks.fmn:FMN",
    "noise": "antiphase.attacks.noise:NOISE",
    "autoattack": "antiphase.attacks.autoattack:AUTOATTACK",
}

# evaluation tasks, in the order of rows and reports
TASKS: Table = {
    "retrieval": "antiphase.evaluation.retrieval:TASK",
    "zero-shot": "antiphase.evaluation.zero_shot:TASK",
    "probe": "antiphase.evaluation.probe:TASK",
    "few-shot": "antiphase.evaluation.few_shot:TASK",
    "mmvp": "antiphase.evaluation.mmvp:TASK",
    "pope": "antiphase.vlm.pope:TASK",
    "caption": "antiphase.vlm.answers:TASK",
}

QUESTIONS: Table = dict.fromkeys(("pope", "emoji-pope"), "antiphase.commands.audit.answers:attack")
"""Data that are questions about images: what attacks the answers of models."""

# estimators of the local Lipschitz constant, in the order of rows and tables
ESTIMATORS: Table = {
    "sampled mean": "antiphase.sensitivity.lipschitz:SAMPLED_MEAN",
    "sampled maximum": "antiphase.sensitivity.lipschitz:SAMPLED_MAXIMUM",
    "power iteration": "antiphase.sensitivity.lipschitz:POWER_ITERATION",
    "gradient ascent": "antiphase.sensitivity.lipschitz:GRADIENT_ASCENT",
    "local maximum": "antiphase.sensitivity.lipschitz:LOCAL_MAXIMUM",
    "exact": "antiphase.sensitivity.lipschitz:EXACT",
}


MODELS: Table = {
    "specimen": "antiphase.models.zoo:_specimen",
    "python": "antiphase.models.schemes.python_code:_python",
    "timm": "antiphase.models.schemes.libraries:_timm",
    "torchvision": "antiphase.models.schemes.libraries:_torchvision",
    "hf": "antiphase.models.schemes.libraries:_hugging_face",
    "open_clip": "antiphase.models.schemes.libraries:_open_clip",
    "diffclip": "antiphase.models.schemes.diffclip:_diffclip",
    "robustbench": "antiphase.models.schemes.robustbench:_robustbench",
    "hub": "antiphase.models.zoo:_hub",
}
"""Schemes of model specifications, the part before the first colon: a ``Scheme`` each."""

ATTENTION: Table = {
    "softmax": "antiphase.models.transformer:SOFTMAX",
    "differential": "antiphase.models.transformer:DIFFERENTIAL",
    "normed": "antiphase.models.transformer:NORMED",
}
"""Kinds of attention that a tower of ours can have: an ``AttentionSpec`` each."""

RUNS: Table = {"vlm": "antiphase.vlm.checkpoint:load_vlm"}
"""Functions that load a run directory by the ``kind`` in its recipe; classifiers and CLIPs need none."""

VITS: dict[str, str] = {"vit": "softmax", "diffvit": "differential", "vit-norm": "normed"}
"""Vision transformers that can be trained, by the kind of attention that each has."""

CLIPS: Table = {
    "clip": "antiphase.models.clip:CLIP_VARIANT",
    "diffclip": "antiphase.models.clip:DIFFCLIP",
    "diffclip-depth": "antiphase.models.clip:DIFFCLIP_DEPTH",
    "diffclip-vision": "antiphase.models.clip:DIFFCLIP_VISION",
    "diffclip-text": "antiphase.models.clip:DIFFCLIP_TEXT",
}
"""CLIPs that can be trained: a ``ClipVariant`` each."""

VARIANTS: Table = {
    "v1": "antiphase.attention.variants:V1",
    "v2": "antiphase.attention.variants:V2",
    "grouped": "antiphase.attention.variants:GROUPED",
    "gated": "antiphase.attention.variants:GATED",
    "dint": "antiphase.attention.variants:DINT",
}
"""Variants of differential attention: a ``Variant`` each."""

DEFENCES: Table = {
    "map-jacobian": "antiphase.training.defences.map_jacobian:MAP_JACOBIAN",
    "jasmin": "antiphase.training.defences.jasmin:JASMIN",
    "alignment": "antiphase.training.defences.alignment:ALIGNMENT_HINGE",
    "lambda-rho": "antiphase.training.defences.alignment:LAMBDA_RHO",
    "input-gradient": "antiphase.training.defences.input_gradient:INPUT_GRADIENT",
    "trades": "antiphase.training.defences.trades:TRADES",
    "mart": "antiphase.training.defences.trades:MART",
    "ema": "antiphase.training.defences.weights:EMA",
    "awp": "antiphase.training.defences.weights:AWP",
}
"""What ``--defend`` adds to the training of a classifier: a ``Defence`` each."""

LAMBDAS: Table = {
    "vector": "antiphase.attention.lambdas:make_vector",
    "scalar": "antiphase.attention.lambdas:make_scalar",
    "fixed": "antiphase.attention.lambdas:make_fixed",
    "zero": "antiphase.attention.lambdas:make_zero",
    "gate": "antiphase.attention.lambdas:make_gate",
}
"""Parameterisations of λ: a function of (``LambdaSizes``, λ_init) each."""

SCHEDULES: Table = {
    "constant": "antiphase.attention.lambdas:constant",
    "depth": "antiphase.attention.lambdas:by_depth",
}
"""Schedules of λ_init: a function from the λ_init of a model to one from the index of a layer to its λ_init."""


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
