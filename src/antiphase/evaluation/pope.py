"""POPE's score: what counts as yes, answers joined with their questions, and the rows that keep them.

Source: "Evaluating Object Hallucination in Large Vision-Language Models", Li et al., EMNLP 2023, and ``evaluate.py`` of
https://github.com/RUCAIBox/POPE.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.data.pope import PopeQuestion
from antiphase.errors import UserError
from antiphase.evaluation.metrics import outcome_rows
from antiphase.statistics.influence import auc_values, ratio_values

NO, YES, UNPARSED = 0, 1, 2
"""The column ``prediction``: the last says neither, which the script counts as yes."""

_NEGATIONS = frozenset({"No", "no", "not"})


def says_yes(answer: str) -> bool:
    """Return whether POPE's script counts an answer as yes: everything that does not deny.

    It keeps the text before the first full stop, drops the commas, splits at single spaces, and looks for the words
    ``No``, ``no`` and ``not``. So "NO" and "No!" count as yes, as does every answer about something else; see
    :func:`is_parsed`.

    >>> [says_yes(answer) for answer in ("No, there is not.", "Yes. There is no doubt.", "NO", "")]
    [False, True, True, True]
    """
    return not _NEGATIONS & set(_first_sentence(answer).split(" "))


def is_parsed(answer: str) -> bool:
    """Return whether an answer says yes or no in the script's own terms, rather than counting as yes by default.

    A denial is one that the script sees; a yes is the word "yes", in any case, before the first full stop.

    >>> [is_parsed(answer) for answer in ("no", "YES!", "NO", "There is a dog.")]
    [True, True, False, False]
    """
    return not says_yes(answer) or re.search(r"\byes\b", _first_sentence(answer), re.IGNORECASE) is not None


def join_answers(questions: Sequence[PopeQuestion], answers: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the answer to each question, found by image and text.

    POPE's script pairs the lines of two files by their order, which is wrong as soon as one is sorted differently.

    Args:
        questions: in any order.
        answers: by image and text of the question.

    Raises:
        UserError: a question has no answer.
    """
    missing = [one for one in questions if (one.image, one.text) not in answers]
    if missing:
        raise UserError(
            f"{len(missing):,} of {len(questions):,} questions have no answer, the first is {missing[0].text!r} of "
            f"{missing[0].image}: expected an answer for every image and question"
        )
    return [answers[one.image, one.text] for one in questions]


def pope_rows(
    sampling: str,
    questions: Sequence[PopeQuestion],
    answers: Sequence[str],
    yes: Sequence[float],
    images: Sequence[int],
) -> pl.DataFrame:
    """Return a row of ``ROW_SCHEMA`` for each question.

    ``unit`` is the question's number, ``group`` its image, ``prediction`` one of ``NO``, ``YES`` and ``UNPARSED``.
    ``score`` is the probability of yes as the first token, among yes and no; ``rank`` is 0 if the more probable of the
    two is right, else 1 (at ½, no).

    Args:
        sampling: becomes the setting.
        questions: of this sampling.
        answers: in words, one for each.
        yes: probabilities of yes.
        images: id of each question's image.
    """
    said = [(YES if is_parsed(text) else UNPARSED) if says_yes(text) else NO for text in answers]
    wrong = [int((probability > 0.5) != one.yes) for one, probability in zip(questions, yes, strict=True)]
    return outcome_rows(
        setting=sampling,
        seed=0,
        unit=[one.number for one in questions],
        group=list(images),
        prediction=said,
        rank=wrong,
        score=list(yes),
    )


def read_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what rows of :func:`pope_rows` say: columns ``said_yes``, ``truth`` and ``unparsed``, of booleans."""
    return rows.select(
        said_yes=pl.col("prediction") != NO,
        truth=(pl.col("score").fill_nan(0.0) > 0.5) == (pl.col("rank") == 0),  # NaN > 0.5 is true in polars
        unparsed=pl.col("prediction") == UNPARSED,
    )


def pope_values(rows: pl.DataFrame) -> dict[str, Float[np.ndarray, " questions"]]:
    """Return POPE's metrics, each as a value for every question whose mean is the metric.

    Precision, recall, F1 and AUC are no means of questions, so that their values are linearised
    (:func:`~antiphase.statistics.influence.ratio_values`). What is undefined is left out, such as the precision of a
    model that never says yes.

    Args:
        rows: as of :func:`pope_rows`.

    Returns:
        By name: accuracy, precision, recall, F1, AUC (of the probability of yes), yes and unparsed (shares).
    """
    told = read_rows(rows)
    said, truth = told["said_yes"].to_numpy(), told["truth"].to_numpy()
    both, yes, right = (said & truth).astype(float), said.astype(float), truth.astype(float)
    values = {"accuracy": (said == truth).astype(float)}
    if said.any():
        values["precision"] = ratio_values(both, yes)
    if truth.any():
        values["recall"] = ratio_values(both, right)
    if (said | truth).any():
        values["F1"] = ratio_values(2 * both, yes + right)
    if truth.any() and not truth.all():
        values["AUC"] = auc_values(rows["score"].fill_nan(0.0).to_numpy(), truth)
    return values | {"yes": yes, "unparsed": told["unparsed"].to_numpy().astype(float)}


def _first_sentence(answer: str) -> str:
    return answer.partition(".")[0].replace(",", "")
