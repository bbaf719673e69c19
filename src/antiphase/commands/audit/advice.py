"""What would make a differential model less fragile: the study of defences, where it is decided.

Of the defences that lowered DiffViT's ASR (their claim holds), that cost at most a point of clean accuracy and at most
half as much time again, the one that lowered it most is named, and those that changed it too little to matter.
``benchmarks/advice.py`` writes the numbers, ``advice.json``, from the study's rows.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from antiphase.report.words import points_interval

_MOST_LOSS, _MOST_TIME = 0.01, 1.5


def measured() -> list[dict[str, Any]]:
    """Return for each defence the verdict of its claim, what it changed, and how many times as long training took."""
    return json.loads(files("antiphase.commands.audit").joinpath("advice.json").read_text(encoding="utf-8"))


def advice(models: Sequence[Mapping[str, Any]]) -> str:
    """Return a paragraph on the first differential model that was trained as usual; empty without one."""
    model = next((one for one in models if one["attention"] == "differential" and not one.get("defended")), None)
    defences = measured()
    helped = [one for one in defences if one["verdict"] == "holds" and one["accuracy"][0] >= -_MOST_LOSS]
    helped = [one for one in helped if one.get("times", 1.0) <= _MOST_TIME]
    if model is None or not helped:
        return ""
    best = min(helped, key=lambda one: one["asr"][0])
    absent = ", ".join(one["defence"] for one in defences if one["verdict"] == "absent")
    layers, lambdas = len(model["lambda"]), ", ".join(f"{lam:.2f}" for lam in model["lambda"][:3])
    little = f"Too little to matter: {absent}. " if absent else ""
    return (
        f"In the study of defences, {best['defence']} helped DiffViTs most of those that cost little: it changed their "
        f"ASR by {points_interval(*best['asr'])} and their clean accuracy by {points_interval(*best['accuracy'])}, and "
        f"took {best.get('times', 1.0):g} times as long. {little}These are means over ε from 0.5 to 8/255 of one-layer "
        f"DiffViTs of Fashion-MNIST, {best['seeds']} training seeds; {model['name']} has {layers} "
        f"layer{'s' * (layers != 1)} with λ {lambdas}{', …' * (layers > 3)}. To try it: {best['command']}"
    )
