"""Models, images and devices as the options name them; objects of the caller are held under names.

So options and records stay text: ``given:NAME`` stands for an object during a call.
"""

import copy
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import chain, count
from typing import Any, Literal

import torch
from torch import nn

from antiphase.commands.options import Options
from antiphase.data import ImageSet, load_data
from antiphase.data.images import FileImages
from antiphase.errors import UserError, refusing, shown
from antiphase.models.card import ModelCard, attention_kind, is_hooked, is_own_code, square_of, with_card
from antiphase.models.own_state import own_state
from antiphase.models.schemes.python_code import stated_class_names
from antiphase.models.schemes.scheme import named_spec
from antiphase.models.trained import code_of
from antiphase.models.zeroshot import as_dual_encoder, is_dual_encoder
from antiphase.models.zoo import load_model, named, scheme_of
from antiphase.modules import device_of, differentiable, evaluating, running
from antiphase.processes import this_process
from antiphase.sensitivity.maps import attention_of
from antiphase.terminal import say
from antiphase.vlm.answers import answers_questions

PREFIX = "given:"
_HELD: ContextVar[Mapping[str, Any]] = ContextVar("held")
_said: set[str] = set()  # files whose code is run


def live_object(spec: Any) -> Any:
    """Return the object of a specification; None for any other specification."""
    if not isinstance(spec, str) or not spec.startswith(PREFIX):
        return None
    if spec not in (objects := _HELD.get({})):
        raise UserError(f"{spec}: was an object of another Python session; expected a specification, or the object")
    return objects[spec]


def load_models(
    specs: Sequence[str],
    place: torch.device,
    random_weights: bool = False,
    answering: bool = False,
    seed: int = 0,
    resize: Literal["squash", "crop"] | None = None,
) -> list[nn.Module]:
    """Load models onto a device; refuse those that answer questions, unless ``answering``."""
    names = [spec.strip() for spec in specs]
    able = [(scheme := scheme_of(name)) is not None and scheme.random for name in names]
    if random_weights and not any(able):
        takers = "only timm:, torchvision:, hf: and open_clip: models take it"
        raise UserError(f"--random-weights: {takers}, not {', '.join(names)}; leave it out")
    for place_of_code in filter(None, dict.fromkeys(map(code_of, names))):  # said once for each file
        if (file := os.path.abspath(place_of_code)) not in _said and this_process().first:
            say(f"antiphase: runs the code in {place_of_code}", err=True)
        _said.add(file)
    loaded = []
    for text, random in zip(names, able, strict=True):
        name, spec, stated = named_spec(text)
        if (model := live_object(spec)) is None:
            model = load_model(text, random_weights=random_weights and random, seed=seed)
        elif name or stated is not None:
            model = named(copy.copy(model), name, stated)  # the caller's own keeps its card
        if resize is not None:
            model, square = copy.copy(model), square_of(model)  # the caller's own keeps its square
            object.__setattr__(model, "square", square.resized(resize))
        loaded.append(with_kind_found(differentiable(model)).to(place))
        card, answers = getattr(model, "card", None), answers_questions(model)
        if answers and not answering:
            fix = "give --data pope or emoji-pope to antiphase evaluate, audit or attack"
            raise UserError(f"{text}: a vision-language model, which answers questions; {fix}")
        if not (answers or card is None or card.num_classes or is_dual_encoder(model)):
            fix = "in Python, antiphase.sensitivity.attention_maps shows the attention of such a model"
            raise UserError(f"{text}: neither classifies images nor encodes images and texts; {fix}")
    return loaded


def with_kind_found(model: nn.Module) -> nn.Module:
    """Note in the card of a user's own model its state, and the attention and λ that it is found to have."""
    card = getattr(model, "card", None)
    if not isinstance(card, ModelCard) or not (is_own_code(model) or is_hooked(model)):
        return model
    images = torch.rand(2, *card.image_shape, generator=torch.Generator().manual_seed(0))
    kind, lambdas = measured_attention(model, images)
    card = replace(card, state=own_state(model))  # after these images, of which it may keep something
    return with_card(model, card if kind is None else replace(card, attention=kind, lambdas=lambdas))


def measured_attention(model: nn.Module, images: torch.Tensor) -> tuple[Any, tuple[float, ...]]:
    """Return kind of attention and mean λ of each layer as found on images; None and none if the model fails."""
    call = as_dual_encoder(model).encode_image if is_dual_encoder(model) else None
    try:
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng():
            return attention_of(model, images.to(device_of(model)), call)
    except Exception:  # the user's code
        return None, ()


def check_code(options: Options, allowed: bool, whose: str) -> None:
    """Refuse options of a file that run code, unless that was allowed with ``--run-code``."""
    for value in options.model_dump(mode="json", exclude={"out"}).values():
        for word in value if isinstance(value, list) else [value]:
            if not allowed and code_of(str(word)):
                raise UserError(f"{whose}: {str(word).strip()} runs code; read that code, then add --run-code")


