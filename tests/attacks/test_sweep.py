"""Several ε in one call: what carries over, and that nothing else changes."""

import itertools

import pytest
import torch

from antiphase.attacks import Threat, apgd, fab, pgd, sweep
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.attacks.sweep import Ensemble, Stage
from antiphase.errors import UserError
from tests.attacks import toys

EPS = [0.004, 0.008, 0.016, 0.03]
THREAT = Threat("linf")


@pytest.fixture(scope="module")
def victim():
    return toys.network(), toys.images(37)


def test_up_every_success_is_proved_and_survivors_alone_go_on(victim):
    up = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5})
    alone = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested="off")
    assert [result.threat.eps for result in up] == EPS
    assert up[0].asr < up[-1].asr
    for smaller, larger, single in zip(up, up[1:], alone[1:], strict=False):
        assert (larger.success | ~smaller.success).all()
        assert torch.equal(larger.success, smaller.success | single.success)
        assert torch.equal(larger.adversarial[smaller.success], smaller.adversarial[smaller.success])
        assert (larger.forwards[smaller.success] == 0).all()
        assert torch.equal(larger.forwards[~smaller.success], single.forwards[~smaller.success])
        assert (larger.distance[larger.success] <= larger.threat.eps + 1e-6).all()


def test_nesting_makes_no_difference_to_the_rates_of_pgd(victim):
    up, alone = (sweep(pgd, *victim, None, THREAT, EPS, nested=nested) for nested in ("up", "off"))
    assert 0 < up[0].asr < up[-1].asr
    assert [result.asr for result in up] == [result.asr for result in alone]
    assert sum(int(result.forwards.sum()) for result in up) < sum(int(r.forwards.sum()) for r in alone)


def test_the_order_of_the_budgets_does_not_matter(victim):
    forth = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 3})
    back = sweep(pgd, *victim, None, THREAT, EPS[::-1], settings={"steps": 3})
    assert all(torch.equal(a.success, b.success) for a, b in zip(forth, back, strict=True))


def test_down_only_the_fallen_go_on(victim):
    down = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested="down")
    alone = sweep(pgd, *victim, None, THREAT, EPS, settings={"steps": 5}, nested="off")
    assert [result.threat.eps for result in down] == EPS
    for smaller, larger, single in zip(down, down[1:], alone, strict=False):
        assert (larger.success | ~smaller.success).all()
        assert torch.equal(smaller.success, larger.success & single.success)
        assert (smaller.forwards[~larger.success] == 0).all()
    assert sum(int(r.forwards.sum()) for r in down) < sum(int(r.forwards.sum()) for r in alone)


ARRAYS = ("label", "clean_prediction", "prediction", "success", "adversarial", "distance", "forwards", "backwards")


def _same(one, other):
    for name in ARRAYS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def _one_after_the_other(ensemble, model, images, labels, budgets, **run):
    """Return what a sweep down must: (positions, result) of a run at each ε on those who fell above, ε falling."""
    ids, positions, results = torch.arange(len(images)), torch.arange(len(images)), []
    for eps in sorted(budgets, reverse=True):
        part_labels = None if labels is None else labels[positions]
        run["ids"] = ids[positions]
        [part] = sweep(ensemble, model, images[positions], part_labels, THREAT, [eps], nested="off", **run)
        results.append((positions, part))
        labels = part.label if labels is None else labels
        positions = positions[part.success]
        if not len(positions):
            break
    return results


