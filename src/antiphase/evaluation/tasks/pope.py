"""POPE: is an object in the image? Half of the objects asked about are not."""

import polars as pl
from torch import nn

from antiphase.data.pope import SAMPLINGS, PopeSet
from antiphase.evaluation.answers import answer_all
from antiphase.evaluation.metrics import Metric, observed
from antiphase.evaluation.pope import join_answers, pope_rows, pope_values, read_rows
from antiphase.evaluation.tasks.task import EvaluationTask, Features, Groups, Protocol, Source
from antiphase.models.card import card_of

_LONGEST = 16  # tokens of an answer; the script reads the first sentence


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    pope = source.test
    assert isinstance(pope, PopeSet)
    places, asked = pope.position(), pope.asked()
    title = f"{card_of(model).name}: questions of {pope.name}" if store.progress else ""
    found = answer_all(
        model,
        pope.pictures,
        [(places[image], text) for image, text in asked],
        max_new_tokens=_LONGEST,
        batch_size=store.batch_size,
        suffix=protocol.suffix,
        first_token=True,
        title=title,
    )
    answers = dict(zip(asked, found, strict=True))
    groups = dict(zip(pope.names, pope.pictures.ids.tolist(), strict=True))
    rows = []
    for sampling in SAMPLINGS:
        questions = [one for one in pope.questions if one.sampling == sampling]
        if questions:
            texts = join_answers(questions, {both: answer.text for both, answer in answers.items()})
            yes = [answers[one.image, one.text].yes for one in questions]
            rows.append(pope_rows(sampling, questions, texts, yes, [groups[one.image] for one in questions]))
    return pl.concat(rows)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    told = read_rows(rows)
    among = {"precision": told["said_yes"], "recall": told["truth"], "F1": told["said_yes"] | told["truth"]}
    found = []
    for name, values in pope_values(rows).items():
        its = observed(rows.with_columns(value=pl.Series(values)), pl.col("value"))
        its = its.with_columns(counted=among[name]) if name in among else its
        found.append(Metric(setting, name, its, clustered=True, tested=name == "accuracy"))
    return found


TASK = EvaluationTask(
    name="pope",
    title="POPE",
    summary="POPE's questions about objects that are in the image or not",
    notes="Half of the questions are about objects that are not in the image, drawn at random, by frequency, or by how "
    "often they occur with an object that is. Accuracy, precision, recall and F1 are of the answers in words, scored "
    "as by the authors’ script: without “no” or “not” in its first sentence, an answer counts as yes. Unparsed is the "
    "share that say neither yes nor no. AUC is of the probability of yes as the first token: it does not depend on "
    "where a model draws the line between yes and no. The questions about one image are a cluster: intervals and p are "
    "over images.",
    serves=lambda source: isinstance(source.test, PopeSet),
    measure=_measure,
    metrics=_metrics,
    heading=lambda setting, metric: f"{setting}: {_HEADINGS.get(metric, metric)}",
    scores=lambda metric: metric not in ("yes", "unparsed"),
    stands_for=lambda data, metric: metric == "accuracy",
    fields=("suffix",),
    answers=True,
    default_data="pope",
    paper_data=("pope",),
    passes=6.0,
)
_HEADINGS = {"yes": "answers yes", "unparsed": "unparsed answers"}
