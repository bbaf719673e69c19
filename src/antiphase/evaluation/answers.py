"""Models that answer questions about images in words, and their answers to many questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import PairSet
from antiphase.data.decoding import Square
from antiphase.data.pairs import model_images
from antiphase.data.pope import with_suffix
from antiphase.modules import device_of
from antiphase.progress import progress_bar

Question = tuple[int, str]
"""Position of an image, and what is asked about it."""


class Answering(Protocol):
    """Interface of a vision-language model, such as :class:`antiphase.models.vlm.VisionLanguageModel`."""

    square: Square  # resizes and crops an image to the model's size

    def generate(
        self, images: Float[Tensor, "batch 3 height width"], questions: Sequence[str], max_new_tokens: int
    ) -> list[str]: ...

    def answer(
        self, images: Float[Tensor, "batch 3 height width"], questions: Sequence[str], max_new_tokens: int
    ) -> tuple[list[str], Float[Tensor, "batch 2"]]:
        """Return the answers in words, and the logits of no and yes as their first token."""
        ...


@dataclass(frozen=True)
class Answer:
    """What a model says to a question.

    Attributes:
        text: its answer.
        yes: probability of yes among yes and no as the first token; NaN if that was not asked for.
    """

    text: str
    yes: float = float("nan")


def answers_questions(model: nn.Module) -> bool:
    """Return whether a model answers questions about images in words."""
    return all(hasattr(model, name) for name in ("generate", "answer"))


def answer_all(
    model: nn.Module,
    pictures: PairSet,
    asked: Sequence[Question],
    *,
    max_new_tokens: int,
    batch_size: int,
    suffix: str = "",
    first_token: bool = False,
    title: str = "",
) -> list[Answer]:
    """Return the answer to every question.

    Questions of the same text go through the model together, so that their prompts are of the same length.

    Args:
        model: one that answers questions.
        pictures: the images.
        asked: the questions.
        max_new_tokens: longest answer, in tokens.
        batch_size: questions at once; affects answers by rounding only.
        suffix: put behind every question, on a line of its own.
        first_token: whether to return the probability of yes, too.
        title: of the progress bar; empty: none.

    Raises:
        UserError: an image cannot be read, or a question is empty.
    """
    answering, place = cast(Answering, model), device_of(model)
    order = sorted(range(len(asked)), key=lambda at: (asked[at][1], asked[at][0]))
    found: dict[int, Answer] = {}
    with progress_bar(title, len(asked), bool(title)) as advance, torch.no_grad():
        for start in range(0, len(order), batch_size):
            some = order[start : start + batch_size]
            images = model_images(pictures, [asked[at][0] for at in some], answering.square).to(place)
            questions = [with_suffix(asked[at][1], suffix) for at in some]
            if first_token:
                texts, logits = answering.answer(images, questions, max_new_tokens)
                yes = (logits[:, 1] - logits[:, 0]).double().sigmoid().tolist()
                found |= {at: Answer(text, one) for at, text, one in zip(some, texts, yes, strict=True)}
            else:
                texts = answering.generate(images, questions, max_new_tokens)
                found |= {at: Answer(text) for at, text in zip(some, texts, strict=True)}
            advance(len(some))
    return [found[at] for at in range(len(asked))]
