"""POPE's score against a transcription of its script, and statistics of clustered answers against slow versions."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from antiphase.evaluation.metrics import outcome_rows
from antiphase.evaluation.tasks import Protocol, Source
from antiphase.statistics.decisions import mcnemar_clustered, mcnemar_exact
from antiphase.statistics.intervals import auc_values, ratio_values
from antiphase.vlm.pope import NO, TASK, UNPARSED, YES, is_parsed, says_yes
from tests.reference.pope import counts_as_no

ANSWERS = {  # answer: (yes, parsed)
    "yes": (True, True),
    "Yes, there is a dog.": (True, True),
    "YES": (True, True),
    "no": (False, True),
    "No, there is no dog.": (False, True),
    "There is not a dog in the image.": (False, True),
    "There is a dog.": (True, False),
    "A dog, a cat and a car": (True, False),
    "": (True, False),
    "NO": (True, False),  # the script knows no upper case
    "No!": (True, False),  # nor punctuation
    "no\n": (True, False),
    "Yes. There is no doubt.": (True, True),  # the first sentence alone
    "Yes and no": (False, True),
    "I do,not,know": (True, False),  # commas are dropped, not split at
    "No,there is none": (True, False),
    "Nothing of note": (True, False),
    ".no": (True, False),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_counts_as_the_published_script_counts_it(answer):
    assert (says_yes(answer), is_parsed(answer)) == ANSWERS[answer]
    assert says_yes(answer) != counts_as_no(answer)


@given(st.lists(st.sampled_from(["no", "No", "NO", "not", "yes", "knot", " ", "  ", ",", ".", "!", "\n", "\t"])))
def test_any_text_counts_as_in_the_transcription(parts):
    assert says_yes("".join(parts)) != counts_as_no("".join(parts))


@pytest.fixture
def clustered():
    """Answers to 40 images, six each, which depend on their image."""
    draw = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 6)
    truth = np.tile([True, False], 120)
    scores = (0.7 * truth + draw.normal(size=40)[clusters] + draw.normal(size=240)).round(1)
    return clusters, truth, scores


def _bootstrap(statistic, clusters, *columns):
    """The standard deviation of a statistic when images are drawn anew, with all their questions."""
    draw = np.random.default_rng(1)
    places = np.stack([np.flatnonzero(clusters == one) for one in range(40)])
    values = []
    for _ in range(1000):
        rows = places[draw.integers(0, 40, 40)].ravel()
        values.append(statistic(*(column[rows] for column in columns)))
    return np.std(values)


@pytest.mark.long
def test_linearised_values_have_the_mean_and_the_spread_of_what_they_stand_for(clustered):
    clusters, truth, scores = clustered
    yes = scores > 0.5

    def area(scores, truth):
        return roc_auc_score(truth, scores)

    def precision(yes, truth):
        return (yes & truth).sum() / yes.sum()

    values = {
        area: (auc_values(scores, truth), (scores, truth)),
        precision: (ratio_values((yes & truth).astype(float), yes.astype(float)), (yes, truth)),
    }
    for statistic, (linearised, columns) in values.items():
        assert linearised.mean() == pytest.approx(statistic(*columns))
        of_images = np.bincount(clusters, linearised) / 6
        spread = of_images.std(ddof=1) / np.sqrt(40)
        assert spread == pytest.approx(_bootstrap(statistic, clusters, *columns), rel=0.1)
    with pytest.raises(ValueError, match="of one kind"):
        auc_values(scores, truth | True)


def test_the_paired_test_counts_images_not_questions():
    draw = np.random.default_rng(2)
    first, second = draw.random(60) < 0.7, draw.random(60) < 0.5
    assert mcnemar_clustered(first, second, np.arange(60)) == pytest.approx(mcnemar_exact(first, second))
    clusters = draw.integers(0, 9, 60)
    apart = [int(first[clusters == one].sum()) - int(second[clusters == one].sum()) for one in range(9)]
    sums = [abs(sum(np.multiply(signs, apart))) for signs in itertools.product((-1, 1), repeat=9)]
    slow = np.mean([total >= abs(sum(apart)) for total in sums])
    assert mcnemar_clustered(first, second, clusters) == pytest.approx(slow)
    assert mcnemar_clustered(first, first, clusters) == 1
    # six equal answers about each image weigh as much as one
    assert mcnemar_clustered(*(np.repeat(x, 6) for x in (first, second, np.arange(60)))) == pytest.approx(
        mcnemar_exact(first, second)
    )


def test_answers_that_say_neither_yes_nor_no_are_a_warning():
    def told(*predictions):
        rows = outcome_rows(setting="random", unit=list(range(len(predictions))), prediction=list(predictions))
        source = Source(SimpleNamespace(name="pope:mine"))
        return TASK.doubts("llava", rows, source, Protocol())

    assert told(UNPARSED, YES, UNPARSED) == told(NO) == []
    (line,) = told(UNPARSED, UNPARSED, UNPARSED)
    assert line == (
        "llava: none of 3 answers about pope:mine says yes or no, and all count as yes; ask for it, such as --suffix "
        '"Answer yes or no."'
    )
