"""Classifiers of torchvision by name, with its default weights or those of a file."""

import difflib
from pathlib import Path
from typing import Any

from torch import nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line, shown
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.normalize import Normalized
from antiphase.models.schemes.fitting import build_to_fit
from antiphase.models.schemes.probing import probe
from antiphase.models.schemes.scheme import Scheme, Wanted, drawn_from
from antiphase.models.schemes.timm import imagenet_names


def _load(wanted: Wanted) -> nn.Module:
    from torchvision import models  # a second to import

    name, file = wanted.split()
    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        hint = (
            f"; did you mean {', '.join(near)}?"
            if near
            else "; torchvision.models.list_models() has them all"
        )
        raise UserError(f"torchvision has no classifier {shown(name)}{hint}")
    weights: Any = models.get_model_weights(name).DEFAULT  # type: ignore[attr-defined]
    settings = weights.transforms()
    try:
        with drawn_from(wanted.seed):
            if file:
                model = build_to_fit(
                    lambda **sizes: models.get_model(name, weights=None, **sizes),
                    checkpoints.read_state(Path(file).expanduser()), file, positions="pos_embedding",
                    size="image_size", classes="num_classes",
                )  # fmt: skip
            else:
                model = models.get_model(name, weights=None if wanted.random_weights else weights)
    except OFFLINE as error:
        raise UserError(
            f"torchvision:{name}: the weights are not available ({first_line(error)}); download {weights.url} on a "
            f"machine with network access and give torchvision:{name}@FILE, or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), wanted.spec)
    size = int(getattr(model, "image_size", settings.crop_size[0]))
    wrapped = Normalized(model, settings.mean, settings.std).eval()
    found = probe(wrapped, wanted.spec, (3, size, size))
    card = ModelCard(
        name, wanted.spec, attention_kind(model), wanted.drawn, found.image_shape, found.num_classes,
        class_names=imagenet_names(found.num_classes),
    )  # fmt: skip
    return with_card(wrapped, card)


TORCHVISION = Scheme(
    "torchvision:NAME",
    "any torchvision classifier, with its default weights, or those of torchvision:NAME@FILE",
    _load,
    random=True,
)
