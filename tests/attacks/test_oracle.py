"""Small batches: padded only where they would give other numbers, so that verdicts do not depend on the batch."""

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, apgd, fab, pgd, square
from antiphase.attacks.engine.oracle import checked
from antiphase.errors import UserError
from tests.attacks import toys


class Watched(nn.Module):
    """Notes the size of every batch; adds ``noise`` in batches of fewer than 16."""

    def __init__(self, noise=0.0, most=0):
        super().__init__()
        self.inner, self.noise, self.most, self.sizes = toys.network(), noise, most, []

    def forward(self, x):
        if len(x) < self.most:
            raise ValueError(f"batch of {len(x)}")
        self.sizes.append(len(x))
        return self.inner(x) + self.noise * (len(x) < 16) * x.mean()


@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (pgd, {"steps": 12}),
        (apgd, {"steps": 12}),
        (fab, {"steps": 12}),
        (apgd, {"steps": 6, "targets": 2, "restarts": 2}),
    ],
)
@pytest.mark.parametrize("model", [Watched(), Watched(noise=1e-6), Watched(most=16), Watched(most=2)])
def test_one_image_alone_is_attacked_as_among_others(attack, options, model):
    images, threat = toys.images(19), Threat(eps=0.02)
    among = attack(model, images, None, threat, **options)
    for index in (0, 7):
        alone = attack(model, images[index : index + 1], None, threat, ids=torch.tensor([index]), **options)
        assert torch.equal(alone.adversarial, among.adversarial[index : index + 1])
        assert torch.equal(alone.forwards, among.forwards[index : index + 1])


def test_one_image_is_not_padded_where_that_changes_no_bit():
    model = Watched()
    pgd(model, toys.images(1), None, Threat(eps=1e-4), steps=30)
    assert model.sizes.count(1) >= 30
    assert sum(model.sizes) < 110  # 560 if all were padded


@pytest.mark.parametrize("model", [Watched(noise=1e-6), Watched(most=16)])
def test_one_image_is_padded_where_a_smaller_batch_differs_or_fails(model):
    pgd(model, toys.images(1), None, Threat(eps=1e-4), steps=5)
    assert model.sizes.count(16) >= 6 + 4


def test_model_that_fails_on_every_batch_still_says_so():
    with pytest.raises(UserError, match="batch of 16"):
        square(Watched(most=17), toys.images(1), None, Threat(eps=1e-4), queries=3)


def test_images_whose_logits_are_not_finite_are_counted():
    logits = torch.zeros(5, 3)
    logits[1, 2], logits[4] = torch.inf, torch.nan
    with pytest.raises(UserError, match="NaN or infinite logits for 2 of 5 images: expected finite real ones"):
        checked(logits, toys.images(5))
