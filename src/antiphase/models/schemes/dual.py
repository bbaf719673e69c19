"""Dual encoders of open_clip, and the released checkpoints of DiffCLIP."""

import math
from typing import Literal

from torch import nn

from antiphase.errors import UserError, shown
from antiphase.models.card import ModelCard, with_card
from antiphase.models.dual_encoders import load_open_clip, load_released
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.scheme import Scheme, Wanted


def _load_open_clip(wanted: Wanted) -> nn.Module:
    model = load_open_clip(wanted.name, wanted.random_weights, wanted.seed)
    card = ModelCard(
        wanted.name,
        wanted.spec,
        attention_kind(model),
        wanted.drawn,
        model.image_shape,
        0,
        preprocessing=model.preprocessing,
        tag="" if wanted.random_weights else wanted.name.partition("/")[2],
    )
    return with_card(model, card)


def _load_released(wanted: Wanted) -> nn.Module:
    path, _, setting = wanted.name.partition("#")
    if setting and wanted.lambda_init is not None:
        raise UserError(
            f"{wanted.spec}: lambda_init {shown(wanted.lambda_init)} is given twice; leave one of them out"
        )
    chosen = read_lambda_init(wanted.spec, setting) if setting else wanted.lambda_init
    model = load_released(path, chosen)
    return with_card(model, ModelCard(path, wanted.spec, attention_kind(model), None, model.image_shape, 0))


def read_lambda_init(spec: str, setting: str) -> float | Literal["depth"]:
    """Return the λ_init behind the ``#`` of a ``diffclip:`` specification.

    Raises:
        UserError: the setting is another one, or no number.
    """
    name, _, value = setting.partition("=")
    if name == "lambda_init" and value == "depth":
        return "depth"
    try:
        if name != "lambda_init" or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    except ValueError:
        raise UserError(
            f"{spec}: expected #lambda_init=0.8 (or another number) or #lambda_init=depth"
        ) from None


OPEN_CLIP = Scheme(
    "open_clip:NAME/TAG", "any open_clip model, with the pretrained weights TAG", _load_open_clip, random=True
)
DIFFCLIP = Scheme(
    "diffclip:PATH#lambda_init=0.8",
    "a released checkpoint of DiffCLIP or its baseline, a file or a hub repository",
    _load_released,
)
