"""Classifiers of torchvision by name, with its default weights or those of a file."""

import difflib
from typing import Any

from torch import nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line, shown
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.normalize import Normalized
from antiphase.models.preprocessing import assumed, of_torchvision
from antiphase.models.schemes.fitting import build_to_fit
from antiphase.models.schemes.probing import probe
from antiphase.models.schemes.scheme import Scheme, Wanted, drawn_from
from antiphase.models.schemes.timm import imagenet_names


def _load(wanted: Wanted) -> nn.Module:
    from torchvision import models  # a second to import

    named, file = wanted.split()
    name, _, tag = named.partition(".")
    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        hint = (
            f"; did you mean {', '.join(near)}?"
            if near
            else "; torchvision.models.list_models() has them all"
        )
        raise UserError(f"torchvision has no classifier {shown(name)}{hint}")
    choices: Any = models.get_model_weights(name)
    if tag and tag not in choices.__members__:
        raise UserError(
            f"torchvision:{name} has no weights {shown(tag)}; expected one of {', '.join(choices.__members__)}"
        )
    weights = choices[tag] if tag else choices.DEFAULT
    try:
        with drawn_from(wanted.seed):
            if file:
                model = build_to_fit(
                    lambda **sizes: models.get_model(name, weights=None, **sizes),
                    file,
                    positions="pos_embedding",
                    size="image_size",
                    classes="num_classes",
                )
            else:
                model = models.get_model(name, weights=None if wanted.random_weights else weights)
    except OFFLINE as error:
        raise UserError(
            f"torchvision:{name}: the weights are not available ({first_line(error)}); download {weights.url} on a "
            f"machine with network access and give torchvision:{name}@FILE, or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), wanted.spec)
    size = getattr(model, "image_size", None)  # of a vision transformer, from its position embeddings
    preset = weights.transforms()
    found = of_torchvision(preset, wanted.spec, size)
    others = [each.name for each in choices if str(each.transforms()) != str(preset)]
    resized = size not in (None, *preset.crop_size)
    doubts = assumed(wanted.spec, found, weights.name, others[: not tag], resized) if file else ()
    wrapped = Normalized(model, found.mean, found.std).eval()
    probed = probe(wrapped, wanted.spec, (3, found.square.size, found.square.size))
    card = ModelCard(
        named,
        wanted.spec,
        attention_kind(model),
        wanted.drawn,
        probed.image_shape,
        probed.num_classes,
        class_names=imagenet_names(probed.num_classes),
        preprocessing=found,
        doubts=doubts,
        tag="" if file or wanted.random_weights else weights.name,
    )
    return with_card(wrapped, card)


TORCHVISION = Scheme(
    "torchvision:NAME",
    "any torchvision classifier, with its default weights, those of NAME.WEIGHTS or of NAME@FILE",
    _load,
    random=True,
)
