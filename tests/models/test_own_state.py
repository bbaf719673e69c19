"""What tells two models of a user apart whose weights and ``repr`` are equal."""

from functools import partial

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.models.own_state import own_state

SCALE = 2.0


class Net(nn.Module):
    def __init__(self, lam=0.8, mean=(0.0,), settings=None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.one, self.two = nn.Linear(784, 10), nn.Linear(784, 10)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=generator)
        self.lam, self.mean, self.settings, self.last = lam, torch.tensor(mean), settings, None

    def forward(self, x):
        self.last = x.flatten(1)
        return scaled(self.one(self.last) - self.lam * self.two(self.last))


def scaled(x):
    return x * SCALE


class Other(Net):
    def forward(self, x):
        return scaled(self.one(x.flatten(1)) + self.lam * self.two(x.flatten(1)))


Other.__name__ = "Net"


def hooked(factor):
    net = Net()
    net.one.register_forward_hook(lambda module, inputs, output: output * factor)
    return net


def patched(factor):
    net = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        net[0].weight.zero_()
        net[0].bias.zero_()
    net[0].forward = partial(lambda x, factor: x[:, :3] * factor, factor=factor)
    return net


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Net(0.8), Net(0.0)),
        (Net(mean=(0.0,)), Net(mean=(0.5,))),
        (Net(settings={"heads": [1, 2]}), Net(settings={"heads": [1, 3]})),
        (Net(), Other()),
        (hooked(2.0), hooked(3.0)),
        (Net(), hooked(1.0)),
        (patched(2.0), patched(3.0)),
    ],
)
def test_models_that_compute_something_else_have_other_states(one, other):
    assert own_state(one) != own_state(other)


@pytest.mark.parametrize("make", [Net, Other, partial(hooked, 2.0), partial(patched, 2.0)])
def test_equal_models_have_one_state(make):
    assert own_state(make()) == own_state(make())


def test_what_a_model_keeps_of_its_last_images_does_not_count():
    net = Net()
    net(torch.rand(5, 784))
    state = own_state(net)
    net(torch.rand(5, 784))
    assert own_state(net) == state


def test_a_value_that_the_code_reads_counts(monkeypatch):
    state = own_state(Net())
    monkeypatch.setattr("test_own_state.SCALE" if __name__ == "test_own_state" else f"{__name__}.SCALE", 3.0)
    assert own_state(Net()) != state


def test_two_models_of_equal_weights_are_attacked_each_for_itself(tmp_path):
    on, off, data = Net(0.8), Net(0.0), ap.load_data("specimen-fashion-mnist", limit=12)
    settings = {"data": data, "eps": 4 / 255, "steps": 3, "sense_limit": 0, "quiet": True}
    both = ap.audit({"on": on}, against={"off": off}, out=tmp_path / "both", **settings)
    alone = ap.audit({"off": off}, out=tmp_path / "alone", **settings)
    columns = ["sample", "success", "prediction"]
    rows = both.rows.filter(model="off").select(columns)
    assert rows.equals(alone.rows.select(columns))
    assert not rows["prediction"].equals(both.rows.filter(model="on")["prediction"])


def test_a_model_that_was_mended_is_attacked_again(tmp_path):
    net, data = Net(0.8), ap.load_data("specimen-fashion-mnist", limit=12)
    settings = {"data": data, "eps": 4 / 255, "steps": 3, "sense_limit": 0, "quiet": True}
    before = ap.audit(net, out=tmp_path / "one", **settings)
    net.lam = 0.0
    after = ap.audit(net, out=tmp_path / "one", **settings)
    fresh = ap.audit(Net(0.0), out=tmp_path / "two", **settings)
    assert after.rows["prediction"].equals(fresh.rows["prediction"])
    assert not after.rows["prediction"].equals(before.rows["prediction"])
