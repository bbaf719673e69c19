"""Square: its slow twin, the threat set, the linear model's closed form, and a search that knows no batch."""

import importlib
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from antiphase.attacks import Threat, objectives
from antiphase.attacks.catalogue import find_attack, settings_of
from antiphase.attacks.engine.oracle import Oracle
from antiphase.attacks.square import bump, square, window_size, windows
from antiphase.errors import UserError
from antiphase.streams import key, sample_keys
from tests.attacks.toys import Coarse, Linear, images, least, network
from tests.reference import square as reference

NORMS = ["linf", "l2"]
MODULE = importlib.import_module("antiphase.attacks.square")  # the package names the function alike


@pytest.fixture
def batches(monkeypatch):
    """Collect the images that a search asks about, without padding."""
    seen, plain = [], Oracle.logits

    def logits(oracle, x):
        seen.append(x.clone())
        return plain(oracle, x)

    monkeypatch.setattr(Oracle, "logits", logits)
    return seen


@pytest.fixture
def proposed(monkeypatch):
    """Collect every proposal, asked about or not, by the row's key and the number of the query."""
    seen, plain = {}, MODULE._Square._propose

    def propose(search, rows, t):
        x = plain(search, rows, t)
        for row, numbers, made in zip(rows["key"].tolist(), t.tolist(), x, strict=True):
            seen.setdefault(row, {}).update(zip(numbers, made, strict=True))
        return x

    monkeypatch.setattr(MODULE._Square, "_propose", propose)
    return seen


def same(one, other, order=None):
    for name in ("success", "adversarial", "prediction", "distance", "forwards", "backwards"):
        expected = getattr(one, name) if order is None else getattr(one, name)[order]
        assert torch.equal(expected, getattr(other, name)), name


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("shape", "queries", "options"),
    [
        ((3, 7, 5), 70, {}),
        ((2, 11, 13), 40, {"rescale_schedule": True}),  # down to the smallest windows
        ((1, 5, 1), 30, {"p_init": 0.3}),
        ((2, 1, 17), 60, {}),
        ((3, 2, 3), 20, {"p_init": 1.0}),
    ],
)
@pytest.mark.parametrize("margin_to_bounds", [True, False])
def test_agrees_with_the_slow_twin(norm, shape, queries, options, margin_to_bounds, batches):
    size = math.prod(shape)
    model, x = network(size=size).double(), images(3, shape).double()
    if not margin_to_bounds:
        x = (x - 0.35) / 0.3  # from 0 to 1
    eps = {"linf": 0.07, "l2": 0.9}[norm]
    result = square(
        model,
        x,
        None,
        Threat(norm, eps),
        queries=queries,
        early_stop=False,
        seed=3,
        batch_size=1,
        **{"rescale_schedule": False, **options},
    )
    seen = torch.cat(batches)
    keys = sample_keys(key(3, "square", 0), torch.arange(3)).tolist()
    for index in range(3):
        label = result.label[index : index + 1]

        def ask(image, label=label):
            logits = model(image[None])
            return objectives.margin(logits, label).item(), bool(logits.argmax(1) != label)

        proposals, accepted, best = reference.square(
            ask,
            x[index],
            eps,
            norm,
            keys[index],
            queries,
            options.get("p_init", 0.8),
            options.get("rescale_schedule", False),
        )
        assert 2 <= sum(accepted) < queries
        # the root of what is left of ε² makes 1e-8 of a rounding error of 1e-16
        assert_close(result.adversarial[index], best, rtol=0, atol=1e-7)
        for proposal in proposals:
            assert float((seen - proposal).abs().flatten(1).amax(1).min()) < 1e-7
    assert (result.forwards == queries + 2).all()  # the clean image before, the confirmation after


