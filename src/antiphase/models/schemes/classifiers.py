"""Classifiers of timm and torchvision by name, with their pretrained weights or those of a file."""

from typing import Any

from torch import nn

from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, shown
from antiphase.models.checkpoints import check_finite
from antiphase.models.preprocessing import Normalized, assumed, of_timm, of_torchvision
from antiphase.models.schemes.scheme import Scheme, Wanted, build_to_fit, check_known, drawn_from, probe


def _load_timm(wanted: Wanted) -> nn.Module:
    import timm  # seconds to import, and our own models do not need it
    from timm.data.config import resolve_data_config

    name, file = wanted.split()
    base = name.partition(".")[0]
    check_known(base, timm.list_models(), "timm has no model", "timm.list_models() lists them")

    def make(**sizes: int) -> nn.Module:
        return timm.create_model(name, pretrained=not (file or wanted.random_weights), **sizes)

    names = {"positions": "pos_embed", "size": "img_size", "classes": "num_classes", "channels": "in_chans"}
    try:
        with drawn_from(wanted.seed), offline_at_once():
            model: Any = build_to_fit(make, file, **names) if file else make()
    except OFFLINE as error:
        raise UserError(
            f"timm:{name}: the weights are not available ({first_line(error)}); download them on a machine with "
            f"network access and give timm:{name}@FILE, or build the model with --random-weights"
        ) from None
    check_finite(model.state_dict(), wanted.spec)
    settings: dict[str, Any] = resolve_data_config(model=model)
    channels, *side = settings["input_size"]
    patches: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    settings["input_size"] = (int(getattr(model, "in_chans", channels)), *(patches or side))
    used = of_timm(settings, wanted.spec)
    doubts, tag = (), str(getattr(model, "pretrained_cfg", {}).get("tag") or "")
    if file and name == base:
        configs = timm.models.get_arch_pretrained_cfgs(base).items()
        known = {each: resolve_data_config(pretrained_cfg=about.to_dict()) for each, about in configs}
        parts = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
        others = [
            each for each, other in known.items() if any(other[part] != settings[part] for part in parts)
        ]
        doubts = assumed(wanted.spec, used, tag, [each.partition(".")[2] for each in others])
    count = int(model.num_classes)
    return wanted.loaded(
        Normalized(model, used.mean, used.std),
        name,
        used.image_shape,
        count,
        class_names=imagenet_names(count),
        preprocessing=used,
        doubts=doubts,
        tag="" if file or wanted.random_weights else tag,
    )


def imagenet_names(num_classes: int) -> tuple[str, ...] | None:
    """Return the WordNet ids of the classes of an ImageNet model; None if the number of classes is not ImageNet's."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    known = infer_imagenet_subset({"num_classes": num_classes})
    return tuple(ImageNetInfo(known).label_names()) if known else None


def _load_torchvision(wanted: Wanted) -> nn.Module:
    from torchvision import models  # a second to import

    named, file = wanted.split()
    name, _, tag = named.partition(".")
    known = models.list_models(module=models)
    check_known(name, known, "torchvision has no classifier", "torchvision.models.list_models() has them all")
    choices: Any = models.get_model_weights(name)
    if tag and tag not in choices.__members__:
        raise UserError(
            f"torchvision:{name} has no weights {shown(tag)}; expected one of {', '.join(choices.__members__)}"
        )
    weights = choices[tag] if tag else choices.DEFAULT

    def make(**sizes: int) -> nn.Module:
        return models.get_model(name, weights=None if file or wanted.random_weights else weights, **sizes)

    names = {"positions": "pos_embedding", "size": "image_size", "classes": "num_classes"}
    try:
        with drawn_from(wanted.seed):
            model = build_to_fit(make, file, **names) if file else make()
    except OFFLINE as error:
        raise UserError(
            f"torchvision:{name}: the weights are not available ({first_line(error)}); download {weights.url} on a "
            f"machine with network access and give torchvision:{name}@FILE, or build the model with --random-weights"
        ) from None
    check_finite(model.state_dict(), wanted.spec)
    size = getattr(model, "image_size", None)  # of a vision transformer, from its position embeddings
    preset = weights.transforms()
    used = of_torchvision(preset, wanted.spec, size)
    others = [each.name for each in choices if str(each.transforms()) != str(preset)]
    resized = size not in (None, *preset.crop_size)
    wrapped = Normalized(model, used.mean, used.std).eval()
    shape, count, _ = probe(wrapped, wanted.spec, used.image_shape)
    return wanted.loaded(
        wrapped,
        named,
        shape,
        count,
        class_names=imagenet_names(count),
        preprocessing=used,
        doubts=assumed(wanted.spec, used, weights.name, others[: not tag], resized) if file else (),
        tag="" if file or wanted.random_weights else weights.name,
    )


TIMM = Scheme(
    "timm:NAME",
    "any timm classifier, with its pretrained weights, or those of timm:NAME@FILE",
    _load_timm,
    random=True,
)
TORCHVISION = Scheme(
    "torchvision:NAME",
    "any torchvision classifier, with its default weights, those of NAME.WEIGHTS or of NAME@FILE",
    _load_torchvision,
    random=True,
)
