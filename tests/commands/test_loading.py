"""Models of a user's own code: labels, λ and tables are those of what their modules do."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.commands.loading import with_kind_found
from antiphase.models import load_model

MODULE = '''
import torch
from torch import nn


class Attention(nn.Module):
    """Halves of the projections and two softmax calls, or one, by a flag."""

    def __init__(self, differential):
        super().__init__()
        self.differential, self.lam = differential, nn.Parameter(torch.tensor(0.25))
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attend = lambda q, k: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        if self.differential:
            maps = attend(q[..., :3], k[..., :3]) - self.lam * attend(q[..., 3:], k[..., 3:])
        else:
            maps = attend(q, k)
        return self.out((maps @ v).transpose(1, 2).flatten(2))


class Net(nn.Module):
    image_shape = (1, 8, 8)

    def __init__(self, differential):
        super().__init__()
        self.patches, self.norm, self.head = nn.Conv2d(1, 12, 2, 2), nn.LayerNorm(12), nn.Linear(12, 10)
        self.attn = Attention(differential)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        return self.head((x + self.attn(self.norm(x))).mean(1))


def build(differential=True):
    torch.manual_seed(0)
    return Net(differential).eval()
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "net.py"
    path.write_text(MODULE)
    return f"python:{path}:build"


@pytest.fixture(scope="module")
def digits():
    return ap.load_data("digits", limit=3, seed=0)


@pytest.fixture(scope="module")
def twins(file):
    return [load_model(f"{file}?differential={flag}") for flag in (True, False)]


def in_memory(models):
    for model in models:
        if hasattr(model, "card"):
            object.__delattr__(model, "card")
    return models


@pytest.mark.parametrize("given", [False, True], ids=["by name", "in memory"])
def test_twins_of_one_class_are_labelled_each_by_its_flag(given, file, twins, digits):
    one, two = in_memory(twins) if given else [f"{file}?differential={flag}" for flag in (True, False)]
    summary = ap.sense(one, against=two, data=digits, parts="alignment", quiet=True).summary
    assert [model["attention"] for model in summary["models"]] == ["differential", "softmax"]
    assert [model["lambda"] for model in summary["models"]] == [[pytest.approx(0.25, rel=1e-4)], []]
    assert {row["metric"] for row in summary["explanation"]} >= {"gamma", "by_cosine"}


def test_an_audit_of_modules_in_memory_says_which_attention_they_have(twins, digits):
    one, two = in_memory(twins)
    summary = ap.audit(one, against=two, data=digits, eps=(1 / 255,), attack="fgsm", quiet=True).summary
    assert [model["attention"] for model in summary["models"]] == ["differential", "softmax"]
    assert [len(model["lambda"]) for model in summary["models"]] == [1, 0]


def test_the_label_of_a_model_whose_attention_is_not_recognised_is_unknown(twins):
    class OfKey(type(twins[0].attn)):
        def forward(self, x):
            q, k, v = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            one, two = ((q[..., start : start + 3] @ k[..., start : start + 3].mT).softmax(-1) for start in (0, 3))
            lam = x[..., 0].sigmoid()[:, None, None, :]  # of the keys
            return self.out(((one - lam * two) @ v).transpose(1, 2).flatten(2))

    net = type(twins[0])(differential=True)
    net.attn = OfKey(differential=True)
    card = ap.models.ModelCard("net", "net", "softmax", None, (1, 8, 8), 10)
    new_card = with_kind_found(ap.models.card.with_card(net, card)).card
    assert (new_card.attention, new_card.lambdas) == ("unknown", ())


def test_a_model_that_fails_on_random_images_keeps_the_label_of_its_classes():
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(4, 2)

        def forward(self, x):
            raise RuntimeError(f"not these images: {torch.rand(1)}")

    card = ap.models.ModelCard("net", "net", "softmax", None, (1, 8, 8), 10)
    model = ap.models.card.with_card(Refusing(), card)
    state = torch.get_rng_state()
    assert replace(with_kind_found(model).card, state="") == card
    assert torch.equal(torch.get_rng_state(), state)
