"""Which attention a model is said to have."""

import pytest
import timm
import torch
from timm.layers import Attention, DiffAttention
from torch import nn

from antiphase.attention.modules import NormedAttention
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, mean_lambdas, vit
from antiphase.models.card import attention_kind, card_of
from antiphase.models.transformer import AttentionSpec
from antiphase.models.vit import build, configure
from antiphase.registry import ATTENTION
from antiphase.sensitivity import attention_maps

TINY = {"patch_size": 2, "in_channels": 1, "dim": 20, "depth": 1, "num_heads": 4, "num_classes": 5}


class WithALambda(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.lambda_q1 = nn.Parameter(torch.zeros(3))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(6, 6), nn.Linear(6, 6)


class ReluAttention(nn.Module): ...


class Differing(Attention):
    def __init__(self):
        super().__init__(6, 2)
        self.lam = 0.5


class Subtracting(nn.Module):
    """A difference of two attentions: known parts, but what is done with them only running tells."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.MultiheadAttention(6, 2), nn.MultiheadAttention(6, 2)

    def forward(self, x):
        return self.one(x, x, x)[0] - 0.5 * self.two(x, x, x)[0]


class Overriding(Attention):
    def forward(self, x):
        return 2 * super().forward(x)


class Around(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part


class Averaging(nn.Module):
    """Every token is replaced by the mean; nothing in its class or its parts looks like attention."""

    def forward(self, x, mask=None):
        return x.mean(1, keepdim=True).expand_as(x)


def block(part):
    return nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.LayerNorm(6), part))


KINDS = {
    "ours": (lambda: vit(6, **TINY), "softmax"),
    "ours, differential": (lambda: diffvit(6, **TINY), "differential"),
    "timm": (lambda: block(Attention(6, 2)), "softmax"),
    "torch": (lambda: block(nn.TransformerEncoderLayer(6, 2, 8)), "softmax"),
    "a user's, with a λ": (lambda: block(WithALambda()), "unknown"),
    "a user's subclass, with a λ that forward does not use": (lambda: block(Differing()), "softmax"),
    "a user's subclass with another forward": (lambda: block(Overriding(6, 2)), "unknown"),
    "a user's, by its parts": (lambda: block(Mixer()), "unknown"),
    "a user's, by its class": (lambda: block(ReluAttention()), "unknown"),
    "a user's, of standard parts": (lambda: block(Subtracting()), "unknown"),
    "a user's, without a name that tells": (lambda: block(Averaging()), "unknown"),
    "a user's, around differential attention": (lambda: Around(DiffAttention(6, 2)), "differential"),
    "standard and unknown": (lambda: nn.Sequential(Attention(6, 2), ReluAttention()), "unknown"),
    "standard and differential": (lambda: nn.Sequential(Attention(6, 2), DiffAttention(6, 2)), "differential"),
    "no attention": (lambda: block(nn.Conv2d(1, 1, 1)), "none"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_is_read_off_the_modules(name):
    build, expected = KINDS[name]
    assert attention_kind(build()) == expected


@pytest.mark.parametrize("differential", [False, True])
def test_a_registered_attention_of_no_known_class_has_the_kind_that_is_registered(monkeypatch, differential):
    spec = AttentionSpec("mean", differential, lambda config, layer: Averaging())
    monkeypatch.setitem(ATTENTION, "mean", spec)
    assert attention_kind(build(configure("mean", 6, TINY))) == ("differential" if differential else "softmax")


def test_attention_with_norm_and_factor_is_standard():
    assert attention_kind(NormedAttention(6, 2)) == "softmax"


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("vit_pwee_patch16_reg1_gap_256", {"img_size": 32, "depth": 2}, "softmax"),
        ("vit_dpwee_patch16_reg1_gap_256", {"img_size": 32, "depth": 2}, "differential"),
        ("resnet18", {}, "none"),
        ("convnext_atto", {}, "none"),
        ("coat_tiny", {}, "unknown"),
    ],
)
def test_timms_models(name, sizes, expected):
    with torch.device("meta"):
        model = timm.create_model(name, **sizes)
    assert attention_kind(model) == expected


def test_a_loaded_model_without_attention_says_so():
    model = load_model("timm:resnet18", random_weights=True)
    assert card_of(model).attention == "none"
    with pytest.raises(UserError, match="resnet18 has no known attention module"):
        attention_maps(model, torch.rand(1, 3, 32, 32))


def test_the_lambdas_of_timms_parallel_block_are_read():
    model = timm.create_model("vit_dpwee_patch16_reg1_gap_256", img_size=32, depth=2)
    expected = [float(block._compute_lambda().detach()) for block in model.blocks]
    assert mean_lambdas(model) == pytest.approx(expected)
