"""Retrieval and zero-shot classification against CLIP_benchmark's own functions, on the same features."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from antiphase.evaluation.metrics import estimate, task_metrics
from antiphase.evaluation.retrieval import retrieval_rows
from antiphase.evaluation.zero_shot import zero_shot_rows
from antiphase.models import clip, zero_shot_classifier
from antiphase.statistics.intervals import mean_over_groups
from tests import needs
from tests.training.tiny_pairs import TINY

pytestmark = needs.clip_benchmark
_reason = needs.clip_benchmark.kwargs["reason"]
theirs_retrieval = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval", reason=_reason)
theirs_classification = pytest.importorskip("clip_benchmark.metrics.zeroshot_classification", reason=_reason)


class Given:
    """A model whose images and texts are vectors already, as CLIP_benchmark calls it."""

    encode_image = staticmethod(lambda images: images)
    encode_text = staticmethod(lambda texts: texts)


def their_recalls(images, texts, owners, ks):
    """Return CLIP_benchmark's recalls; it wants the captions image by image."""
    captions = [texts[owners == image] for image in range(len(images))]
    loader = [(images[i : i + 7], [list(several) for several in captions[i : i + 7]]) for i in range(0, len(images), 7)]
    return theirs_retrieval.evaluate(Given, loader, torch.stack, "cpu", amp=False, recall_k_list=list(ks))


def our_recalls(images, texts, owners):
    rows = retrieval_rows(F.normalize(images, dim=-1), F.normalize(texts, dim=-1), owners, torch.arange(len(images)))
    return {f"{m.setting}_retrieval_recall@{m.name[2:]}": estimate(m).value for m in task_metrics("retrieval", rows)}


@pytest.mark.parametrize("captions", [1, 5], ids=["one caption", "five captions"])
def test_recalls_are_theirs(captions):
    draw = torch.Generator().manual_seed(captions)
    images = torch.randn(53, 11, generator=draw)
    owners = torch.arange(53).repeat_interleave(captions)
    texts = images[owners] + 1.5 * torch.randn(len(owners), 11, generator=draw)
    recalls, peer_recalls = our_recalls(images, texts, owners), their_recalls(images, texts, owners, (1, 5, 10))
    assert recalls.keys() == peer_recalls.keys()
    assert recalls == pytest.approx(peer_recalls, abs=1e-6)
    assert 0.1 < recalls["image_retrieval_recall@1"] < 0.9


def test_recalls_are_theirs_with_captions_of_unequal_number_and_equal_ones():
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(31, 5, generator=draw)
    owners = torch.arange(31).repeat_interleave(torch.randint(1, 6, (31,), generator=draw))
    texts = images[owners] + torch.randn(len(owners), 5, generator=draw)
    texts[1] = texts[0]  # captions of the same image that tie
    owners[1] = owners[0]
    assert our_recalls(images, texts, owners) == pytest.approx(
        their_recalls(images, texts, owners, (1, 5, 10)), abs=1e-6
    )


def test_a_single_image_is_always_found():
    images, texts = torch.ones(1, 3), torch.randn(4, 3)
    assert set(our_recalls(images, texts, torch.zeros(4, dtype=torch.int64)).values()) == {1.0}
    assert set(their_recalls(images, texts, torch.zeros(4, dtype=torch.int64), (1,)).values()) == {1.0}


def test_of_strangers_that_tie_theirs_takes_any_and_ours_counts_all():
    """``torch.topk`` takes ties as they come: their recall depends on the order, ours is the least of theirs."""
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(23, 5, generator=draw).repeat(2, 1)  # every image twice
    owners = torch.arange(46)
    texts = images + 0.3 * torch.randn(46, 5, generator=draw)
    ours = our_recalls(images, texts, owners)
    seen = []
    for _ in range(20):
        order = torch.randperm(46, generator=draw)
        seen.append(their_recalls(images[order], texts[order], owners, (1, 5, 10)))
    for name in ("image_retrieval_recall@1", "image_retrieval_recall@5"):
        values = [recalls[name] for recalls in seen]
        assert ours[name] <= min(values) + 1e-6
    assert ours["image_retrieval_recall@1"] == 0.0 < min(recalls["image_retrieval_recall@1"] for recalls in seen)
    for recalls in seen:  # where no image ties, they agree: captions are all different
        assert recalls["text_retrieval_recall@1"] == pytest.approx(ours["text_retrieval_recall@1"], abs=1e-6)


def test_class_vectors_and_accuracies_are_theirs(monkeypatch):
    # its accuracy() makes a float of an array of one element, which numpy refuses since 2.4
    monkeypatch.setattr(theirs_classification, "float", lambda array: array.item(), raising=False)
    model = clip(**TINY, seed=3).eval()
    names, templates = (
        ["mug", "lamp", "dog", "red tree", "cat", "old dog", "flat mug"],
        ["a photo of {c}", "the {c}."],
    )
    peer_weights = theirs_classification.zero_shot_classifier(
        model, lambda texts: _Texts(texts), names, templates, "cpu", amp=False
    )
    weights = zero_shot_classifier(model, names, [t.replace("{c}", "{}") for t in templates]).weights
    torch.testing.assert_close(weights, peer_weights, atol=1e-6, rtol=0)

    draw = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 7, (61,), generator=draw)
    images = weights.T[labels] + 0.4 * torch.randn(61, weights.shape[0], generator=draw)
    loader = [(images[i : i + 8], labels[i : i + 8]) for i in range(0, 61, 8)]
    logits, target = theirs_classification.run_classification(Given, peer_weights, loader, "cpu", amp=False)
    first, fifth = theirs_classification.accuracy(logits, target, topk=(1, 5))
    recall = theirs_classification.balanced_accuracy_score(target, logits.argmax(1))
    rows = zero_shot_rows(F.normalize(images, dim=-1), weights, labels, torch.arange(61))
    estimates = {metric.name: estimate(metric).value for metric in task_metrics("zero-shot", rows)}
    assert estimates["top-1"] == pytest.approx(first, abs=1e-6)
    assert estimates["top-5"] == pytest.approx(fifth, abs=1e-6)
    assert estimates["per class"] == pytest.approx(recall, abs=1e-6)
    assert 0.2 < first < 0.95
    hits = (logits.argmax(1) == target).double().numpy()
    assert mean_over_groups(hits, np.asarray(target)).value == pytest.approx(recall, abs=1e-6)


class _Texts(list):
    """Tokens of a model that reads strings: CLIP_benchmark moves them to a device."""

    def to(self, device):
        return self
