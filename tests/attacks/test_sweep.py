"""Several ε in one call: what carries over, and that nothing else changes."""

import itertools

import pytest
import torch

from antiphase.attacks import Threat, apgd, fab, pgd, sweep
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.errors import UserError
from tests.attacks import toys

EPS = [0.004, 0.008, 0.016, 0.03]
THREAT = Threat("linf")


@pytest.fixture(scope="module")
def victim():
    return toys.network(), toys.images(53)


def test_up_every_success_is_proved_and_survivors_alone_go_on(victim):
    up = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5})
    alone = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested=False)
    assert [result.threat.eps for result in up] == EPS
    assert up[0].asr < up[-1].asr
    for smaller, larger, single in zip(up, up[1:], alone[1:], strict=False):
        assert (larger.success | ~smaller.success).all()
        assert torch.equal(larger.success, smaller.success | single.success)
        assert torch.equal(larger.adversarial[smaller.success], smaller.adversarial[smaller.success])
        assert (larger.forwards[smaller.success] == 0).all()
        assert torch.equal(larger.forwards[~smaller.success], single.forwards[~smaller.success])
        assert (larger.distance[larger.success] <= larger.threat.eps + 1e-6).all()


def test_the_order_of_the_budgets_does_not_matter(victim):
    forth = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 3})
    back = sweep(pgd, *victim, None, THREAT, EPS[::-1], settings={"steps": 3})
    assert all(torch.equal(a.success, b.success) for a, b in zip(forth, back, strict=True))


def test_down_only_the_fallen_go_on(victim):
    down = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested="down")
    alone = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested=False)
    assert [result.threat.eps for result in down] == EPS
    for smaller, larger, single in zip(down, down[1:], alone, strict=False):
        assert (larger.success | ~smaller.success).all()
        assert torch.equal(smaller.success, larger.success & single.success)
        assert (smaller.forwards[~larger.success] == 0).all()
    assert sum(int(r.forwards.sum()) for r in down) < sum(int(r.forwards.sum()) for r in alone)


def test_an_attack_for_the_nearest_example_runs_once(victim):
    model, images = victim
    ensemble = autoattack_ensemble("standard", steps=9, queries=3, targets=2)
    fab_alone = type(ensemble)("fab-t", ensemble.stages[2:3])
    up = sweep(fab_alone, model, images, None, THREAT, EPS)
    alone = [fab(model, images, None, Threat("linf", eps), steps=9, targets=2) for eps in EPS]
    for result, single in zip(up, alone, strict=True):
        assert torch.equal(result.success, single.success)
    assert all(int(result.forwards.sum()) == 0 for result in up[1:])


def test_ensembles_carry_over_too(victim):
    ensemble = autoattack_ensemble("standard", steps=5, queries=20, targets=2)
    up = sweep(ensemble, *victim, None, THREAT, EPS, batch_size=7)
    for smaller, larger in itertools.pairwise(up):
        assert (larger.success | ~smaller.success).all()
    assert [result.attack for result in up] == ["autoattack"] * 4
    again = sweep(ensemble, *victim, None, THREAT, EPS, batch_size=500)
    for one, other in zip(up, again, strict=True):
        for name in ("success", "adversarial", "forwards", "backwards"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_falling_asr_is_reported(victim):
    results = iter([0.5, 0.25])

    def fickle(model, images, labels, threat, **run):
        result = apgd(model, images, labels, threat, steps=1, **run)
        success = torch.arange(len(images)) < next(results) * len(images)
        return type(result)(**{**vars(result), "success": success})

    last = sweep(fickle, *victim, None, THREAT, EPS[:2], nested=False)[-1]
    assert "ASR falls from 0.509 at ε = 0.004 to 0.264 at ε = 0.008" in last.warnings[-1]


def test_a_sweep_down_refuses_to_report_before_it_begins(victim):
    def never(*given, **run):
        raise AssertionError("attacked before the refusal")

    with pytest.raises(UserError, match="on_finished: not told of a sweep that goes down"):
        sweep(never, *victim, None, THREAT, EPS, nested="down", on_finished=print)


def test_bad_input(victim):
    with pytest.raises(UserError, match="expected at least one budget"):
        sweep(pgd, *victim, None, THREAT, [])
    with pytest.raises(UserError, match="settings steps: an ensemble's are those of its stages"):
        sweep(autoattack_ensemble(), *victim, None, THREAT, EPS, settings={"steps": 3})


def test_a_nesting_that_does_not_exist(victim):
    with pytest.raises(UserError, match="nested 'dwn': expected 'up', 'down'"):
        sweep(pgd, *victim, None, THREAT, EPS, nested="dwn")
