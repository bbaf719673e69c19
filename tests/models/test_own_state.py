"""What tells two models of a user apart whose weights and ``repr`` are equal."""

import functools
from functools import partial

import numpy as np
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


class Constant(Net):
    temperature = 2.0

    @property
    def scale(self):
        return 1.0


class OtherConstant(Net):
    temperature = 3.0

    @property
    def scale(self):
        return 1.0


class OtherProperty(Net):
    temperature = 2.0

    @property
    def scale(self):
        return 2.0


OtherConstant.__name__ = OtherProperty.__name__ = "Constant"


def scaled_by(factor):
    def decorated(function):
        @functools.wraps(function)
        def wrapper(*args):
            return factor * function(*args)

        return wrapper

    return decorated


def kept(value):
    net = Net()
    net.kept = value
    return net


def partly_hooked(factor):
    net = Net()
    net.one.register_forward_hook(partial(lambda module, inputs, output, by: output * by, by=factor))
    return net


def defaulting(factor):
    def act(x, *, by=factor):
        return x * by

    return act


def first(x):
    return x


def second(x):
    return -x


class Odd:
    """An object of a user that answers to any name."""

    def __getattr__(self, name):
        raise KeyError(name)


LAYER = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Constant(), OtherConstant()),
        (Constant(), OtherProperty()),
        (partly_hooked(1), partly_hooked(-5)),
        (kept(torch.nn.functional.relu), kept(torch.nn.functional.silu)),
        (kept(torch.tanh), kept(torch.sigmoid)),
        (kept([first, second, first]), kept([second, second, first])),
        (kept([1, [2]]), kept([[1, 2]])),
        (kept(defaulting(2.0)), kept(defaulting(3.0))),
        (kept(scaled_by(2.0)(first)), kept(scaled_by(3.0)(first))),
        (kept({1, 2}), kept({1, 3})),
        (kept(torch.zeros(4)), kept(torch.zeros(2, 2))),
        (kept(np.zeros(2)), kept(np.zeros(2, np.float32))),
        (kept([nn.LeakyReLU(0.1)]), kept([nn.LeakyReLU(0.2)])),
        (kept([nn.Linear(2, 2)]), kept([nn.Linear(2, 2)])),
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


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "b"]),
        np.array([None, 1], object),
        np.arange(3)[::-1],
        np.arange(4, dtype=">i4"),
        torch.eye(3).to_sparse(),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, device="meta"),
        [nn.LazyLinear(2)],
        [nn.Linear(2, 2, device="meta")],
        Odd(),
        {1, "a", None},
        iter([1]),
        functools.lru_cache(first),
        LAYER,
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_attribute_has_a_state(value):
    assert own_state(kept(value)) == own_state(kept(value))


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
