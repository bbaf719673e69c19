"""Models and images that are objects of the caller: held under names, so that options and records stay text."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from antiphase.data import ImageSet


PREFIX = "given:"
_MODELS = ("model", "models", "against")
_held: dict[str, Any] = {}


def live_object(spec: Any) -> Any:
    """Return the object of a specification; None for any other specification.

    Raises:
        UserError: an object of another call.
    """
    if not isinstance(spec, str) or not spec.startswith(PREFIX):
        return None
    if spec not in _held:
        raise UserError(
            f"{spec}: was an object of another Python session; expected a specification, or the object"
        )
    return _held[spec]


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
    from antiphase.data import ImageSet, load_data
    from antiphase.modules import device_of, evaluating

    text, data, images = dict(values), values.get("data"), None
    if data is not None and not _is_text(data):
        if "models" in values:
            raise UserError(
                "data: evaluate takes the names of data sets; antiphase.evaluation has the tasks for arrays"
            )
        images = data if isinstance(data, ImageSet) else load_data(data)
        text["data"] = f"{PREFIX}{images.name}"
    modules: dict[str, nn.Module] = {}
    for option in _MODELS:
        value = values.get(option)
        if value is not None and not _is_text(value):
            several = isinstance(value, Sequence)
            specs = [_named(model, images, modules) for model in (value if several else [value])]
            text[option] = tuple(specs) if several else specs[0]
    if modules and values.get("device", "auto") == "auto":
        text["device"] = str(device_of(next(iter(modules.values()))))
    before = dict(_held)
    with ExitStack() as stack:
        for spec, module in modules.items():
            device_of(module)  # refuses weights without values
            stack.enter_context(evaluating(module))
            if not hasattr(module, "card"):
                assert images is not None
                _add_card(spec, module, images)
                stack.callback(object.__delattr__, module, "card")
        _held.update(modules)
        if images is not None:
            _held[text["data"]] = images
        try:
            yield text
        finally:
            _held.clear()
            _held.update(before)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence) and all(isinstance(one, str) for one in value)
    )


def _named(model: Any, images: "ImageSet | None", modules: "dict[str, nn.Module]") -> str:
    """Return the specification of a model; a module is added to the modules."""
    from torch import nn

    if isinstance(model, str):
        return model
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise UserError(f"model: got a {kind}; expected a specification or a torch.nn.Module")
    card = getattr(model, "card", None)
    if card is None and images is None:
        raise UserError(
            f"model {kind}: says nothing of its images; give data= as an image set, such as "
            "antiphase.data.load_data('digits')"
        )
    spec = stem = f"{PREFIX}{kind if card is None else card.name}"
    number = 1
    while modules.get(spec, model) is not model:
        number += 1
        spec = f"{stem}-{number}"
    modules[spec] = model
    return spec


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
