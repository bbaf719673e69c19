"""Copies of a model for the search: equal to it up to rounding, or not used; chosen by a measurement that is kept."""

import json

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from antiphase.attacks import Threat, apgd, fab, pgd, square
from antiphase.attacks.engine import search_model as module
from antiphase.attacks.engine.search_model import faithful_copy, search_model
from tests.attacks import toys

CPU = torch.device("cpu")


class Cnn(nn.Module):
    """Two convolutions with batch norms whose statistics are not those of a new module."""

    def __init__(self, flat="flatten", skip=False, twice=False):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, 3, bias=False)
        self.one, self.two, self.head = nn.BatchNorm2d(5), nn.BatchNorm2d(5), nn.Linear(5 * 5 * 3, 7)
        self.flat, self.skip, self.twice = flat, skip, twice
        for tensor in [*self.parameters(), self.one.running_mean, self.two.running_mean]:
            tensor.data = torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
        for norm in (self.one, self.two):
            norm.running_var.copy_(torch.rand(5, generator=generator) + 0.2)
        self.eval().requires_grad_(False)
        self.head.bias -= Cnn.forward(self, toys.images(64, seed=1)).mean(0)  # or all images are of one class

    def forward(self, x):
        convolved = self.first(x)
        x = self.one(convolved).relu() + (convolved if self.skip else 0)
        x = self.two(self.second(x))
        if self.twice:
            x = x + self.two(x).relu()
        return self.head(x.view(len(x), -1) if self.flat == "view" else x.flatten(1))


class Random(Cnn):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def norms(model):
    return sum(isinstance(part, nn.BatchNorm2d) for part in model.modules())


@pytest.mark.parametrize(
    ("model", "left", "last"),
    [(Cnn(), 0, True), (Cnn("view"), 0, False), (Cnn(twice=True), 1, True)],
    ids=["flatten", "view", "norm called twice"],
)
def test_copy_equals_the_model_and_has_only_the_norms_that_cannot_be_folded(model, left, last):
    images = toys.images(19)
    copied = faithful_copy(model, images)
    exact = model.double()(images.double()).float()
    model.float()
    assert torch.allclose(copied(images), exact, atol=3e-6)
    assert norms(copied) == left
    assert norms(model) == 2
    assert copied.first.weight.is_contiguous(memory_format=torch.channels_last) == last


def hooked():
    model = Cnn()
    model.one.register_forward_hook(lambda part, given, output: output + 1)
    return model


def hooked_backward():
    model = Cnn()
    model.one.register_full_backward_hook(lambda part, inputs, outputs: (0 * inputs[0],))
    return model


def with_offset():
    """The difference to a copy is small only next to an offset of all logits, which decides nothing."""
    model = Cnn(skip=True)
    model.head.bias += 1e5
    return model


@pytest.mark.parametrize(
    "model",
    [Cnn(skip=True), hooked(), hooked_backward(), with_offset(), Random()],
    ids=["skip", "hook", "backward hook", "offset", "random"],
)
def test_no_copy_of_a_model_that_it_would_not_equal(model):
    assert faithful_copy(model, toys.images(19)) is None


def test_norm_of_timm_keeps_its_activation():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), BatchNormAct2d(5), nn.Conv2d(5, 2, 3), nn.Flatten()).eval()
    images = toys.images(2)
    copied = faithful_copy(model, images)
    assert norms(copied) == 0
    assert torch.allclose(copied(images), model(images), atol=1e-5)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_chosen", {})
    return tmp_path / "antiphase" / "search-models.json"


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": '])
def test_choice_is_measured_once_and_kept_on_disk(cache, monkeypatch, broken):
    calls = []
    monkeypatch.setattr(module, "_fastest", lambda choices, *about: calls.append(choices) or "copy float32")
    cache.parent.mkdir()
    cache.write_text(broken)
    for _ in range(2):
        chosen, precision = search_model(Cnn(), toys.images(16), None, "float32", CPU)
        assert norms(chosen) == 0
        assert precision == "float32"
        module._chosen.clear()  # as in a new process
    assert [list(choices) for choices in calls] == [["original float32", "copy float32"]]
    assert list(json.loads(cache.read_text()).values()) == ["copy float32"]
    model = Cnn(skip=True)  # the same architecture to the measurement, but no copy of it is faithful
    assert search_model(model, toys.images(16), None, "float32", CPU) == (model, "float32")


def test_few_images_and_a_model_without_convolutions_are_not_measured(cache):
    model, network = Cnn(), toys.network()
    assert search_model(model, toys.images(15), None, "auto", CPU) == (model, "float32")
    assert search_model(network, toys.images(16), None, "float32", CPU) == (network, "float32")
    assert not cache.exists()


def test_precision_that_is_far_off_or_fails_is_not_chosen(cache, monkeypatch):
    class Far(nn.Module):
        def forward(self, x):
            low = torch.is_autocast_enabled("cpu")
            if low and self.fails:
                raise RuntimeError("no bf16")
            return x.flatten(1)[:, :5] * (2.0 if low else 1.0)

    for fails in (True, False):
        model = Far()
        model.fails = fails
        monkeypatch.setattr(module, "_FASTER", 1e9)
        monkeypatch.setattr(module, "multiplies_bf16", lambda device: True)
        assert search_model(model, toys.images(16), None, "auto", CPU) == (model, "float32")


@pytest.mark.parametrize(
    ("attack", "options", "choices"),
    [
        (pgd, {"steps": 12}, ("original float32", "copy float32", "copy bf16")),
        (apgd, {"steps": 12}, ("original float32", "copy float32", "copy bf16")),
        (fab, {"steps": 12}, ("original float32", "copy float32")),
        (square, {"queries": 40}, ("original float32", "copy float32")),
    ],
)
def test_verdicts_do_not_depend_on_the_search(cache, monkeypatch, attack, options, choices):
    model, images, threat = Cnn(), toys.images(150), Threat(eps=0.005)
    monkeypatch.setattr(module, "multiplies_bf16", lambda device: True)
    results = {}
    for choice in choices:
        monkeypatch.setattr(module, "_fastest", lambda choices, *about, choice=choice: choice)
        module._chosen.clear()
        cache.unlink(missing_ok=True)
        results[choice] = attack(model, images, None, threat, precision="auto", **options)
    exact, *others = results.values()
    assert 0.1 < exact.asr < 0.9
    for other in others:
        assert torch.equal(other.success, exact.success)
        assert torch.all(model(other.adversarial).argmax(1)[other.success] != other.label[other.success])
