"""AutoAttack: its stages, what each is given, and what it refuses."""

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, apgd, autoattack, square, sweep
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.attacks.catalogue import find_attack
from antiphase.attacks.engine.oracle import Oracle
from antiphase.errors import UserError
from tests.attacks import toys

THREAT = Threat("linf", 0.012)
QUICK = {"steps": 5, "queries": 15, "targets": 3}


@pytest.mark.parametrize(
    ("version", "stages"),
    [
        ("standard", ["apgd-ce", "apgd-t", "fab-t", "square"]),
        ("2020", ["apgd-ce", "apgd-dlr", "fab", "square"]),
        ("plus", ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]),
        ("rand", ["apgd-ce", "apgd-dlr"]),
        ("malt", ["apgd-ce", "apgd-t", "fab-t", "square"]),
    ],
)
def test_versions(version, stages):
    quick = QUICK if version != "malt" else {"steps": 5, "queries": 15}
    result = autoattack(toys.network(), toys.images(37), None, THREAT, version=version, **quick)
    assert [stage.name for stage in autoattack_ensemble(version).stages] == stages
    assert [part.attack for part in result.stages] == stages
    assert result.attack == ("autoattack" if version == "standard" else f"autoattack-{version}")
    assert sum(result.settings["felled"].values()) == int(result.success.sum())
    assert 0 < result.asr < 1


def test_each_stage_gets_what_stands():
    model, images = toys.network(), toys.images(37)
    result = autoattack(model, images, None, THREAT, ids=torch.arange(37) + 100, **QUICK)
    first = apgd(model, images, None, THREAT, steps=5, ids=torch.arange(37) + 100)
    assert torch.equal(result.stages[0].success, first.success)
    for before, after in zip(result.stages, result.stages[1:], strict=False):
        assert torch.equal(after.ids, before.ids[~before.success])
    standing = ~result.success
    last = square(model, images[standing], None, THREAT, queries=15, ids=result.ids[standing], rescale_schedule=False)
    assert torch.equal(last.adversarial, result.adversarial[~result.success])
    assert int(result.forwards.sum()) == sum(int(part.forwards.sum()) for part in result.stages)


def test_finished_samples_are_told_of_once():
    told = []
    result = autoattack(
        toys.network(),
        toys.images(37),
        None,
        THREAT,
        **QUICK,
        on_finished=lambda positions, arrays: told.extend(positions.tolist()),
    )
    assert sorted(told) == list(range(37))
    assert len(result) == 37


def test_malt_takes_no_other_number_of_targets():
    with pytest.raises(UserError, match="targets 3: version malt takes no other number, MALT chooses 9; leave it out"):
        autoattack(toys.network(), toys.images(2), None, THREAT, version="malt", targets=3)


def test_unknown_version():
    with pytest.raises(UserError, match="version '2019': expected 'standard', '2020', 'plus', 'rand' or 'malt'"):
        autoattack(toys.network(), toys.images(2), None, THREAT, version="2019")


@pytest.mark.parametrize("version", ["2020", "plus"])
def test_too_many_classes_are_refused_before_anything_is_attacked(version):
    model = Counting(toys.Linear(101))
    with pytest.raises(UserError, match=rf"autoattack-{version} takes at most 100 classes .* has 101"):
        autoattack(model, toys.images(2), None, THREAT, version=version)
    assert model.calls == 1


def test_no_images():
    with pytest.raises(UserError, match="expected at least one"):
        autoattack(toys.network(), toys.images(2)[:0], None, THREAT)


class Counting(nn.Module):
    """A model whose logits are off by what each call draws anew."""

    def __init__(self, model, noise=0.0):
        super().__init__()
        self.model, self.noise, self.calls = model, noise, 0

    def forward(self, x):
        self.calls += 1
        logits = self.model(x)
        return logits + self.noise * torch.randn_like(logits)


def test_the_randomised_version_climbs_the_mean_of_20_passes_whoever_calls_it():
    named = find_attack("autoattack", version="rand", steps=5)
    ways = (
        lambda model: autoattack(model, toys.images(9), None, THREAT, version="rand", steps=5),
        lambda model: sweep(named, model, toys.images(9), None, THREAT, [THREAT.eps])[0],
    )
    for way in ways:
        model = Counting(toys.network(), noise=0.01)
        result = way(model)
        assert [part.settings["passes"] for part in result.stages] == [20, 20]
        assert not any("randomised" in warning for warning in result.warnings)
        # a clean look, six questions with a gradient, a verdict, and one more each time that it seemed to fall
        stands = result.stages[0].forwards[~result.stages[0].success]
        assert len(stands)
        assert (stands >= 20 * 8).all()
        assert (result.forwards % 20 == 0).all()
        assert (result.backwards % 20 == 0).all()
        assert model.calls >= 20 * 2 * 6


def test_an_answer_of_several_passes_is_their_mean():
    counter = iter(range(6))

    class Rising(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :2] + next(counter)

    x = torch.rand(16, 3, 2, 2)
    oracle = Oracle(Rising(), passes=3)
    torch.testing.assert_close(oracle.verdict(x), x.flatten(1)[:, :2] + 1)
    torch.testing.assert_close(oracle.logits(x), x.flatten(1)[:, :2] + 4)


def test_the_passes_of_version_rand_may_be_chosen():
    model, images = toys.Linear(4), toys.images(3)
    result = autoattack(model, images, None, Threat(eps=0.001), version="rand", steps=2, passes=3)
    assert {part.settings["passes"] for part in result.stages} == {3}
