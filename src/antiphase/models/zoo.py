"""Load a classifier of images in [0, 1], or a dual encoder, from a one-line specification."""

import os
from pathlib import Path
from typing import Annotated, Literal

from torch import nn

from antiphase.arguments import OWN_WORDS, Seed, validated
from antiphase.errors import UserError, shown
from antiphase.files import digest
from antiphase.models.checkpoints import raw_bytes
from antiphase.models.schemes.runs import load_run
from antiphase.models.schemes.scheme import Scheme, Wanted
from antiphase.registry import MODELS, find


@validated
def load_model(
    spec: Annotated[str, OWN_WORDS],
    *,
    random_weights: bool = False,
    seed: Seed = 0,
    lambda_init: float | Literal["depth"] | None = None,
) -> nn.Module:
    """Load a classifier of images in [0, 1], or a dual encoder, in evaluation mode, with ``model.card``.

    :func:`~antiphase.models.zero_shot_classifier` turns a dual encoder into a classifier.

    Args:
        spec: a run directory of ``antiphase train`` or ``train-clip``, or one of the forms of :func:`forms`, such as
            ``python:model.py:build``, which runs the code in that file.
        random_weights: build a ``timm:``, ``torchvision:``, ``hf:`` or ``open_clip:`` model with random weights,
            without a download.
        seed: random seed of these weights, and of all that a ``python:`` function draws from torch.
        lambda_init: λ_init of a ``diffclip:`` checkpoint, which does not contain it.

    >>> load_model("specimen:diffvit-0").card.attention
    'differential'
    """
    if not isinstance(spec, str) or not spec:
        raise UserError(
            f"model {shown(spec)}: expected a string such as 'specimen:diffvit-0', or a run directory"
        )
    scheme = scheme_of(spec)
    if random_weights and not (scheme and scheme.random):
        able = ", ".join(f"{name}:" for name in MODELS if find(MODELS, name, "scheme").random)
        raise UserError(f"model {spec!r}: --random-weights only applies to {able} models; leave it out")
    if lambda_init is not None and not spec.startswith("diffclip:"):
        words = "only applies to diffclip: checkpoints, which do not contain it; leave it out"
        raise UserError(f"model {shown(spec)}: lambda_init {shown(lambda_init)} {words}")
    if scheme is not None:
        return scheme.load(Wanted(spec, spec.partition(":")[2], random_weights, seed, lambda_init))
    if not os.path.isdir(spec):  # never raises, unlike Path.is_dir
        raise UserError(
            f"model {shown(spec)}: no such directory; expected one of DIRECTORY, {', '.join(forms())}"
        )
    return load_run(Path(spec), spec, Path(spec).resolve().name)


def scheme_of(spec: str) -> Scheme | None:
    """Return the scheme of a specification; None for a directory."""
    kind, _, name = spec.partition(":")
    return find(MODELS, kind, "scheme") if kind in MODELS and name else None


def forms() -> list[str]:
    """Return how each kind of specification is written."""
    return [find(MODELS, name, "scheme").form for name in MODELS]


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's ``repr``, parameters and buffers, and of its code if that is a user's."""
    code = getattr(getattr(model, "card", None), "code", "")
    parts: list[bytes | str] = [repr(model), *([code] if code else [])]
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        parts += [name, str(tensor.dtype), raw_bytes(tensor)]
    return digest(*parts)
