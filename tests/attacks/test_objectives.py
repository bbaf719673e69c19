"""What the attacks maximise: values by hand, laws, and the errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from antiphase.attacks import Threat, apgd, objectives, pgd, square
from antiphase.errors import UserError
from tests.attacks import toys

LOGITS = torch.tensor([[3.0, 1.0, 0.0, -2.0], [0.0, 5.0, 4.0, 1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])
TARGETS = torch.tensor([3, 1])


def _logits(count=11, classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)


def test_values_by_hand():
    assert_close(objectives.margin(LOGITS, LABELS), torch.tensor([-2.0, 1.0], dtype=torch.float64))
    assert_close(objectives.dlr(LOGITS, LABELS), torch.tensor([-2 / 3, 1 / 4], dtype=torch.float64))
    assert_close(
        objectives.dlr(LOGITS, LABELS, TARGETS), torch.tensor([-5 / (3 + 1), 1 / (5 - 0.5)], dtype=torch.float64)
    )
    assert_close(objectives.margin(LOGITS, LABELS, TARGETS), torch.tensor([-5.0, 1.0], dtype=torch.float64))
    assert_close(objectives.cross_entropy(LOGITS, LABELS, TARGETS), LOGITS.log_softmax(1)[torch.arange(2), TARGETS])


@settings(max_examples=20)
@given(shift=st.floats(-50, 50), scale=st.floats(0.1, 100))
def test_dlr_ignores_shift_and_scale(shift, scale):
    logits = _logits()
    labels, targets = torch.arange(11) % 7, torch.arange(11) * 3 % 7
    moved = scale * logits + shift
    assert_close(objectives.dlr(moved, labels), objectives.dlr(logits, labels))
    assert_close(objectives.dlr(moved, labels, targets), objectives.dlr(logits, labels, targets))


@pytest.mark.parametrize("name", ["margin", "dlr"])
def test_positive_exactly_where_the_prediction_has_changed(name):
    logits = _logits(101)
    labels = torch.arange(101) % 7
    value = objectives.resolve(name)(logits, labels, None)
    assert torch.equal(value > 0, logits.argmax(1) != labels)


@pytest.mark.parametrize("name", objectives._TARGETED)
def test_a_targeted_objective_is_positive_only_where_the_prediction_has_changed(name):
    logits, labels, targets = _logits(101), torch.arange(101) % 7, torch.arange(1, 102) % 7
    value = objectives.resolve(name, 1)(logits, labels, targets)
    if name == "cross_entropy":
        assert torch.equal(value.exp() > 0.5, logits.softmax(1).gather(1, targets[:, None])[:, 0] > 0.5)
    else:
        assert (logits.argmax(1) != labels)[value > 0].all()


@pytest.mark.parametrize("name", objectives._TARGETED)
def test_gradients(name):
    logits, labels, targets = _logits(5).requires_grad_(True), torch.arange(5), torch.arange(1, 6)
    plain, targeted = objectives.resolve(name), objectives.resolve(name, 1)
    assert torch.autograd.gradcheck(lambda z: plain(z, labels, None), logits)
    assert torch.autograd.gradcheck(lambda z: targeted(z, labels, targets), logits)


def test_the_cosine_to_the_own_prompt():
    generator = torch.Generator().manual_seed(0)
    image, prompts = torch.randn(3, 11, generator=generator), torch.randn(5, 11, generator=generator)
    labels = torch.tensor([4, 0, 2])
    logits = 100 * torch.nn.functional.normalize(image, dim=1) @ torch.nn.functional.normalize(prompts, dim=1).T
    cosine = torch.nn.functional.cosine_similarity(image, prompts[labels])
    torch.testing.assert_close(objectives.resolve("cosine")(logits, labels, None), -100 * cosine)


def test_dlr_of_equal_logits_is_zero():
    logits = torch.zeros(3, 5)
    assert torch.equal(objectives.dlr(logits, torch.arange(3)), torch.zeros(3))


def test_dlr_of_few_classes_is_the_margin():
    two, three = LOGITS[:, :2], LOGITS[:, :3]
    labels, targets = torch.tensor([0, 1]), torch.tensor([1, 0])
    assert torch.equal(objectives.dlr(two, labels), objectives.margin(two, labels))
    assert torch.equal(objectives.dlr(three, labels, targets), objectives.margin(three, labels, targets))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("attack", [pgd, apgd, square])
def test_an_objective_may_compute_in_another_type(attack, dtype):
    model, images = toys.Linear(4), toys.images(6)
    threat, how = (
        Threat(eps=2 * float(toys.least(model, images, "linf").max())),
        {"queries": 30} if attack is square else {},
    )

    def objective(logits, labels):
        return -logits.to(dtype).log_softmax(1).gather(1, labels[:, None])[:, 0]

    result = attack(model, images, None, threat, objective=objective, **how)
    assert result.adversarial.dtype == images.dtype
    assert result.success.any()


@pytest.mark.parametrize("resolve", [objectives.resolve, lambda name: objectives.resolve(name, 1)])
def test_names(resolve):
    with pytest.raises(UserError, match=r"objective 'hinge': expected one of cross_entropy, margin, dlr"):
        resolve("hinge")
    assert resolve(lambda logits, labels, *targets: logits + labels)(2, 3, 4) == 5
