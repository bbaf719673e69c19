"""Answers and counts of README and docs/findings.md against a second implementation: findings.py, claim_counts.py."""

import functools
import re
from collections import Counter

import pytest

from tests.oracles import claim_counts, findings

QUESTIONS = ("Is differential attention more fragile?", "Why?", "Can it be trained not to be?", "Does it help a CLIP?")
NOT_RECOMPUTED = {"85.0": "printed by the paper in Table 3, for CIFAR-10, of which results/ has no rows"}
NAMES = ("mean over ε", "probe", "zero-shot", "zero-shot, shifted", "few-shot", "image retrieval", "text retrieval")
NAMES += ("mmvp", "mask average precision", "depth makes the difference", "cos θ")
LABEL = re.compile(r"\d[\d.]*/255|depth \d+|width \d+|" + "|".join(sorted(NAMES, key=len, reverse=True)))
DIFFERENCE = re.compile(
    r"([+-]?\d+\.\d+)(?: points)? \[(-?\d+\.\d+), (-?\d+\.\d+)\]"
    r"(?:,? (undecided|absent|holds|contradicted|smaller than claimed))?"
)
# what numbers a sentence has that are no results: budgets, depths, a data set's name
NO_RESULT = re.compile(
    r"N\(0, 0\.02\)|Transformer V2|\d+ more|49 patches|(?:8 to )?\d+ (?:training )?seeds|"
    r"ε of 0\.5 to [48]/255|0\.5 to 4/255|at -1 they|"
    r"\d[\d.]*/255|depth \d+|width \d+|CIFAR-10\b|log2 depth, 1 to 12|λ frozen at 0|λ = 0"
)


def _text(file):
    return (findings.ROOT / file).read_text(encoding="utf-8").replace("−", "-")


def _readme():
    return _text("README.md").split("<!-- findings -->")[1].split("<!-- /findings -->")[0]


def _answer(question):
    """The answer of docs/findings.md, without the further claims that are listed below it."""
    answer = _text("docs/findings.md").split(f"## {question}\n\n")[1].split("\n## ")[0]
    return " ".join(line for line in answer.split("\n") if line and not line.startswith(("- ", "!", "*")))


def _in_brief(question):
    (line,) = (line for line in _readme().split("\n") if line.startswith(f"- **{question}**"))
    return line.split("**", 2)[2]


@functools.cache
def _recomputed():
    return findings.answers()


def _rounds_to(printed, value, slack=0):
    unit = 10.0 ** -len(printed.partition(".")[2])
    return abs(float(printed) - value) <= (0.5 + slack) * unit * 1.0001


def _printed(question):
    """Each difference with the last label before it."""
    text, end, label = _answer(question), 0, ""
    for match in DIFFERENCE.finditer(text):
        label = [label, *LABEL.findall(text[end : match.start()])][-1]
        end = match.end()
        yield label, *match.groups()


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_difference_and_interval_is_that_of_the_rows(question):
    printed = list(_printed(question))
    assert printed
    for label, *numbers, verdict in printed:
        fits = [row for row in _fitting(question, *numbers) if label in LABEL.findall(row.label)]
        assert fits, f"{label}: {numbers}"
        assert verdict is None or verdict in {row.verdict for row in fits}, f"{label}: {verdict}"


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_other_number_is_that_of_the_rows_or_listed(question):
    text = NO_RESULT.sub("", DIFFERENCE.sub("", _answer(question)))
    for number in re.findall(r"\d[\d,.]*\d|\d", text):
        values = _recomputed()[question][1]
        recomputed = any(_rounds_to(number.replace(",", ""), value) for value in values)
        assert recomputed or number in NOT_RECOMPUTED, number


def _fitting(question, *numbers):
    """The rows of a question whose estimate and interval round to three numbers."""
    # intervals.md multiplies the images' part of a mean over groups by n/(n − 1): one unit of the last digit
    return [
        row
        for row in _recomputed()[question][0]
        if _rounds_to(numbers[0], row.estimate)
        and _rounds_to(numbers[1], row.low, row.groups)
        and _rounds_to(numbers[2], row.high, row.groups)
    ]


@pytest.mark.parametrize("question", QUESTIONS)
def test_readme_has_estimates_of_the_rows_and_no_other_number(question):
    text = _in_brief(question)
    printed = [match.groups()[:3] for match in DIFFERENCE.finditer(text)]
    assert printed
    for numbers in printed:
        assert _fitting(question, *numbers), numbers
    assert not re.findall(r"\d", NO_RESULT.sub("", DIFFERENCE.sub("", text)))


def test_the_picture_of_the_answers_shows_estimates_of_the_rows():
    words = re.findall(r"<text[^>]*>([^<]+)</text>", _text("docs/answers.svg"))
    question, shown = "", []
    for word in words:
        question = word if word in QUESTIONS else question
        shown += [(question, *match.groups()[:3]) for match in DIFFERENCE.finditer(word)]
    assert len(shown) == 11
    for question, *numbers in shown:
        assert _fitting(question, *numbers), (question, numbers)


def test_readme_says_what_changes_the_answer():
    for words in ("means over ε", "initial weights", "chosen: largest ASR gap of three", "large models", "photographs"):
        assert words in _readme()
    assert re.search(r"Fashion-MNIST\s+and emoji", _text("README.md"))


def test_the_table_of_counts_is_that_of_the_registers():
    head, _, *lines = (
        line.strip("| ").split(" | ")
        for line in _text("docs/findings.md").split("## How sure is that?")[1].split("\n## ")[0].splitlines()
        if line.startswith("|")
    )
    counts = claim_counts.counts()
    assert [line[0] for line in lines] == list(counts)
    for name, *numbers in lines:
        printed = Counter({verdict: int(n) for verdict, n in zip(head[2:], numbers[1:], strict=True)})
        assert +printed == +counts[name], name
        assert int(numbers[0]) == counts[name].total(), name
