"""What every attack gets from the engine, whatever it is given: tried with PGD and Square."""

import numpy as np
import pytest
import torch

from antiphase.attacks import Threat, pgd, square
from antiphase.errors import UserError
from tests.attacks import toys


@pytest.fixture(scope="module")
def victim():
    return toys.network(), toys.images(37)


def test_budgets_are_in_the_pixels_units_whatever_these_are(victim):
    model, images = victim
    small = pgd(model, images, None, Threat(eps=3.3 / 255), steps=5)
    large = pgd(lambda x: model(x / 255), images * 255, None, Threat(eps=3.3, bounds=(0, 255)), steps=5)
    assert 0 < small.asr < 1
    assert large.asr == pytest.approx(small.asr, abs=2 / len(images))


def test_images_that_want_a_gradient_leave_no_graph_behind(victim):
    model, images = victim
    result = pgd(model, images.clone().requires_grad_(), None, Threat(), steps=2)
    assert not result.adversarial.requires_grad
    assert not result.distance.requires_grad


def test_a_model_that_works_in_place_does_not_reach_the_images():
    model, images = toys.network(), toys.images(32)
    before = images.clone()
    result = square(lambda x: model(x.sub_(0.1)), images, None, Threat(eps=0.01), queries=3)
    assert torch.equal(images, before)
    assert not any("randomised" in warning for warning in result.warnings)


def test_gradients_inside_inference_mode_are_refused_by_name(victim):
    model, images = victim
    with torch.inference_mode(), pytest.raises(UserError, match="inference_mode"):
        pgd(model, images, None, Threat(), steps=2)


def test_alone_in_its_batch_means_alone_in_every_pass():
    model, images, threat = toys.network(), toys.images(24), Threat(eps=0.02)

    def company(x):
        return model(0.5 * x + 0.5 * x.mean(0, keepdim=True))

    together = pgd(company, images, None, threat, steps=6, batch_size=1)
    for sample in range(24):
        alone = pgd(company, images[sample : sample + 1], None, threat, steps=6, ids=torch.tensor([sample]))
        assert bool(alone.success) == bool(together.success[sample])


def test_verdicts_come_while_others_still_wait():
    model, images = toys.network(), toys.images(24)
    asked = 0

    def counting(x):
        nonlocal asked
        asked += len(x)
        return model(x)

    told = []
    pgd(
        counting, images, None, Threat(eps=1e-6), steps=3, restarts=5, batch_size=16,
        on_finished=lambda positions, arrays: told.extend([asked] * len(positions)),
    )  # fmt: skip
    assert len(told) == 24
    assert told[15] < 0.8 * asked  # the first sixteen before the others are through


def test_numpys_integers_seed_as_pythons_do(victim):
    model, images = victim
    one, two = (pgd(model, images, None, Threat(), steps=1, seed=seed) for seed in (3, np.int64(3)))
    assert torch.equal(one.adversarial, two.adversarial)