def check_compiler(place: torch.device) -> None:
    """Refuse torch.compile on a CPU without the C++ compiler that it calls."""
    compiler = os.environ.get("CXX", "g++")
    if place.type == "cpu" and shutil.which(compiler) is None:
        raise UserError(f"--compile: no C++ compiler {compiler!r} on the PATH; install one or leave it out")


def check_twins(models: Sized, twins: Sized) -> None:
    """Refuse twins that are not one for each model, unless there are none."""
    if twins and len(twins) != len(models):
        pairs = ((len(twins), "twin"), (len(models), "model"))
        counts = " for ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in pairs)
        raise UserError(f"against: {counts}; give one twin for each, in the models' order")


def find_device(name: str) -> torch.device:
    """Return the device of a name, which can be used; auto takes a GPU where there is one."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    # torch imports a module for some, and raises anything
    with refusing(f"device {shown(name)} cannot be used", "; try --device cpu", Exception):
        with warnings.catch_warnings(action="ignore"):  # of those that are deprecated
            device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" has no values
    if device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        cudnn.conv.fp32_precision = "ieee"  # torch's default would round images to 10 bits
    return device


@contextmanager
def as_text(values: Mapping[str, Any], options: Collection[str], split: str = "test") -> Iterator[dict[str, Any]]:
    """Yield options in which ``given:NAME`` stands for each object, and hold the objects for the block.

    A model without a card gets one from the images and its output for one of them. In the end its modules are in the
    mode they were in. It stays on its device unless ``device`` says otherwise.
    """
    text, objects = dict(values), dict[str, Any]()
    for option in ("data", "held_out"):
        if not _is_text(data := values.get(option)):
            if "models" in values:
                fix = "antiphase.evaluation has the tasks for arrays"
                raise UserError(f"data: evaluate takes the names of data sets; {fix}")
            images = data if isinstance(data, ImageSet) else load_data(data)
            text[option] = f"{PREFIX}{images.name}" + " held out" * (option == "held_out")
            objects[text[option]] = images
    modules: dict[str, nn.Module] = {}
    for option in ("model", "models", "against"):
        if not _is_text(value := values.get(option)):
            specs = tuple(f"{name}{_named(model, modules)}" for name, model in _by_name(value))
            text[option] = specs if isinstance(value, Sequence | Mapping) else specs[0]
    devices = [str(device_of(module)) for module in modules.values()]  # refuses weights without values
    if devices and "device" in options and values.get("device", "auto") == "auto":
        text["device"] = devices[0]
    with ExitStack() as stack:
        for spec, module in modules.items():
            stack.enter_context(evaluating(module))
            if not hasattr(module, "card"):
                if "models" in values:
                    fix = "give a specification, or a model of load_model or ap.train"
                    raise UserError(f"model {type(module).__name__}: says nothing of its images; {fix}")
                if (source := text.get("data")) is None:
                    fix = "as the name of a source or as images, such as antiphase.data.load_data('digits')"
                    raise UserError(f"model {type(module).__name__}: says nothing of its images; give data=, {fix}")
                if source not in objects:
                    how = {name: values[name] for name in ("image_size", "skip_bad") if name in values}
                    how["split"] = values.get("split", split)
                    objects[source] = load_data(source, **how, limit=1, progress=False)
                _add_card(spec, module, objects[source])
                stack.callback(object.__delattr__, module, "card")
        objects = {name: images for name, images in objects.items() if name.startswith(PREFIX)}
        stack.callback(_HELD.reset, _HELD.set({**_HELD.get({}), **modules, **objects}))
        yield text


def _by_name(value: Any) -> list[tuple[str, Any]]:
    """Return models, each with ``NAME=`` if a dictionary names it; a list under a name are trainings of one model."""
    pairs = []
    for name, models in value.items() if isinstance(value, Mapping) else [("", value)]:
        several = isinstance(models, Sequence) and not isinstance(models, str)
        pairs += [(f"{name}=" * bool(name), model) for model in (models if several else [models])]
    return pairs


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, Sequence) and all(isinstance(one, str) for one in value))


def _named(model: Any, modules: dict[str, nn.Module]) -> str:
    """Return the specification of a model; a module is added to the modules."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise UserError(f"model: got a {kind}; expected a specification, a training or a torch.nn.Module")
    card = getattr(model, "card", None)
    stem = f"{PREFIX}{kind if card is None else card.name}"
    specs = chain([stem], (f"{stem}-{number}" for number in count(2)))
    return next(spec for spec in specs if modules.setdefault(spec, model) is model)


def _add_card(spec: str, model: nn.Module, images: ImageSet) -> None:
    name = spec.removeprefix(PREFIX)
    image = images.images([0]).to(device_of(model))
    with running(model, image, f"model {name}", f"an image of {images.name}"), torch.no_grad():
        logits = model(image.clone())
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 1:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UserError(f"model {name}: returns {got} for one image; expected logits of shape (1, classes)")
    count = logits.shape[1]
    # labels count the outputs, but for those of folders, whose order could be another
    given = images.class_names if len(images.class_names) == count and not isinstance(images, FileImages) else None
    names = stated_class_names(model, count, f"model {name}") or given
    with_card(model, ModelCard(name, spec, attention_kind(model), None, images.image_shape, count, class_names=names))
