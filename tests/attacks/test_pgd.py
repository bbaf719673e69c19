"""PGD on models whose minimal perturbation has a closed form, and the engine's promises."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from antiphase.attacks import Threat, pgd
from antiphase.attacks.pgd import fgsm
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model
from tests.attacks import toys


class Linear(nn.Module):
    """Two classes, any image shape: logits ±(w·x + b)/2."""

    def __init__(self, shape, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.w = nn.Parameter(torch.randn(math.prod(shape), generator=generator))
        self.b = nn.Parameter(-self.w.sum().detach() / 2)

    def forward(self, x):
        score = x.flatten(1) @ self.w.to(x.dtype) + self.b.to(x.dtype)
        return torch.stack([-score, score], 1) / 2

    def minimal(self, x, norm):
        """|w·x + b| / ‖w‖_dual, where no pixel reaches its bound."""
        score = (x.flatten(1) @ self.w + self.b).abs()
        return score / (self.w.norm(1) if norm == "linf" else self.w.norm(2))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 5, 11)])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_success_agrees_with_the_closed_form_of_a_linear_model(norm, shape, batch_size):
    model = Linear(shape)
    generator = torch.Generator().manual_seed(1)
    x = 0.5 + 0.1 * (torch.rand(31, *shape, generator=generator) - 0.5)
    minimal = model.minimal(x, norm).detach()
    eps = float(minimal.median()) * 1.03
    result = pgd(model, x, None, Threat(norm, eps, (-10.0, 10.0)), steps=30, batch_size=batch_size)
    clear = (minimal / eps - 1).abs() > 0.01  # within 1 % of the closed form either verdict may stand
    assert clear.sum() >= 25
    assert torch.equal(result.success[clear], (minimal < eps)[clear])
    assert result.success.any()
    assert not result.success.all()


@pytest.fixture(scope="module")
def victim():
    model = diffvit(8, seed=3).eval()
    images = torch.rand(41, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    return model, images


@pytest.mark.parametrize(
    ("norm", "early_stop"),
    [
        ("linf", True),
        ("l2", False),
        pytest.param("linf", False, marks=pytest.mark.thorough),
        pytest.param("l2", True, marks=pytest.mark.thorough),
    ],
)
def test_batch_size_and_order_change_nothing(victim, norm, early_stop):
    model, images = victim
    threat = Threat(norm, 0.05 if norm == "linf" else 0.25)
    options = {"steps": 5, "restarts": 2, "early_stop": early_stop}
    one = pgd(model, images, None, threat, batch_size=64, **options)
    assert 0.1 < one.asr < 0.9  # both verdicts occur
    for size in (1, 7):
        other = pgd(model, images, None, threat, batch_size=size, **options)
        for name in ("success", "adversarial", "prediction", "distance", "forwards", "backwards"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    shuffled = pgd(model, images[order], None, threat, batch_size=13, ids=order, **options)
    assert torch.equal(one.adversarial[order], shuffled.adversarial)
    assert torch.equal(one.success[order], shuffled.success)


def test_a_sample_alone_gets_the_verdict_it_gets_in_company(victim):
    model, images = victim
    threat = Threat("linf", 0.02)
    together = pgd(model, images, None, threat, steps=5)
    for position in (0, 17, 40):
        alone = pgd(model, images[position : position + 1], None, threat, steps=5, ids=torch.tensor([position]))
        assert torch.equal(alone.adversarial[0], together.adversarial[position])


@settings(max_examples=15)
@given(
    norm=st.sampled_from(["linf", "l2"]),
    eps=st.floats(1e-3, 0.5),
    seed=st.integers(0, 99),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    start=st.booleans(),
)
def test_every_result_is_within_the_threat_and_every_success_is_true(norm, eps, seed, schedule, start):
    model = diffvit(8, seed=1).eval()
    images = torch.rand(11, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    threat = Threat(norm, eps)
    result = pgd(model, images, None, threat, steps=4, schedule=schedule, random_start=start, seed=seed)
    assert threat.allows(result.adversarial, images).all()
    assert torch.allclose(threat.distance(result.adversarial, images), result.distance, atol=1e-7)
    with torch.no_grad():
        prediction = model(result.adversarial).argmax(1)
    assert torch.equal(prediction, result.prediction)
    assert torch.equal(result.success, prediction != result.label)
    assert torch.equal(result.label, result.clean_prediction)


def test_more_restarts_never_lower_the_success_and_keep_what_fell(victim):
    model, images = victim
    threat = Threat("linf", 0.015)
    one = pgd(model, images, None, threat, steps=3)
    many = pgd(model, images, None, threat, steps=3, restarts=5)
    assert (many.success >= one.success).all()
    assert torch.equal(many.adversarial[one.success], one.adversarial[one.success])
    assert (many.forwards[one.success] == one.forwards[one.success]).all()
    assert (many.forwards[~many.success] > one.forwards[~many.success]).all()


def test_passes_are_counted_and_fallen_samples_cost_no_more(victim):
    model, images = victim
    seen = 0

    def counted(x):
        nonlocal seen
        seen += len(x)
        return model(x)

    result = pgd(counted, images, None, Threat("linf", 0.02), steps=9)
    standing = ~result.success
    # the clean prediction, ten iterates, the confirmation
    assert (result.forwards[standing] == 12).all()
    assert (result.backwards[standing] == 10).all()
    assert (result.forwards[result.success] < 12).any()
    assert seen >= int(result.forwards.sum())
    assert seen < int(result.forwards.sum()) + 8 * 40  # padding only


def test_given_labels_count_an_error_on_the_clean_image_as_fallen(victim):
    model, images = victim
    with torch.no_grad():
        clean = model(images).argmax(1)
    labels = clean.clone()
    labels[::3] = (labels[::3] + 1) % 10
    result = pgd(model, images, labels, Threat("linf", 1e-4), steps=2)
    assert result.success[::3].all()
    assert (result.distance[::3] == 0).all()
    assert (result.forwards[::3] == 1).all()


def test_the_seed_matters_and_repeats(victim):
    model, images = victim
    runs = [pgd(model, images, None, Threat(eps=0.01), steps=1, seed=s).adversarial for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_model_is_left_as_it_was():
    model = diffvit(8).train()
    model.blocks[0].eval()
    model.head.weight.requires_grad_(False)
    pgd(model, torch.rand(3, 1, 8, 8), None, Threat(), steps=1)
    assert model.training
    assert not model.blocks[0].training
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["head.weight"]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"images": torch.full((2, 1, 8, 8), 1.5)}, "1.5"),
        ({"images": torch.full((2, 1, 8, 8), float("nan"))}, "nan"),
        ({"images": torch.zeros(0, 1, 8, 8)}, "shape"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, "uint8"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "labels"),
        ({"labels": torch.tensor([3, 10])}, "0 to 9"),
        ({"steps": 0}, "steps"),
        ({"restarts": 0}, "restarts"),
        ({"restarts": 2, "random_start": False}, "random start"),
        ({"schedule": "saw"}, "saw"),
        ({"objective": "entropie"}, "entropie"),
        ({"batch_size": 0}, "batch_size"),
        ({"ids": torch.zeros(1, dtype=torch.long)}, "ids"),
        ({"ids": torch.tensor([5, 5])}, "duplicate ids"),
        ({"ids": [0, 1]}, "ids of type list"),
        ({"labels": [0, 1]}, "labels of type list"),
        ({"labels": torch.tensor([1.7, 2.0])}, "expected a torch tensor of integer"),
        ({"images": torch.zeros(2, 1, 8, 8).numpy()}, "images of type ndarray"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16)}, "float32 or float64"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.float64)}, r"images of torch\.float64 .* torch\.float32"),
        ({"threat": Threat(eps=math.inf)}, "finite"),
        ({"step_size": math.nan}, "step_size nan"),
        ({"step_size": -1.0}, "step_size -1.0"),
        ({"passes": 0}, "passes 0"),
    ],
)
def test_bad_input_is_one_clear_line(change, match):
    arguments = {"images": torch.zeros(2, 1, 8, 8), "labels": None, "threat": Threat()} | change
    with pytest.raises(UserError, match=match) as raised:
        pgd(diffvit(8), **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "match"),
    [({"norm": "l3"}, "l3"), ({"eps": -0.1}, "-0.1"), ({"eps": float("nan")}, "nan"), ({"bounds": (1, 0)}, "bounds")],
)
def test_a_threat_checks_itself(fields, match):
    with pytest.raises(UserError, match=match):
        Threat(**fields)


def test_nan_logits_stop_the_attack_with_a_message():
    with pytest.raises(UserError, match="NaN"):
        pgd(lambda x: x.flatten(1)[:, :3] * float("nan"), torch.rand(2, 1, 3, 3), None, Threat())
    with pytest.raises(UserError, match="complex logits"):
        pgd(lambda x: x.flatten(1)[:, :3] * 1j, torch.rand(2, 1, 3, 3), None, Threat())


def test_another_number_of_classes_in_a_later_batch_is_refused():
    counts = itertools.cycle((3, 4))
    with pytest.raises(UserError, match=r"returned 3 logits for an image, then 4"):
        pgd(lambda x: x.flatten(1)[:, : next(counts)], torch.rand(2, 1, 3, 3), None, Threat())


@pytest.mark.slow
def test_a_compiled_search_finds_what_an_eager_one_does():
    model, images = (load_model("specimen:diffvit-0"), load_data("specimen-fashion-mnist", limit=40).images(range(40)))
    eager, compiled = (pgd(model, images, None, Threat(eps=4 / 255), compile=way) for way in (False, True))
    assert int((eager.success != compiled.success).sum()) <= 1
    assert (model(compiled.adversarial).argmax(1) != compiled.label).eq(compiled.success).all()


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.6)])
def test_fgsm_takes_one_step_of_the_whole_budget(norm, eps):
    model, x = toys.network(), toys.images(7)
    result = fgsm(model, x, None, Threat(norm, eps))
    leaf = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), result.label, reduction="sum"), leaf)
    length = gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    step = eps * (gradient.sign() if norm == "linf" else gradient / length)
    expected = (x + step).clamp(0, 1)
    assert result.attack == "fgsm"
    assert torch.equal(result.success, model(expected).argmax(1) != result.label)
    assert result.asr > 0
    torch.testing.assert_close(result.adversarial[result.success], expected[result.success])


def test_fgsm_needs_a_finite_eps():
    with pytest.raises(UserError, match="eps inf: FGSM needs a finite ε"):
        fgsm(toys.Linear(4), toys.images(2), None, Threat("l2", math.inf))


def test_an_attack_in_float32_is_in_float32_whatever_autocast_the_caller_is_in():
    seen = []

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(105, 4)

        def forward(self, x):
            logits = self.inner(x.flatten(1))
            seen.append(logits.dtype)
            return logits

    with torch.autocast("cpu", torch.bfloat16):
        pgd(Linear(), toys.images(4), None, Threat(eps=0.01), steps=2, precision="float32")
        assert torch.is_autocast_enabled("cpu")
    assert set(seen) == {torch.float32}
