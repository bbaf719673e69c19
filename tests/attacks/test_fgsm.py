"""FGSM: one step of the whole budget along the sign or the direction of the gradient."""

import pytest
import torch
import torch.nn.functional as F

from antiphase.attacks import Threat
from antiphase.attacks.pgd import fgsm
from tests.attacks.toys import images, network


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.05), ("l2", 0.6)])
def test_one_step_of_the_whole_budget(norm, eps):
    model, x = network(), images(7)
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
