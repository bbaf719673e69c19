"""CIDEr of captions, by the reference implementation in pycocoevalcap."""

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

from antiphase.errors import UserError

LARGEST = 10.0
"""CIDEr of a caption that has exactly the n-grams of each of its references."""

MISSING = "captions are scored by pycocoevalcap: pip install 'antiphase[caption]'"


def has_cider() -> bool:
    """Return whether pycocoevalcap is installed."""
    return importlib.util.find_spec("pycocoevalcap") is not None


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Return CIDEr-D of each caption, from 0 to 10; their mean is the corpus's.

    The weights of the n-grams are from the references given, n = 1 … 4. Words are split by :func:`words_of`, not by
    the tokeniser of Stanford's parser, which needs Java: scores can differ slightly from those of the COCO toolkit.

    Source: R. Vedantam et al., *CIDEr: Consensus-based Image Description Evaluation*, CVPR 2015.

    Args:
        captions: one for each image, of two images at least.
        references: several for each image.

    Raises:
        UserError: pycocoevalcap is missing, or there are fewer than two images.
    """
    if not has_cider():
        raise UserError(MISSING)
    if len(captions) < 2:
        raise UserError(
            f"CIDEr of {len(captions)} captions: its weights need at least 2 images; raise --limit"
        )
    scorer: Any = importlib.import_module("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    for caption, several in zip(captions, references, strict=True):
        scorer += (words_of(caption), [words_of(one) for one in several])
    _, scores = scorer.compute_score()
    return [float(score) for score in scores]


def words_of(text: str) -> str:
    """Return the words of a text in lower case without punctuation, separated by spaces.

    >>> words_of("A dog's bowl, and a half-eaten apple.")
    "a dog's bowl and a half-eaten apple"
    """
    return " ".join(re.findall(r"[\w'’-]*\w", text.lower()))
