"""Answers of vision-language models to many questions about images, and captions scored by CIDEr."""

import importlib.util
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl
import torch
from torch import nn

from antiphase import modules, terminal
from antiphase.data import PairSet
from antiphase.data.conversations import ASK_CAPTION
from antiphase.data.images import model_images
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import Metric, observed, outcome_rows
from antiphase.evaluation.tasks import Protocol, Source, make_task
from antiphase.models.card import card_of

_MISSING = "captions are scored by pycocoevalcap: pip install pycocoevalcap"
_LONGEST = 48  # tokens of a caption


class Answer(NamedTuple):
    """What a model says: its words, and the probability of yes among yes and no as the first token."""

    text: str
    yes: float


def answers_questions(model: nn.Module) -> bool:
    """Return whether a model answers questions in words, as :class:`antiphase.vlm.VisionLanguageModel` does."""
    return all(hasattr(model, name) for name in ("generate", "answer"))


def answer_all(
    model: nn.Module,
    pictures: PairSet,
    questions: Sequence[tuple[int, str]],
    *,
    max_new_tokens: int,
    batch_size: int,
    title: str = "",
) -> list[Answer]:
    """Return the answer to every question, each the position of an image and a text.

    Questions of the same text go through the model together, so that their prompts are of the same length. The batch
    size affects answers by rounding only.
    """
    answering: Any = model
    device = modules.device_of(model)
    order = sorted(range(len(questions)), key=lambda row: (questions[row][1], questions[row][0]))
    answers: dict[int, Answer] = {}
    with terminal.progress_bar(title, len(questions), bool(title)) as advance, torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            images = model_images(pictures, [questions[row][0] for row in rows], answering.square).to(device)
            words, logits = answering.answer(images, [questions[row][1] for row in rows], max_new_tokens)
            yes = (logits[:, 1] - logits[:, 0]).double().sigmoid().tolist()
            answers |= zip(rows, map(Answer, words, yes), strict=True)
            advance(len(rows))
    return [answers[row] for row in range(len(questions))]


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return CIDEr-D of each caption, from 0 to 10, by several references for each; the mean is the corpus's.

    The weights of the n-grams are from the references given, n = 1 … 4. Words are split by :func:`words_of`, not by
    the tokeniser of Stanford's parser, which needs Java: scores can differ slightly from those of the COCO toolkit.

    Source: R. Vedantam et al., *CIDEr: Consensus-based Image Description Evaluation*, CVPR 2015.
    """
    if importlib.util.find_spec("pycocoevalcap") is None:
        raise UserError(_MISSING)
    if len(captions) < 2:
        raise UserError(f"CIDEr of {len(captions)} captions: it needs at least 2 images; raise --limit")
    scorer: Any = importlib.import_module("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    for caption, several in zip(captions, references, strict=True):
        scorer += (words_of(caption), [words_of(reference) for reference in several])
    _, scores = scorer.compute_score()
    return [float(score) for score in scores]


def words_of(text: str) -> str:
    """Return the words of a text in lower case without punctuation, separated by spaces."""
    return " ".join(re.findall(r"[\w'’-]*\w", text.lower()))


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    pairs: PairSet = source.test
    title = f"{card_of(model).name}: captions of {pairs.name}" if store.progress else ""
    questions = [(position, ASK_CAPTION) for position in range(len(pairs))]
    lengths = {"max_new_tokens": _LONGEST, "batch_size": store.batch_size}
    answers = answer_all(model, pairs, questions, title=title, **lengths)  # pyright: ignore[reportArgumentType]
    scores = cider([answer.text for answer in answers], pairs.captions)
    return outcome_rows(setting="", seed=0, unit=pairs.ids.tolist(), score=[score / 10.0 for score in scores])


TASK = make_task(
    "caption",
    serves=lambda source: isinstance(source.test, PairSet),
    measure=_measure,
    metrics=lambda setting, rows, groups: [Metric(setting, "CIDEr / 10", observed(rows, pl.col("score")))],
    too_small=lambda source, protocol: None if importlib.util.find_spec("pycocoevalcap") else _MISSING,
)
