"""Dual encoders bound to class prompts: zero-shot classifiers of images in [0, 1]."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.arguments import validated
from antiphase.data import ImageSet, decoding, image_sets
from antiphase.errors import UserError
from antiphase.models.card import card_of, with_card

Template = str | Callable[[str], str]
PAPER_TEMPLATE = "a photo of {}"  # sensitivity paper, Appendix C.2.1


class DualEncoder(Protocol):
    """Interface of a CLIP-like model; its embeddings are not normalised."""

    square: decoding.Square  # resizes and crops an image to the model's size

    @property
    def logit_scale(self) -> Tensor: ...  # natural logarithm of the factor on the cosines

    def encode_image(self, images: Tensor) -> Tensor: ...

    def encode_text(self, texts: Sequence[str]) -> Tensor: ...


def is_dual_encoder(model: nn.Module) -> bool:
    """Return whether a model encodes images and texts in one space."""
    # isinstance with a protocol does not see parameters from Python 3.12 on
    return all(hasattr(model, name) for name in ("encode_image", "encode_text", "logit_scale"))


def as_dual_encoder(model: nn.Module) -> DualEncoder:
    """Return the model typed as a dual encoder; refuse one that is none."""
    if not is_dual_encoder(model):
        expected = "expected a CLIP, with encode_image and encode_text"
        raise UserError(f"{type(model).__name__} is not a dual encoder: {expected}")
    return cast(DualEncoder, model)


@validated
class ZeroShotClassifier(nn.Module):
    """Classify by z_k = exp(logit_scale)·cos(image, class k); ``weights`` has the classes' unit vectors as columns."""

    weights: Tensor

    def __init__(self, model: nn.Module, weights: Float[Tensor, "embed classes"]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("weights", weights)
        self.eval()

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        encoder = as_dual_encoder(self.model)
        embedded = encoder.encode_image(images)
        # bf16 would round a logit of 25 to multiples of 1/8
        with torch.autocast(images.device.type, enabled=False):
            return encoder.logit_scale.exp() * (F.normalize(embedded.to(self.weights.dtype), dim=-1) @ self.weights)


@validated
def zero_shot_classifier(
    model: nn.Module,
    class_names: Sequence[str],
    templates: Sequence[Template] = (PAPER_TEMPLATE,),
    *,
    prompts: Sequence[Sequence[str]] | None = None,
) -> ZeroShotClassifier:
    """Bind a dual encoder to class prompts; a class is the normalised mean of its prompts' unit vectors (CLIP, 3.1.4).

    ``class_names`` become words (:func:`~antiphase.data.image_sets.class_words`) in the templates, which are strings
    with ``{}`` or functions of the name, like open_clip's. ``prompts``, complete texts for each class, replace both.
    """
    if not class_names or not templates:
        raise UserError(f"{len(class_names)} classes and {len(templates)} templates: expected at least one of each")
    for template in templates:
        if isinstance(template, str) and "{}" not in template:
            raise UserError(f"template {template!r}: expected {{}} as a placeholder for the class name")
    encoder = as_dual_encoder(model)
    if prompts is None:
        names = image_sets.class_words(class_names)
        prompts = [[t.replace("{}", name) if isinstance(t, str) else t(name) for t in templates] for name in names]
    elif len(prompts) != len(class_names):
        raise UserError(f"prompts for {len(prompts)} classes: expected {len(class_names)}")
    with torch.no_grad():
        means = [F.normalize(encoder.encode_text(texts).float(), dim=-1).mean(0) for texts in prompts]
        return ZeroShotClassifier(model, torch.stack([F.normalize(mean, dim=0) for mean in means], 1))


def bound(model: nn.Module, images: ImageSet, prompt: str | None) -> nn.Module:
    """Bind a dual encoder to an image set's classes, by its prompts or a template; return a classifier unchanged."""
    if not is_dual_encoder(model):
        return model
    names, prompts = images.class_names, images.prompts if prompt is None else None
    classifier = zero_shot_classifier(model, names, [prompt or PAPER_TEMPLATE], prompts=prompts)
    return with_card(classifier, replace(card_of(model), num_classes=len(names), class_names=names))
