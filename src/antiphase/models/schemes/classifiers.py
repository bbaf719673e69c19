"""Classifiers of timm by name, with its pretrained weights or those of a file."""

import difflib
from typing import Any

from torch import nn

from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, shown
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.preprocessing import Normalized, assumed, of_timm, of_torchvision
from antiphase.models.schemes.scheme import Scheme, Wanted, build_to_fit, drawn_from, probe


def _load_timm(wanted: Wanted) -> nn.Module:
    import timm  # seconds to import, and our own models do not need it
    from timm.data.config import resolve_data_config

    name, file = wanted.split()
    base = name.partition(".")[0]
    if base not in timm.list_models():
        near = difflib.get_close_matches(base, timm.list_models(), 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() lists them"
        raise UserError(f"timm has no model {shown(base)}{hint}")
    try:
        with drawn_from(wanted.seed):
            if file:
                model = build_to_fit(
                    lambda **sizes: timm.create_model(name, pretrained=False, **sizes),
                    file,
                    positions="pos_embed",
                    size="img_size",
                    classes="num_classes",
                    channels="in_chans",
                )
            else:
                with offline_at_once():
                    model = timm.create_model(name, pretrained=not wanted.random_weights)
    except OFFLINE as error:
        raise UserError(
            f"timm:{name}: the weights are not available ({first_line(error)}); download them on a machine with "
            f"network access and give timm:{name}@FILE, or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), wanted.spec)
    settings: dict[str, Any] = resolve_data_config(model=model)
    channels, *side = settings["input_size"]
    channels = int(getattr(model, "in_chans", channels))
    own: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    settings["input_size"] = (channels, *(own or side))
    found = of_timm(settings, wanted.spec)
    doubts, tag = (), str(getattr(model, "pretrained_cfg", {}).get("tag") or "")
    if file and name == base:
        known = {
            each: resolve_data_config(pretrained_cfg=about.to_dict())
            for each, about in timm.models.get_arch_pretrained_cfgs(base).items()
        }
        parts = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
        like = resolve_data_config(model=model)
        others = [
            each.partition(".")[2]
            for each, own in known.items()
            if any(own[part] != like[part] for part in parts)
        ]
        doubts = assumed(wanted.spec, found, tag, others)
    num_classes = int(getattr(model, "num_classes"))  # noqa: B009 (typed as a tensor otherwise)
    card = ModelCard(
        name,
        wanted.spec,
        attention_kind(model),
        wanted.drawn,
        (channels, found.square.size, found.square.size),
        num_classes,
        class_names=imagenet_names(num_classes),
        preprocessing=found,
        doubts=doubts,
        tag="" if file or wanted.random_weights else tag,
    )
    return with_card(Normalized(model, found.mean, found.std), card)


def imagenet_names(num_classes: int) -> tuple[str, ...] | None:
    """Return the WordNet ids of the classes of an ImageNet model; None if the number of classes is not ImageNet's."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    known = infer_imagenet_subset({"num_classes": num_classes})
    return tuple(ImageNetInfo(known).label_names()) if known else None


TIMM = Scheme(
    "timm:NAME",
    "any timm classifier, with its pretrained weights, or those of timm:NAME@FILE",
    _load_timm,
    random=True,
)


def _load_torchvision(wanted: Wanted) -> nn.Module:
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
    _load_torchvision,
    random=True,
)