@pytest.mark.parametrize("given", [False, True], ids=["clean predictions", "labels"])
@pytest.mark.parametrize(
    "ensemble",
    [
        autoattack_ensemble("standard", steps=6, queries=30, targets=2),
        Ensemble("mixed", (Stage("pgd", pgd, {"steps": 3}), Stage("apgd-t", apgd, {"steps": 6, "targets": 2}))),
    ],
    ids=lambda ensemble: ensemble.name,
)
def test_down_is_one_budget_after_the_other(victim, ensemble, given):
    model, images = victim
    labels = torch.arange(len(images)) % 5 if given else None  # many of them are wrong from the first
    down = sweep(ensemble, model, images, labels, THREAT, EPS, nested="down")
    expected = _one_after_the_other(ensemble, model, images, labels, EPS)
    assert len(expected) == len(EPS)
    for result, (positions, part) in zip(reversed(down), expected, strict=True):
        stands = torch.ones(len(images), dtype=torch.bool)
        stands[positions] = False
        for name in ARRAYS:
            assert torch.equal(getattr(result, name)[positions], getattr(part, name)), name
        assert not result.success[stands].any()
        assert (result.forwards[stands] == 0).all()
        assert torch.equal(result.adversarial[stands], images[stands])
        assert result.settings == part.settings
        assert [(stage.attack, stage.threat.eps) for stage in result.stages] == [
            (stage.attack, stage.threat.eps) for stage in part.stages
        ]
        for stage, other in zip(result.stages, part.stages, strict=True):
            assert torch.equal(stage.ids, other.ids)
            _same(stage, other)


def test_black_box_wins_are_told_of_those_attacked_at_an_eps(victim):
    def strong(model, images, labels, threat, **run):
        return apgd(model, images, labels, threat, steps=9, **run)

    def weak(model, images, labels, threat, **run):
        if threat.eps > EPS[0]:  # above, all fall to the first stage
            return strong(model, images, labels, threat, **run)
        return apgd(model, images, labels, threat, steps=1, **run)

    ensemble = Ensemble("two", (Stage("weak", weak), Stage("square", strong, black_box=True)))
    down = sweep(ensemble, *victim, None, THREAT, EPS, nested="down")
    (positions, part) = _one_after_the_other(ensemble, *victim, None, EPS)[-1]
    assert 0 < len(positions) < 53
    assert down[0].warnings == part.warnings


def test_down_takes_an_infinite_budget(victim):
    first, second = Stage("apgd", apgd, {"steps": 5}), Stage("fab", fab, {"steps": 5, "targets": 2})
    down = sweep(Ensemble("fab", (second,)), *victim, None, THREAT, [*EPS, float("inf")], nested="down")
    assert down[-1].asr == 1
    assert [result.asr for result in down] == sorted(result.asr for result in down)
    with pytest.raises(UserError, match="eps inf: APGD needs a finite ε"):
        sweep(Ensemble("two", (first, second)), *victim, None, THREAT, [0.1, float("inf")], nested="down")


def test_an_attack_for_the_nearest_example_runs_once(victim):
    model, images = victim
    ensemble = autoattack_ensemble("standard", steps=9, queries=3, targets=2)
    fab_alone = type(ensemble)("fab-t", ensemble.stages[2:3])
    up = sweep(fab_alone, model, images, None, THREAT, EPS)
    alone = [fab(model, images, None, Threat("linf", eps), steps=9, targets=2, final_search=False) for eps in EPS]
    for result, single in zip(up, alone, strict=True):
        assert torch.equal(result.success, single.success)
    assert all(int(result.forwards.sum()) == 0 for result in up[1:])
    down = sweep(fab_alone, model, images, None, THREAT, EPS, nested="down")
    for one, other in zip(up, down, strict=True):
        _same(one, other)


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


def test_up_black_box_wins_at_smaller_budgets_still_count(victim):
    def weak(model, images, labels, threat, **run):
        return apgd(model, images, labels, Threat("linf", 1e-5), steps=1, **run)

    ensemble = Ensemble("two", (Stage("weak", weak), Stage("square", apgd, {"steps": 9}, black_box=True)))
    for result in sweep(ensemble, *victim, None, THREAT, EPS[1:]):
        broken = int(result.success.sum())
        assert result.settings["felled"] == {"weak": 0, "square": broken}
        assert (
            f"broke {broken} samples that the gradient-based attacks failed to break (they broke 0 of 37)"
            in result.warnings[0]
        )


def test_falling_asr_is_reported(victim):
    results = iter([0.5, 0.25])

    def fickle(model, images, labels, threat, **run):
        result = apgd(model, images, labels, threat, steps=1, **run)
        success = torch.arange(len(images)) < next(results) * len(images)
        return type(result)(**{**vars(result), "success": success})

    last = sweep(fickle, *victim, None, THREAT, EPS[:2], nested="off")[-1]
    assert "ASR falls from 0.514 at ε = 0.004 to 0.270 at ε = 0.008" in last.warnings[-1]


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