def test_what_is_adversarial_is_kept_whatever_the_objective_says():
    model, x = network().double(), images(6).double()

    def objective(logits, labels):
        return (50 * logits[:, 0]).sin()  # knows nothing of the labels

    def ask(image):
        logits = model(image[None])
        return objective(logits, label).item(), bool(logits.argmax(1) != label)

    result = square(
        model, x, None, Threat(eps=0.12), queries=40, objective=objective, early_stop=False, rescale_schedule=False
    )
    keys = sample_keys(key(0, "square", 0), torch.arange(6)).tolist()
    for index in range(6):
        label = result.label[index : index + 1]
        proposals, _, best = reference.square(ask, x[index], 0.12, "linf", keys[index], 40)
        assert bool(result.success[index]) == any(ask(proposal)[1] for proposal in proposals)
        assert_close(result.adversarial[index], best, rtol=0, atol=1e-9)
    assert 0 < result.asr < 1


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("eps", [0.0, 1e-7, 0.05, 3.0])
def test_every_proposal_is_within_the_threat(norm, eps, proposed):
    x = torch.rand(4, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    x[:, :, :3] = (x[:, :, :3] > 0.5).float()  # pixels at their bounds
    threat = Threat(norm, min(eps, 1.0) if norm == "linf" else eps)
    for clean in x:
        proposed.clear()
        square(network(size=189), clean[None], None, threat, queries=80, early_stop=False, rescale_schedule=True)
        (numbered,) = proposed.values()
        seen = torch.stack(list(numbered.values()))
        assert len(seen) >= 80
        assert threat.allows(seen, clean.expand_as(seen)).all()
        if eps == 0.05:  # what can be used is used: half the pixels at their bounds can move one way only
            assert (threat.distance(seen, clean.expand_as(seen)) > 0.7 * eps).all()


@pytest.mark.parametrize("norm", NORMS)
def test_l2_length_is_the_budget_and_linf_pixels_sit_on_its_corners(norm):
    eps = {"linf": 0.1, "l2": 0.3}[norm]  # far from the bounds
    result = square(network(), images(4), None, Threat(norm, eps), queries=120, early_stop=False)
    if norm == "l2":
        assert_close(result.distance, torch.full((4,), eps), rtol=0, atol=1e-6)
    else:
        change = (result.adversarial - images(4)).abs()
        assert_close(change, torch.full_like(change, eps), rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("options", [{}, {"early_stop": False}, {"targets": 2, "restarts": 2}])
def test_batch_size_and_order_change_nothing(norm, options):
    model, x = network(), images(20)
    threat = Threat(norm, {"linf": 0.012, "l2": 0.1}[norm])
    runs = [
        square(model, x, None, threat, queries=60, batch_size=size, rescale_schedule=True, **options)
        for size in (1, 7, 64)
    ]
    assert 0 < runs[0].asr < 1
    for other in runs[1:]:
        same(runs[0], other)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(5))
    shuffled = square(model, x[order], None, threat, queries=60, ids=order, rescale_schedule=True, **options)
    same(runs[0], shuffled, order)
    assert (runs[0].forwards[~runs[0].success] > 60).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("early_stop", [True, False])
def test_speculation_changes_nothing(norm, early_stop, monkeypatch, batches):
    model, x = network(), images(9, seed=1)
    threat = Threat(norm, {"linf": 0.02, "l2": 0.2}[norm])
    results, counts = [], []
    for fill in (1, 37, 128):
        monkeypatch.setitem(MODULE._FILL, "cpu", fill)
        batches.clear()
        results.append(square(model, x, None, threat, queries=101, early_stop=early_stop))
        counts.append(len(batches))
    assert 0 < results[0].asr < 1
    same(results[0], results[1])
    same(results[0], results[2])
    assert counts[2] < counts[1] < 0.8 * counts[0]


def constant(x):
    """Two classes that no image changes."""
    return torch.eye(2)[:1].expand(len(x), 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_changes_nothing_is_counted_and_not_asked(channels, batches, proposed, monkeypatch):
    monkeypatch.setitem(MODULE._FILL, "cpu", 1)  # one query at a time
    x = torch.full((1, channels, 8, 8), 0.5)
    result = square(constant, x, None, Threat(eps=0.1), queries=400, p_init=0.02)
    (numbered,) = proposed.values()
    first, *later = (numbered[t] for t in range(400))  # nothing is accepted
    expected = [first, *(proposal for proposal in later if not torch.equal(proposal, first))]
    assert len(expected) < {1: 300, 3: 380}[channels]
    assert torch.equal(torch.cat(batches), torch.stack(expected))
    assert (result.forwards == 1 + 400 + 1).all()


@pytest.mark.parametrize("fill", [1, 16, 64])
def test_forward_counts_are_exact(fill, monkeypatch):
    monkeypatch.setitem(MODULE._FILL, "cpu", fill)

    def falls_after(image):
        """Return a model that falls at its n-th proposal: a stateful stand-in for one row's counting."""
        return torch.stack([torch.ones(len(image)), 2.0 * (image.flatten(1).mean(1) > 0.5)], 1)

    x = images(5)
    standing = square(lambda x: torch.tensor([[1.0, 0.0]]).expand(len(x), 2), x, None, queries=23)
    assert (standing.forwards == 1 + 23 + 1).all()
    assert not standing.backwards.any()
    assert not standing.success.any()
    falling = square(falls_after, x * 0.1, None, Threat(eps=0.9), queries=50)
    # by hand: the twin says at which query the prediction changes
    keys = sample_keys(key(0, "square", 0), torch.arange(5)).tolist()
    for index in range(5):

        def ask(image):
            logits = falls_after(image[None].float())
            return float(logits[0, 1] - logits[0, 0]), bool(logits.argmax(1) != 0)

        proposals, _, _ = reference.square(ask, (x * 0.1)[index].double(), 0.9, "linf", keys[index], 50)
        hits = [n for n, proposal in enumerate(proposals) if ask(proposal)[1]]
        assert bool(falling.success[index]) == bool(hits)
        assert int(falling.forwards[index]) == 1 + (hits[0] + 1 if hits else 50) + 1


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("objective", ["margin", "cross_entropy", lambda z, y: 2 * objectives.margin(z, y)])
def test_linear_models_fall_above_the_least_perturbation_and_never_below(norm, objective):
    model, x = Linear(2), images(12)
    for image, bound in zip(x, least(model, x, norm).tolist(), strict=True):
        image = image[None]
        assert not square(model, image, None, Threat(norm, 0.99 * bound), queries=100).success
    factor = {"linf": 1.3, "l2": 2.0}[norm]
    falls = [
        bool(square(model, image[None], None, Threat(norm, factor * bound), queries=1500, objective=objective).success)
        for image, bound in zip(x[:3], least(model, x, norm).tolist()[:3], strict=True)
    ]
    assert all(falls)


@pytest.mark.parametrize("norm", NORMS)
def test_more_queries_or_restarts_never_lower_success(norm):
    model, x = network(), images(40, seed=1)
    threat = Threat(norm, {"linf": 0.01, "l2": 0.08}[norm])
    runs = [square(model, x, None, threat, queries=n, rescale_schedule=False) for n in (1, 5, 25, 125)]
    for few, many in itertools.pairwise(runs):
        assert (many.success >= few.success).all()
        assert torch.equal(many.forwards[few.success], few.forwards[few.success])
    assert runs[-1].asr > runs[0].asr
    again = square(model, x, None, threat, queries=5, restarts=12)
    assert (again.success >= runs[1].success).all()
    assert again.asr > runs[1].asr


def test_a_target_is_what_the_objective_sees():
    model, x = network(), images(6)
    seen = []

    def objective(logits, labels, targets):
        seen.append(targets.unique())
        return objectives.margin(logits, labels, targets)

    result = square(
        model, x[:1], None, Threat(eps=1e-4), queries=5, targets=2, objective=objective, rescale_schedule=True
    )
    order = model(x[:1]).argsort(1, descending=True)[0]
    assert torch.equal(torch.cat(seen).unique(), order[1:3].sort().values)
    assert result.attack == "square-t"
    assert (result.settings["objective"], result.settings["targets"]) == ("custom", 2)
    plain = square(model, x[:1], None, Threat(eps=1e-4), queries=5)
    assert plain.attack == "square"


def test_window_sizes_follow_the_schedule():
    schedule = windows(0.8, 5000, False, "linf", torch.zeros(1, 3, 32, 32))
    # √(0.8·1024 / 2^l), rounded
    assert schedule.height.tolist() == schedule.width.tolist() == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert schedule.after.tolist() == [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    schedule = windows(0.8, 5000, True, "l2", torch.zeros(1, 3, 32, 32))
    assert schedule.height.tolist() == [29, 21, 15, 11, 7, 5, 5, 3, 3, 3]
    # iteration 6 of 5,000 is 12 > 10 of 10,000, iteration 5 is 10
    assert schedule.after.tolist() == [5, 25, 100, 250, 500, 1000, 2000, 3000, 4000]
    assert window_size(0.8, 40, 10, 1) == (32, 10)
    assert window_size(0.8, 1, 40, 3) == (1, 32)
    assert window_size(1e-6, 9, 9, 3) == (3, 3)


def test_bump_by_hand():
    # halves of 1 and 2 rows: in each, 1 + 1/4 at the centre and 1/4 next to it
    upper = torch.tensor([[0.25, 1.25, 0.25]], dtype=torch.float64)
    lower = torch.tensor([[0.25, 0.25, 0.25], [0.25, 1.25, 0.25]], dtype=torch.float64)
    expected = torch.cat([upper / upper.norm(), -lower / lower.norm()]) / math.sqrt(2)
    assert_close(bump(3, 3), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_windows_reach_every_place_and_samples_draw_their_own(norm, proposed):
    x = torch.full((2, 1, 8, 8), 0.5)
    square(constant, x, None, Threat(norm, 0.1), queries=1500, p_init=0.02)
    # nothing is accepted: the n-th proposals are the n-th windows of both samples' first images
    both = torch.stack([torch.stack([proposals[t] for t in range(1500)]) for proposals in proposed.values()])
    start, later = both[:, :1], both[:, 1:]
    changed = (later != start).any(2)
    assert changed.any(1).all()  # the last row and column too
    assert not torch.equal(changed[0], changed[1])
    assert not torch.equal(start[0], start[1])


@pytest.mark.parametrize(
    ("threat", "options", "named"),
    [
        (Threat(), {"queries": 0}, "queries 0"),
        (Threat(), {"restarts": 0}, "restarts 0"),
        (Threat(), {"targets": 0}, "targets 0"),
        (Threat(), {"p_init": 0.0}, "p_init 0.0"),
        (Threat(), {"p_init": 1.1}, "p_init 1.1"),
        (Threat(), {"p_init": math.nan}, "p_init nan"),
        (Threat(), {"objective": "hinge"}, "objective 'hinge'"),
        (Threat("l2", math.inf), {}, "eps inf"),
    ],
)
def test_bad_input(threat, options, named):
    with pytest.raises(UserError, match=named):
        square(network(), images(2), None, threat, **options)


def test_images_without_height_and_width():
    with pytest.raises(UserError, match=r"images of shape \(2, 105\)"):
        square(network(), images(2).flatten(1), None)


@pytest.mark.parametrize("norm", NORMS)
def test_low_precision_searches_in_float32(norm):
    model, x = Coarse(steps=8), images(24, seed=4)
    threat = Threat(norm, {"linf": 0.01, "l2": 0.06}[norm])
    exact, coarse = (
        square(model, x, None, threat, queries=40, precision=precision) for precision in ("float32", "bf16")
    )
    same(exact, coarse)
    assert exact.settings == coarse.settings


def test_large_images_are_not_multiplied(batches):
    def model(x):
        return torch.stack([x.flatten(1).mean(1), x.flatten(1).amax(1) + 1], 1)

    for side, most in ((200, 16), (20, 32)):
        batches.clear()
        square(model, torch.rand(3, 3, side, side), None, Threat(eps=0.01), queries=16)
        assert max(map(len, batches)) == most


def test_a_short_search_spreads_its_window_sizes_over_its_queries():
    model, x = network(), images(9)
    short = {
        rescale: square(model, x, None, Threat(eps=0.05), queries=60, rescale_schedule=rescale)
        for rescale in (None, True, False)
    }
    same(short[None], short[True])
    assert not torch.equal(short[None].adversarial, short[False].adversarial)
    assert short[None].settings["rescale_schedule"]


def test_rows_of_a_rescaled_schedule_have_another_name_than_those_before():
    stages = {queries: find_attack("square", queries=queries).stages[0] for queries in (1_000, 5_000)}
    assert stages[1_000].settings == {"queries": 1_000, "rescale_schedule": True}
    assert stages[5_000].settings == {"queries": 5_000}
    assert find_attack("square").stages[0].settings == {}
    assert find_attack("square", queries=9, rescale_schedule=False).stages[0].settings["rescale_schedule"] is False
    official = find_attack("autoattack", queries=1_000).stages[-1]
    assert official.settings == {"queries": 1_000}
    assert settings_of(official)["rescale_schedule"] is False
