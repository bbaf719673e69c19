"""Small functions by example: what each gives for an input that is checked by hand."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from antiphase.attacks.apgd import checkpoints
from antiphase.attacks.catalogue import find_attack, most_passes, parse_settings, settings_of
from antiphase.attacks.result import eps_at
from antiphase.attacks.square import window_size
from antiphase.commands.certify.run import curve
from antiphase.commands.evaluate.run import requested
from antiphase.commands.lineup import seeded
from antiphase.data.image_sets import class_words
from antiphase.data.images import polygon_mask
from antiphase.data.in_memory import ordered_names
from antiphase.data.sources import find_named
from antiphase.errors import UserError
from antiphase.evaluation.zero_shot import class_prompts
from antiphase.models.card import attention_kind
from antiphase.models.schemes.python_code import split_spec
from antiphase.models.schemes.scheme import named_spec
from antiphase.sensitivity.depth import crossover
from antiphase.sensitivity.interventions import right_angle
from antiphase.sensitivity.layer_estimates import within
from antiphase.sensitivity.relevance import METHODS
from antiphase.sensitivity.smoothing import certified_radius, lower_bound
from antiphase.statistics.intervals import Estimate
from antiphase.studies.scale import titled
from antiphase.vlm.answers import words_of
from antiphase.vlm.pope import is_parsed, says_yes


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (lambda: checkpoints(100), [22, 41, 57, 70, 80, 87, 93, 99]),
        (lambda: [one.name for one in find_attack("autoattack").stages], ["apgd-ce", "apgd-t", "fab-t", "square"]),
        (lambda: settings_of(find_attack("fgsm").stages[0]), {"objective": "cross_entropy"}),
        (lambda: most_passes(find_attack("apgd-t", steps=100).stages[0], 10), (900, 900)),
        (lambda: most_passes(find_attack("square").stages[0], 10), (5000, 0)),
        (lambda: parse_settings("pgd", ["momentum=0.9", "random_start=no"]), {"momentum": 0.9, "random_start": False}),
        (lambda: window_size(0.8, 28, 28, 1), (25, 25)),
        (lambda: window_size(0.8, 28, 28, 3), (25, 25)),
        (lambda: window_size(0.8, 40, 10, 1), (32, 10)),
        (
            lambda: requested(["retrieval", "probe:digits"], ["openmoji", "digits"]),
            ({"retrieval": None, "probe": ["digits"]}, ["openmoji", "digits"]),
        ),
        (lambda: seeded(["runs/vit-{seed}"], [0, 1]), ["runs/vit-0@seed=0", "runs/vit-1@seed=1"]),
        (lambda: class_words(["ice_cream", "hot-dog"]), ("ice cream", "hot-dog")),
        (lambda: ordered_names([("tench", "Tinca tinca"), b"goldfish"]), ("tench", "goldfish")),
        (lambda: ordered_names({"dog": 1, "cat": 0}), ("cat", "dog")),
        (lambda: ordered_names(2), None),
        (lambda: class_prompts("an emoji of {}", ["mug"], None), (("an emoji of mug",),)),
        (lambda: attention_kind(nn.MultiheadAttention(4, 2)), "softmax"),
        (lambda: attention_kind(nn.Linear(2, 2)), "none"),
        (
            lambda: split_spec("model.py:build?depth=4,weights=run/best.pt"),
            ("model.py", "build", {"depth": 4, "weights": "run/best.pt"}),
        ),
        (lambda: named_spec("mine=timm:resnet18@seed=1"), ("mine", "timm:resnet18", 1)),
        (lambda: crossover({1: (0.02, 0.05), 2: (-0.01, 0.02), 4: (-0.06, -0.01)}), 4),
        (lambda: METHODS["attention"].label_for("softmax"), "attention A"),
        (lambda: METHODS["positive"].label_for("differential"), "attention A1"),
        (lambda: titled("fashion-mnist"), "Fashion-MNIST"),
        (lambda: titled("openmoji"), "OpenMoji's drawings"),
        (lambda: titled("folder:pets"), "folder:pets"),
        (lambda: words_of("A dog's bowl, and a half-eaten apple."), "a dog's bowl and a half-eaten apple"),
        (lambda: [says_yes(one) for one in ("No, it is not.", "Yes. No doubt.", "NO", "")], [False, True, True, True]),
        (lambda: [is_parsed(one) for one in ("no", "YES!", "NO", "There is a dog.")], [True, True, False, False]),
    ],
)
def test_example(example, expected):
    assert example() == expected


def test_eps_that_break_shares_of_the_images():
    rows = eps_at(np.arange(1.0, 11.0), np.array([True] * 9 + [False]), levels=(0.5, 0.9, 1.0))
    assert [row.eps for row in rows] == [5.0, 9.0, float("inf")]


def test_certified_accuracy_by_radius():
    rates = curve(np.array([0.0, 0.3, 0.5]), np.array([False, True, True]), [0.0, 0.4])
    assert_allclose(rates["value"], [2 / 3, 1 / 3])


def test_bound_and_radius_of_smoothing():
    assert_allclose(lower_bound(100, 100, 0.001), 0.001 ** (1 / 100))
    assert_allclose(certified_radius(np.array([990, 520]), 1000, 0.25, 0.001), [0.4945, np.nan], atol=5e-5)


def test_polygon_covers_the_pixels_whose_centres_are_inside():
    corners = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0], [1.0, 1.0]])
    assert_array_equal(polygon_mask(corners, 2, 4), [[0, 1, 1, 0], [0, 0, 0, 0]])


def test_vectors_at_a_right_angle_stay():
    pair = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, -3.0]])
    for vector, original in zip(right_angle(*pair), pair, strict=True):
        assert_allclose(vector, original, atol=1e-6)


def test_interval_of_a_size_stays_above_0():
    assert within("norm")(Estimate(1.0, -1.0, 3.0, 2)).low > 0


def test_unknown_source_is_refused_with_those_there_are():
    with pytest.raises(UserError, match="unknown source of pairs 'cocos': expected one of coco, wds:PATH"):
        find_named("cocos", {"coco": 1, "wds:PATH": 2}, "source of pairs")
