"""The current λ of each layer, in own models and in timm's."""

import pytest
import timm
import torch
from torch.testing import assert_close

from antiphase.attention.lambdas import depth_scheduled
from antiphase.errors import UserError
from antiphase.models import card as kinds
from antiphase.models import clip
from antiphase.models.card import layer_lambdas, mean_lambdas
from antiphase.models.vit import diffvit, vit
from antiphase.registry import SCHEDULES

TINY = {"patch_size": 2, "in_channels": 1, "dim": 20, "depth": 3, "num_heads": 4, "num_classes": 5}


def test_standard_attention_has_none():
    assert layer_lambdas(vit(6, **TINY)) == []
    assert mean_lambdas(vit(6, **TINY)) == []


def test_one_for_each_layer_in_order():
    model = diffvit(6, parameterisation="fixed", lambda_schedule="depth", **TINY)
    assert mean_lambdas(model) == pytest.approx([depth_scheduled(layer) for layer in range(3)])


def test_heads_are_averaged_and_the_tensors_are_free_of_the_graph():
    model = diffvit(6, parameterisation="scalar", **TINY)
    with torch.no_grad():
        model.blocks[1].attn.lam.a[0] = 0.5
    lams = layer_lambdas(model)
    assert [tuple(lam.shape) for lam in lams] == [(2,)] * 3
    assert not any(lam.requires_grad for lam in lams)
    expected = torch.tensor([0.8, 0.8 + (torch.tensor(0.5).exp() - 1) / 2, 0.8])
    assert_close(torch.tensor(mean_lambdas(model)), expected)


def test_timms_layers_are_read_too():
    model = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, attn_layer="diff", img_size=32, depth=2, num_classes=3
    )
    assert len(layer_lambdas(model)) == 2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda_" in name:
                parameter.zero_()
    assert mean_lambdas(model) == pytest.approx([depth_scheduled(0), depth_scheduled(1)])


class Foreign(torch.nn.Module):
    """Attention of another library, with a λ for each of two heads."""

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))

    def _compute_lambda(self):
        return self.weights


def test_the_lambda_of_another_librarys_layer_is_one_line(monkeypatch):
    model = torch.nn.Sequential(Foreign([0.1, 0.3]), torch.nn.Linear(2, 2), Foreign([0.5, 0.5]))
    assert mean_lambdas(model) == []
    monkeypatch.setitem(kinds._KNOWN, f"{__name__}.Foreign", "differential")
    assert mean_lambdas(model) == pytest.approx([0.2, 0.5])
    assert not any(lam.requires_grad for lam in layer_lambdas(model))


def test_a_schedule_of_ones_own_is_an_entry_in_the_registry(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "halved", lambda lambda_init: lambda layer: lambda_init / 2**layer)
    model = diffvit(6, parameterisation="fixed", lambda_schedule="halved", lambda_init=0.4, **TINY)
    assert mean_lambdas(model) == pytest.approx([0.4, 0.2, 0.1])
    assert [block.attn.scale for block in model.blocks] == pytest.approx([0.6, 0.8, 0.9])
    known = ", ".join(SCHEDULES)
    assert "halved" in known
    with pytest.raises(UserError, match=f"lambda_schedule 'rising': expected one of {known}"):
        diffvit(6, lambda_schedule="rising", **TINY)
    with pytest.raises(UserError, match=f"schedule 'rising': expected one of {known}"):
        clip("small", schedule="rising")
