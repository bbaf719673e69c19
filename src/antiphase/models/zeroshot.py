"""A dual encoder bound to prompts: a classifier of images in [0, 1]."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import ImageSet
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.card import card_of, with_card

Template = str | Callable[[str], str]
PAPER_TEMPLATE = "a photo of {}"  # robustness paper, Appendix C.2.1


class DualEncoder(Protocol):
    """What is needed of a CLIP: embeddings that are not normalised, and the logarithm of the scale."""

    square: Square  # brings an image of any size to the model's

    @property
    def logit_scale(self) -> Tensor:
        """The natural logarithm of what cosines are multiplied by."""
        ...

    def encode_image(self, images: Tensor) -> Tensor:
        """Return the embeddings of images in [0, 1]."""
        ...

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of texts."""
        ...


def is_dual_encoder(model: nn.Module) -> bool:
    """Whether a model encodes images and texts to one space.

    Asked of the attributes, since ``isinstance`` with a protocol sees no parameter from Python 3.12 on.
    """
    return all(hasattr(model, name) for name in ("encode_image", "encode_text", "logit_scale"))


def as_dual_encoder(model: nn.Module) -> DualEncoder:
    """Return the model as what it is.

    Raises:
        UserError: it encodes no text.
    """
    if not is_dual_encoder(model):
        raise UserError(
            f"{type(model).__name__} encodes no text: expected a CLIP, with encode_image and encode_text"
        )
    return cast(DualEncoder, model)


class ZeroShotClassifier(nn.Module):
    """Logits z_k = exp(logit_scale)·cos(image, class k).

    Args:
        model: a dual encoder.
        weights: unit vectors of the classes, one a column.
    """

    weights: Tensor

    def __init__(self, model: nn.Module, weights: Float[Tensor, "embed classes"]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("weights", weights)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return the logits of images in [0, 1]; only the encoder takes part in autocast.

        In bf16, a logit of about 25 would be rounded to a step of 1/8.
        """
        encoder = as_dual_encoder(self.model)
        embedded = encoder.encode_image(images)
        with torch.autocast(images.device.type, enabled=False):
            directions = F.normalize(embedded.to(self.weights.dtype), dim=-1)
            return encoder.logit_scale.exp() * (directions @ self.weights)


def zero_shot_classifier(
    model: nn.Module,
    class_names: Sequence[str],
    templates: Sequence[Template] = (PAPER_TEMPLATE,),
    *,
    prompts: Sequence[Sequence[str]] | None = None,
) -> ZeroShotClassifier:
    """Bind a dual encoder to prompts.

    The vector of a class is the mean of its prompts' unit vectors, normalised again (CLIP, Section 3.1.4).

    Args:
        model: a dual encoder with ``encode_image``, ``encode_text`` and ``logit_scale``.
        class_names: what is put into the templates.
        templates: with ``{}`` in the place of the name, or functions of the name (as open_clip's are).
        prompts: whole texts for each class, in place of names in templates.

    Raises:
        UserError: no classes or templates, a template without a place for the name, or another kind of model.
    """
    if not class_names or not templates:
        raise UserError(
            f"{len(class_names)} classes and {len(templates)} templates: expected one of each at least"
        )
    for template in templates:
        if isinstance(template, str) and "{}" not in template:
            raise UserError(f"template {template!r}: expected {{}} in the place of the class's name")
    encoder = as_dual_encoder(model)
    if prompts is None:
        prompts = [
            [t.replace("{}", name) if isinstance(t, str) else t(name) for t in templates]
            for name in class_names
        ]
    elif len(prompts) != len(class_names):
        raise UserError(f"prompts for {len(prompts)} classes: expected them for each of {len(class_names)}")
    columns = []
    with torch.no_grad():
        for texts in prompts:
            mean = F.normalize(encoder.encode_text(texts).float(), dim=-1).mean(0)
            columns.append(F.normalize(mean, dim=0))
    return ZeroShotClassifier(model, torch.stack(columns, 1)).eval()


def bound(model: nn.Module, images: ImageSet, prompt: str | None) -> nn.Module:
    """Return a classifier: the model, or a dual encoder bound to the classes of the images.

    Args:
        model: a loaded model, with its card.
        images: whose classes it is to tell apart.
        prompt: template of the class prompts; the images' own prompts, or the paper's template, where not given.
    """
    if not is_dual_encoder(model):
        return model
    card = card_of(model)
    prompts = images.prompts if prompt is None else None
    classifier = zero_shot_classifier(model, images.class_names, [prompt or PAPER_TEMPLATE], prompts=prompts)
    return with_card(
        classifier, replace(card, num_classes=len(images.class_names), class_names=images.class_names)
    )
