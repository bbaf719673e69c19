"""A vision-language model's answers to yes/no questions as a classifier of images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.errors import UserError, shown
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.vlm.model import ANSWERS, Images, VisionLanguageModel
from antiphase.models.vlm.prompt import prepare_questions


class YesNo(nn.Module):
    """Classify images by a model's answers to questions: the logits of "No" and "Yes" as the first answer token.

    Every attack of the engine that works with two classes applies to it (not those on the loss DLR, which takes three
    or more, hence not AutoAttack); for several questions, which of them each image is asked is the attack's
    ``context``. Its card has two classes, ``no`` and ``yes``.

    Args:
        vlm: the model; put into evaluation mode.
        questions: one question, or several different ones.

    Raises:
        UserError: if there is no question, or one is empty.
    """

    def __init__(self, vlm: VisionLanguageModel, questions: str | Sequence[str]) -> None:
        super().__init__()
        self.vlm = vlm
        several = isinstance(questions, list | tuple)
        self.questions: tuple[str, ...] = tuple(questions) if several else (questions,)  # type: ignore[assignment]
        if not self.questions:
            raise UserError("questions: expected at least one")
        self._prepared = prepare_questions(vlm.prompt, self.questions, ANSWERS)
        known = getattr(vlm, "card", None)
        card = known or ModelCard(
            "vlm", "vlm", attention_kind(cast(nn.Module, vlm.tower)), None, vlm.image_shape, 0
        )
        with_card(self, replace(card, num_classes=2, class_names=("no", "yes")))

    def extra_repr(self) -> str:
        return f"questions={self.questions!r}, prompt={self.vlm.prompt.style!r}"

    def forward(
        self, images: Images, which: Int64[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch 2"]:
        """Return the logits of no and yes.

        Args:
            images: in [0, 1].
            which: of each image, the position of its question; None if there is but one.

        Raises:
            UserError: if ``which`` is missing, or is not one position for each image.
        """
        count = len(self.questions)
        if which is None:
            if count > 1:
                raise UserError(
                    f"{count} questions: expected the position of each image's, as the attack's context"
                )
            which = torch.zeros(len(images), dtype=torch.int64)
        fits = which.dtype == torch.int64 and which.shape == (len(images),)
        if not fits or not bool(((which >= 0) & (which < count)).all()):
            raise UserError(
                f"which {shown(which.tolist())}: expected an int64 from 0 to {count - 1} for each image"
            )
        return self.vlm.first_logits(images, self._prepared, which)
