"""Classifiers of timm and torchvision by name, with their pretrained weights or those of a file."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from antiphase.data.hub import offline_at_once
from antiphase.errors import UserError, shown
from antiphase.models.checkpoints import check_finite
from antiphase.models.preprocessing import Normalized, Preprocessing, of_timm, of_torchvision
from antiphase.models.schemes.scheme import (
    Scheme,
    Wanted,
    build_to_fit,
    check_known,
    downloading,
    drawn_from,
    probe,
)


def _load_timm(wanted: Wanted) -> nn.Module:
    import timm  # seconds to import, and our own models do not need it
    from timm.data.config import resolve_data_config

    name, file = wanted.split()
    base = name.partition(".")[0]
    check_known(base, timm.list_models(), "timm has no model", "timm.list_models() lists them")

    def make(**sizes: int) -> nn.Module:
        return timm.create_model(name, pretrained=not (file or wanted.random_weights), **sizes)

    names = {"positions": "pos_embed", "size": "img_size", "classes": "num_classes", "channels": "in_chans"}
    with offline_at_once():
        model = _made(wanted, make, names, "download them")
    settings: dict[str, Any] = resolve_data_config(model=model)
    channels, *side = settings["input_size"]
    patches: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    settings["input_size"] = (int(getattr(model, "in_chans", channels)), *(patches or side))
    used = of_timm(settings, wanted.spec)
    others: list[str] = []
    if file and name == base:
        parts = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
        for tagged, about in timm.models.get_arch_pretrained_cfgs(base).items():
            other = resolve_data_config(pretrained_cfg=about.to_dict())
            others += [tagged.partition(".")[2]] * any(other[part] != settings[part] for part in parts)
    tag = str(getattr(model, "pretrained_cfg", {}).get("tag") or "")
    return _loaded(wanted, Normalized(model, used.mean, used.std), model.num_classes, used, tag, others)


def _made(wanted: Wanted, make: Callable[..., nn.Module], names: dict[str, str], fix: str) -> Any:
    """Return what ``make`` builds, with the weights of the specification's file if it names one."""
    spec = wanted.spec.partition("@")[0]
    fix = f"{fix} on a machine with network access and give {spec}@FILE, or build the model with --random-weights"
    with drawn_from(wanted.seed), downloading(f"{spec}: the weights are not available", fix):
        _, file = wanted.split()
        model = build_to_fit(make, file, **names) if file else make()
    check_finite(model.state_dict(), wanted.spec)
    return model


def _loaded(
    wanted: Wanted, model: nn.Module, count: int, used: Preprocessing, tag: str, others: Sequence[str]
) -> nn.Module:
    """Return the model with its card.

    A file of weights, ``SCHEME:NAME@FILE``, does not tell its preprocessing: ``used`` is that of the pretrained weights
    ``tag``. ``others`` are those of the same architecture with another one.
    """
    name, file = wanted.split()
    doubts: tuple[str, ...] = ()
    if file and others:
        named = wanted.spec.partition("@")[0]
        other = f"; for that of {others[0]} give {named}.{others[0]}@{file}" if others[0] else ""
        words = f"a file of weights does not tell its preprocessing; used is that of {tag}, {used}"
        doubts = (f"{wanted.spec}: {words}{other}",)
    facts = {"preprocessing": used, "doubts": doubts, "tag": "" if file or wanted.random_weights else tag}
    return wanted.loaded(model, name, used.image_shape, count, class_names=imagenet_names(count), **facts)


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
        expected = ", ".join(choices.__members__)
        raise UserError(f"torchvision:{name} has no weights {shown(tag)}; expected one of {expected}")
    weights = choices[tag] if tag else choices.DEFAULT

    def make(**sizes: int) -> nn.Module:
        return models.get_model(name, weights=None if file or wanted.random_weights else weights, **sizes)

    names = {"positions": "pos_embedding", "size": "image_size", "classes": "num_classes"}
    model = _made(wanted, make, names, f"download {weights.url}")
    size = getattr(model, "image_size", None)  # of a vision transformer, from its position embeddings
    preset = weights.transforms()
    used = of_torchvision(preset, wanted.spec, size)
    others = [one.name for one in choices if not tag and str(one.transforms()) != str(preset)]
    if size not in (None, *preset.crop_size):
        others.append("")  # resized
    wrapped = Normalized(model, used.mean, used.std).eval()
    _, count, _ = probe(wrapped, wanted.spec, used.image_shape)
    return _loaded(wanted, wrapped, count, used, weights.name, others)


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
