"""Conversation formats: from questions and answers to token ids and training targets."""

import re
from collections.abc import Sequence
from datetime import date
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from antiphase.errors import UserError, shown

IMAGE = -200
"""Id in the place of an image, as in LLaVA; no token has it."""
IGNORED = -100
"""Label of a token that is no target, as in PyTorch and transformers."""

Style = Literal["chat", "llava"]
Turns = Sequence[tuple[str, str]]
Ids = Int64[Tensor, " length"]
Pieces = list[tuple[str, bool]]  # text, and whether it is a target

_PLACE = "<image>"
_TODAY = date(2024, 7, 26)  # for templates that write the date; Llama 3.2's own default
_NOW = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


class Prompt:
    r"""Write conversations as a language model expects them, and mark the answers as targets.

    ``llava`` is LLaVA 1.5's (its ``v1``): ``SYSTEM USER: <image>\nQUESTION ASSISTANT: ANSWER</s>USER: …``, with the
    tokenizer's own end-of-sequence token. ``chat`` is the tokenizer's chat template, with a system message if the
    template adds one; where it writes today's date, that is 26 July 2024 every day. Captions have LLaVA's ``plain``
    format, ``<image>CAPTION\n``. The image precedes the first question. Targets are the tokens of the answers and the
    end-of-sequence token behind each; all others have the label ``IGNORED``.

    The text is split at the image and each side is tokenised as a whole, as in LLaVA, so that a token never depends on
    where a question ends.

    Source: H. Liu et al., *Improved Baselines with Visual Instruction Tuning*, CVPR 2024, and its code
    (``preprocess_v1``, ``preprocess_plain``, ``tokenizer_image_token``).

    Args:
        tokenizer: a fast tokenizer of transformers, with an end-of-sequence token.
        style: ``chat`` or ``llava``; None: ``chat`` if the tokenizer has a chat template.
    """

    def __init__(self, tokenizer: Any, style: Style | None = None) -> None:
        name = type(tokenizer).__name__
        if not tokenizer.is_fast:
            raise UserError(f"{name}: not a fast tokenizer; save it as tokenizer.json, which has offsets")
        if not tokenizer.eos_token:
            raise UserError(f"{name}: no end-of-sequence token; set its eos_token and save it again")
        template = bool(getattr(tokenizer, "chat_template", None))
        self.style: Style = style or ("chat" if template else "llava")
        if self.style == "chat" and not template:
            raise UserError("prompt chat: the tokenizer has no chat template; use --prompt llava")
        self.tokenizer = tokenizer

    def question(self, question: str, *, image: bool = True) -> Ids:
        """Return the ids of a question, up to where the answer begins."""
        opening = self._pieces([(question, "")], image)[0][0]
        return self._tokenised([(opening, False)], image, special=self.style == "llava")[0]

    def conversation(self, turns: Turns, *, image: bool = True) -> tuple[Ids, Ids]:
        """Return the ids and labels of pairs of a question and an answer; perhaps an image precedes the first."""
        return self._tokenised(self._pieces(turns, image), image, special=self.style == "llava")

    def caption(self, caption: str) -> tuple[Ids, Ids]:
        """Return the ids and labels of an image with its caption, for stage 1."""
        return self._tokenised([(_PLACE, False), (f"{caption.strip()}\n", True)], image=True, special=True)

    def first_ids(self, question: str, answers: Sequence[str]) -> list[int]:
        """Return the first token's id of each answer to a question; UserError if two begin with the same token."""
        whole = [self.conversation([(question, answer)]) for answer in answers]
        first = [int(ids[labels != IGNORED][0]) for ids, labels in whole]
        if len(set(first)) < len(first):
            several = ", ".join(map(repr, answers))
            raise UserError(f"answers {several}: they begin with the same token; expected others")
        return first

    def _pieces(self, turns: Turns, image: bool) -> Pieces:
        stripped = [(question.strip(), answer.strip()) for question, answer in turns]
        if image and stripped:
            stripped[0] = (f"{_PLACE}\n{stripped[0][0]}", stripped[0][1])
        return self._chat(stripped) if self.style == "chat" else self._llava(stripped)

    def _llava(self, turns: Turns) -> Pieces:
        pieces = []
        for number, (question, answer) in enumerate(turns):
            before = "" if number else f"{_SYSTEM} "
            pieces.append((f"{before}USER: {question} ASSISTANT:", False))
            pieces.append((f" {answer}{self.tokenizer.eos_token}", True))
        return pieces

    def _chat(self, turns: Turns) -> Pieces:
        pieces: Pieces = []
        messages: list[dict[str, str]] = []
        written = ""
        for question, answer in turns:
            messages.append({"role": "user", "content": question})
            before = self._rendered(messages, opened=True)
            messages.append({"role": "assistant", "content": answer})
            after = self._rendered(messages, opened=False)
            if not before.startswith(written) or not after.startswith(before + answer):
                fault = f"it changes earlier messages when there are {len(messages)}"
                raise UserError(
                    f"chat template: {fault}, so that answers are not found; use the format llava"
                )
            between, end, rest = after[len(before + answer) :].partition(self.tokenizer.eos_token)
            pieces += [(before[len(written) :], False), (answer + between + end, True), (rest, False)]
            written = after
        return pieces

    def _rendered(self, messages: list[dict[str, str]], *, opened: bool) -> str:
        template = self.tokenizer.get_chat_template()
        dated = _NOW.sub(lambda call: repr(_TODAY.strftime(call[2])), template)
        return self.tokenizer.apply_chat_template(
            messages, chat_template=dated, tokenize=False, add_generation_prompt=opened
        )

    def _tokenised(self, pieces: Pieces, image: bool, *, special: bool) -> tuple[Ids, Ids]:
        text, spans = "", []
        for piece, target in pieces:
            spans += [(len(text), len(text) + len(piece))] if target else []
            text += piece
        ids: list[int] = []
        labels: list[int] = []
        start = 0
        for number, side in enumerate(text.split(_PLACE, 1) if image else [text]):
            if number:
                ids.append(IMAGE)
                labels.append(IGNORED)
                start += len(_PLACE)
            # only the first side gets the token that begins a sequence
            tokens = self.tokenizer(
                side, add_special_tokens=special and not number, return_offsets_mapping=True, verbose=False
            )
            for token, (first, last) in zip(tokens["input_ids"], tokens["offset_mapping"], strict=True):
                inside = any(start + last > low and start + first < high for low, high in spans)
                ids.append(token)
                labels.append(token if inside and last > first else IGNORED)
            start += len(side)
        return torch.tensor(ids), torch.tensor(labels)


def check_question(question: object) -> str:
    """Return the question, which has to be a string that is not empty."""
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"question {shown(question)}: expected a string that is not empty")
    return question
