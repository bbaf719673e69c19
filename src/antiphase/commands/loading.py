"""Models and the device they run on, as the options name them."""

import os
import shutil
import warnings
from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from antiphase.commands.live_objects import live_object
from antiphase.commands.options import Options
from antiphase.errors import UserError, first_line, shown
from antiphase.processes import this_process
from antiphase.terminal import say

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_models(
    specs: Sequence[str], place: "torch.device", random_weights: bool = False, answering: bool = False
) -> list["nn.Module"]:
    """Load models onto a device.

    Args:
        specs: specifications.
        place: the device.
        random_weights: whether the models of other libraries among them are built without a download.
        answering: whether models that answer questions in words are of use.

    Raises:
        UserError: if a model cannot be loaded or is of no use, or random weights are asked for and none of them can
            have them.
    """
    from antiphase.models.zeroshot import is_dual_encoder
    from antiphase.models.zoo import load_model, scheme_of
    from antiphase.modules import differentiable
    from antiphase.vlm.answers import answers_questions

    names = [spec.strip() for spec in specs]
    able = [(scheme := scheme_of(name)) is not None and scheme.random for name in names]
    if random_weights and not any(able):
        raise UserError(
            f"--random-weights: only timm:, torchvision:, hf: and open_clip: models take it, not {', '.join(names)}; "
            "leave it out"
        )
    _warn_of_code(names)
    loaded = []
    for name, random in zip(names, able, strict=True):
        model = live_object(name)
        if model is None:
            model = load_model(name, random_weights=random_weights and random)
        loaded.append(with_kind_found(differentiable(model)).to(place))
    for name, model in zip(names, loaded, strict=True):
        card = getattr(model, "card", None)
        if answers_questions(model) and not answering:
            raise UserError(
                f"{name}: a vision-language model, which answers questions; give --data pope or emoji-pope to "
                "antiphase evaluate, audit or attack"
            )
        classifies = answers_questions(model) or card is None or card.num_classes or is_dual_encoder(model)
        if not classifies:
            raise UserError(
                f"{name}: neither classifies images nor encodes images and texts; in Python, "
                "antiphase.sensitivity.attention_maps shows the attention of such a model"
            )
    return loaded


def with_kind_found(model: "nn.Module") -> "nn.Module":
    """Note in the card of a model of the user's own code the kind of attention and the λ that it is found to have."""
    import torch

    from antiphase.models.card import ModelCard, is_own_code, with_card
    from antiphase.models.zeroshot import as_dual_encoder, is_dual_encoder
    from antiphase.modules import device_of
    from antiphase.sensitivity.maps import attention_of

    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard) or not is_own_code(model):
        return model
    images = torch.rand(2, *card.image_shape, generator=torch.Generator().manual_seed(0))
    call = as_dual_encoder(model).encode_image if is_dual_encoder(model) else None
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng():
            kind, lambdas = attention_of(model, images.to(device_of(model)), call)
    except Exception:  # the user's code
        return model
    return with_card(model, replace(card, attention=kind, lambdas=lambdas))


def check_code(options: Options, allowed: bool, whose: str) -> None:
    """Refuse options of a file that run code, unless that was allowed with ``--run-code``."""
    for value in options.model_dump(mode="json").values():
        for word in value if isinstance(value, list) else [value]:
            if str(word).strip().startswith("python:") and not allowed:
                raise UserError(
                    f"{whose}: {str(word).strip()} runs code; read that code, then add --run-code"
                )


_said: set[str] = set()


def _warn_of_code(specs: Sequence[str]) -> None:
    """Say once for each file that a model's code is run."""
    for place in dict.fromkeys(spec.split(":")[1] for spec in specs if spec.startswith("python:")):
        file = os.path.abspath(place)
        if file not in _said and this_process().first:
            say(f"antiphase: runs the code in {place}", err=True)
        _said.add(file)


def check_compiler(place: "torch.device") -> None:
    """Refuse torch.compile on a CPU without the C++ compiler that it calls."""
    compiler = os.environ.get("CXX", "g++")
    if place.type == "cpu" and shutil.which(compiler) is None:
        raise UserError(
            f"--compile: no C++ compiler {compiler!r} on the PATH; install one or leave out --compile"
        )


def check_twins(models: Sized, twins: Sized) -> None:
    """Refuse twins that are not one for each model, unless there are none."""
    if twins and len(twins) != len(models):
        raise UserError(
            f"against: {len(twins)} twins for models: {len(models)}; give one twin for each, in the models' order"
        )


def find_device(name: str) -> "torch.device":
    """Return the device of a name, which can be used; auto takes a GPU where there is one."""
    import torch

    if name == "auto":
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # each of torchrun's processes has one
        name = own if torch.cuda.is_available() else "cpu"
    try:
        with warnings.catch_warnings(action="ignore"):  # of those that are deprecated
            device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" has no values
    except Exception as error:  # torch imports a module for some, and raises anything
        reason = first_line(error)
        raise UserError(f"device {shown(name)} cannot be used ({reason}); try --device cpu") from None
    if device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        cudnn.conv.fp32_precision = "ieee"  # torch's default would round images to 10 bits
    return device
