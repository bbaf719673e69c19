"""POPE and captions of models that answer in words: rows, numbers, intervals over images and the paired test."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from antiphase.commands.evaluate import EvaluateOptions
from antiphase.commands.evaluate.run import evaluate
from antiphase.commands.result import read_result
from antiphase.data import load_pairs
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.evaluation.tasks import Source
from antiphase.models import clip
from antiphase.models.card import ModelCard, with_card
from antiphase.statistics.decisions import mcnemar_clustered
from antiphase.streams import key
from antiphase.vlm.answers import cider
from antiphase.vlm.pope import emoji_pope
from tests import needs
from tests.reference.pope import scores
from tests.training.tiny_pairs import TINY

SAID = ("Yes", "No", "no, none.", "There is one", "NO")


class Talker(nn.Module):
    """Answers by a hash of the image's pixels and the question, so that the order it is asked in changes nothing."""

    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(seed)))
        self.seed, self.square, self.asked = seed, Square(64), []
        with_card(self, ModelCard(f"talker-{seed}", f"talker:{seed}", "softmax", seed, (3, 64, 64), 0))

    def number(self, image, question):
        return key(self.seed, round(float(image.double().sum()), 3).hex(), question) % 2**40

    def answer(self, images, questions, max_new_tokens):
        self.asked += list(questions)
        numbers = [self.number(*both) for both in zip(images, questions, strict=True)]
        yes = torch.tensor([number % 7 for number in numbers])
        logits = torch.stack([torch.full_like(yes, 3), yes], 1).float()
        return [SAID[number % 5] for number in numbers], logits

    def generate(self, images, questions, max_new_tokens):
        return self.answer(images, questions, max_new_tokens)[0]


@pytest.fixture(scope="module")
def pope():
    return emoji_pope(progress=False).subset(12)


def _measured(models, twins, source, out, **more):
    options = {"models": "m", "out": out, "cache": out / "cache", "batch_size": 50, "quiet": True}
    tasks = more.pop("tasks", None)
    return evaluate(models, twins, [source], EvaluateOptions(**{**options, **more}), tasks=tasks)


def test_pope_of_a_model_against_its_twin(pope, tmp_path):
    one, two = Talker(1), Talker(2)
    summary = _measured([one], [two], Source(pope), tmp_path)
    assert len(one.asked) == len(set(pope.asked())) < len(pope)  # what samplings share is asked once
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert rows.group_by("model", "setting").len()["len"].to_list() == [72] * 6
    pixels = {name: pope.pictures.pixels(row).float() / 255 for name, row in pope.position().items()}
    hits = {}
    for sampling in ("random", "popular", "adversarial"):
        questions = [question for question in pope.questions if question.sampling == sampling]
        labels = ["yes" if question.yes else "no" for question in questions]
        for model in (one, two):
            numbers = [model.number(pixels[question.image], question.text) for question in questions]
            answers = [SAID[number % 5] for number in numbers]
            expected = scores(answers, labels) | {
                "AUC": roc_auc_score(labels, [number % 7 for number in numbers]),
                "unparsed": np.mean([text in ("There is one", "NO") for text in answers]),
            }
            metrics = {
                result["metric"]: result
                for result in summary["results"]
                if (result["model"], result["setting"]) == (f"talker-{model.seed}", sampling)
            }
            assert {name: result["value"] for name, result in metrics.items()} == pytest.approx(expected)
            assert all(result["low"] < result["value"] < result["high"] for result in metrics.values())
            right = np.array([(text not in SAID[1:3]) == q.yes for text, q in zip(answers, questions, strict=True)])
            hits[model.seed] = right
            of_images = right.reshape(12, 6).mean(1)  # the questions of an image follow each other
            half = 2.201 * of_images.std(ddof=1) / np.sqrt(12)  # Student's t at 11 degrees of freedom
            assert metrics["accuracy"]["high"] - metrics["accuracy"]["value"] == pytest.approx(half, rel=1e-3)
        (apart,) = (
            line for line in summary["differences"] if (line["setting"], line["metric"]) == (sampling, "accuracy")
        )
        assert apart["difference"] == pytest.approx(hits[1].mean() - hits[2].mean())
        assert apart["p"] == pytest.approx(mcnemar_clustered(hits[1], hits[2], np.repeat(np.arange(12), 6)))
    assert all(0 < line["p"] <= 1 for line in summary["differences"] if line["metric"] not in ("accuracy",))
    calls = len(one.asked)
    assert _measured([one], [two], Source(pope), tmp_path)["results"] == summary["results"]
    assert len(one.asked) == calls  # stored
    _measured([one], [two], Source(pope), tmp_path, precision="bf16")  # the same: answers are in float32
    assert len(one.asked) == calls
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["precision"] == "float32"
    page = read_result(tmp_path, "evaluate").write_report(tmp_path).read_text(encoding="utf-8")
    for words in ("adversarial: answers yes", "random: unparsed answers", "as by the authors’ script", "random: AUC"):
        assert words in page
    assert json.loads((tmp_path / "run.json").read_text())["n"] == [216]


def test_tasks_that_do_not_fit_are_refused_in_a_line(pope, tmp_path):
    scenes = load_pairs("emoji-objects", split="test", limit=4, progress=False)
    with pytest.raises(UserError, match=r"task retrieval .*: the models encode no text"):
        _measured([Talker(0)], [], Source(scenes), tmp_path, tasks={"retrieval": None})
    plain = with_card(clip(**TINY, seed=0), ModelCard("c", "c", "softmax", 0, (3, 64, 64), 0))
    with pytest.raises(UserError, match=r"task pope .*: the models answer no questions in words"):
        _measured([plain], [], Source(pope), tmp_path, tasks={"pope": None})


@needs.pycocoevalcap
def test_captions_are_scored_by_cider(tmp_path):
    scenes = load_pairs("emoji-objects", split="test", limit=30, progress=False)

    class Captioner(Talker):
        def answer(self, images, questions, max_new_tokens):
            known = {round(float(scenes.pixels(row).float().sum()), 0): row for row in range(30)}
            rows = [known[round(float(image.sum() * 255), 0)] for image in images]
            words = [scenes.captions[row][0].upper() + "." if row % 2 else "a thing" for row in rows]
            return words, torch.zeros(len(rows), 2)

    summary = _measured([Captioner(0)], [], Source(scenes), tmp_path)
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert rows.filter(pl.col("unit") % 2 == 1)["score"].to_list() == pytest.approx([1.0] * 15)
    assert rows.filter(pl.col("unit") % 2 == 0)["score"].max() < 0.2
    (result,) = summary["results"]
    assert (result["task"], result["n"]) == ("caption", 30)
    assert result["value"] == pytest.approx(rows["score"].mean())


@needs.pycocoevalcap
def test_cider_by_hand():
    # one-word captions and references of two images: only 1-grams occur, each in one image: cosine 1 or 0, of n = 1 … 4
    assert cider(["dog", "dog"], [["dog"], ["cat"]]) == pytest.approx([2.5, 0.0])
    with pytest.raises(UserError, match="CIDEr of 1 captions"):
        cider(["dog"], [["dog"]])
