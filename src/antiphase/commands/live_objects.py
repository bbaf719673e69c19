"""Models and images that are objects of the caller: held under names, so that options and records stay text."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from antiphase.data import ImageSet


PREFIX = "given:"
_HELD: dict[str, Any] = {}


@contextmanager
def holding(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let ``given:NAME`` stand for an object within the block.

    Args:
        objects: by specification, each beginning with ``given:``.
    """
    before = dict(_HELD)
    _HELD.update(objects)
    try:
        yield
    finally:
        _HELD.clear()
        _HELD.update(before)


def live_object(spec: Any) -> Any:
    """Return the object of a specification; None for any other specification.

    Raises:
        UserError: an object of another call.
    """
    if not isinstance(spec, str) or not spec.startswith(PREFIX):
        return None
    if spec not in _HELD:
        raise UserError(
            f"{spec}: was an object of another Python session; expected a specification, or the object"
        )
    return _HELD[spec]


_MODELS = ("model", "models", "against")


@contextmanager
def as_text(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield options in which ``given:NAME`` stands for each object, and hold the objects for the block.

    A model without a card gets one from the images and its output for one of them. In the end its modules are in the
    mode they were in. It stays on its device unless ``device`` says otherwise.

    Args:
        values: options; ``model``, ``models`` and ``against`` may hold modules, ``data`` an image set or what
            ``load_data`` takes.

    Raises:
        UserError: a model without a card comes without images, or does not classify them.
    """
    from antiphase.modules import device_of, evaluating

    text, objects = dict(values), dict[str, Any]()
    data = values.get("data")
    if data is not None and not _is_text(data):
        images = _images(data)
        text["data"] = f"{PREFIX}{images.name}"
        objects[text["data"]] = images
    else:
        images = None
    modules: list[nn.Module] = []
    for option in _MODELS:
        if option in values:
            text[option] = _named(values[option], images, objects, modules)
    if modules and values.get("device", "auto") == "auto":
        text["device"] = str(device_of(modules[0]))
    bare = [module for module in modules if not hasattr(module, "card")]
    with ExitStack() as stack:
        for module in modules:
            device_of(module)  # refuses weights without values
            stack.enter_context(evaluating(module))
        for spec, module in objects.items():
            if module in bare:
                assert images is not None
                stack.callback(_remove_card, module)
                _add_card(spec, module, images)
        stack.enter_context(holding(objects))
        yield text


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence) and all(isinstance(one, str) for one in value)
    )


def _images(data: Any) -> "ImageSet":
    from antiphase.data import ImageSet, load_data

    return data if isinstance(data, ImageSet) else load_data(data)


def _named(value: Any, images: "ImageSet | None", objects: dict[str, Any], modules: "list[nn.Module]") -> Any:
    """Return the specifications of models; modules among them are added to objects and modules."""
    if value is None or _is_text(value):
        return value
    from torch import nn

    several = [value] if isinstance(value, nn.Module) or not isinstance(value, Sequence) else value
    specs = []
    for one in several:
        if isinstance(one, str):
            specs.append(one)
            continue
        if not isinstance(one, nn.Module):
            raise UserError(
                f"model: got a {type(one).__name__}; expected a specification or a torch.nn.Module"
            )
        card = getattr(one, "card", None)
        if card is None and images is None:
            raise UserError(
                f"model {type(one).__name__}: says nothing of its images; give data= as an image set, such as "
                "antiphase.data.load_data('digits')"
            )
        spec = stem = f"{PREFIX}{type(one).__name__ if card is None else card.name}"
        number = 1
        while spec in objects and objects[spec] is not one:
            number += 1
            spec = f"{stem}-{number}"
        objects[spec] = one
        modules.append(one)
        specs.append(spec)
    return specs[0] if isinstance(value, nn.Module) else tuple(specs)


def _remove_card(model: "nn.Module") -> None:
    if hasattr(model, "card"):
        object.__delattr__(model, "card")


def _add_card(spec: str, model: "nn.Module", images: "ImageSet") -> None:
    import torch

    from antiphase.models.card import ModelCard, attention_kind, with_card
    from antiphase.modules import device_of, running

    name = spec.removeprefix(PREFIX)
    image = images.images([0]).to(device_of(model))
    with running(model, image, f"model {name}", f"an image of {images.name}"), torch.no_grad():
        logits = model(image.clone())
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 1:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UserError(f"model {name}: returns {got} for one image; expected logits of shape (1, classes)")
    count = logits.shape[1]
    # labels count the outputs: there are no folders whose order could be another
    names = images.class_names if len(images.class_names) == count else None
    card = ModelCard(name, spec, attention_kind(model), None, images.image_shape, count, class_names=names)
    with_card(model, card)
