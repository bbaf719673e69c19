"""A vision-language model's answers to yes/no questions as a classifier of images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.vlm.model import ANSWERS, Images, VisionLanguageModel
from antiphase.models.vlm.prompt import prepare_questions


class YesNo(nn.Module):
    """Classify images by a model's answers to questions: the logits of "No" and "Yes" as the first answer token.

    Every attack of the engine applies to it; for several questions, which of them each image is asked is the attack's
    ``context``. Its card has two classes, ``no`` and ``yes``.

    Args:
        vlm: the model; put into evaluation mode.
        questions: one, or several that differ.

    Raises:
        UserError: if a question is empty.
    """

    def __init__(self, vlm: VisionLanguageModel, questions: str | Sequence[str]) -> None:
        super().__init__()
        self.vlm = vlm
        self.questions = (questions,) if isinstance(questions, str) else tuple(questions)
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
            which: of each image, the position of its question; None: the first.
        """
        first = torch.zeros(len(images), dtype=torch.int64)
        return self.vlm.first_logits(images, self._prepared, first if which is None else which)
