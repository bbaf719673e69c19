"""Models planted with a fault raise their warning, sound ones none."""

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, apgd, autoattack, pgd, square
from antiphase.attacks.engine.checks import black_box_wins, falling_asr
from tests.attacks import toys

THREAT = Threat("linf", 0.01)


class Wrapped(nn.Module):
    """A sound model with something before and after it."""

    def __init__(self, before=nn.Identity(), after=nn.Identity()):  # noqa: B008 (no state)
        super().__init__()
        self.before, self.after, self.model = before, after, toys.network()

    def forward(self, x):
        return self.after(self.model(self.before(x)))


class Do(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Bent(torch.autograd.Function):
    """The identity, with a gradient that is something else."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def _bent(change):
    return Wrapped(before=Do(lambda x: Bent.apply(x, change)))


FAULTS = {
    "gradients were zero": Wrapped(before=Do(lambda x: (x * 16).round() / 16)),
    "gradients were NaN": _bent(lambda gradient: gradient * torch.nan),
    "randomised": Wrapped(after=Do(lambda z: z + 0.1 * torch.randn_like(z))),
    "depend on the other images": Wrapped(before=Do(lambda x: x - x.mean(0, keepdim=True) + 0.5)),
    "returns probabilities": Wrapped(after=nn.Softmax(1)),
    "never rose": _bent(lambda gradient: -gradient),
}


@pytest.mark.parametrize("words", FAULTS)
@pytest.mark.parametrize("attack", [pgd, apgd])
def test_a_planted_fault_is_named(words, attack):
    result = attack(FAULTS[words], toys.images(37), None, THREAT, steps=4)
    assert [words for warning in result.warnings if words in warning] == [words], result.warnings


def test_probabilities_rounded_to_half_precision_are_named():
    rounded = Wrapped(after=Do(lambda z: z.softmax(1).half().float()))
    assert any("returns probabilities" in one for one in pgd(rounded, toys.images(37), None, THREAT, steps=2).warnings)


@pytest.mark.parametrize(("last", "named"), [(Do(lambda z: z[:, :1].sigmoid()), True), (Do(lambda z: z[:, :1]), False)])
def test_one_output_that_may_be_a_probability_is_named(last, named):
    warnings = pgd(Wrapped(after=last), toys.images(37), None, THREAT, steps=2).warnings
    assert any("remove the final sigmoid" in one for one in warnings) == named


def test_masking_some_samples_is_named_too():
    images = toys.images(40)
    masked = images.flatten(1).mean(1).argsort()[:4]
    brightest = images[masked].flatten(1).mean(1).amax() + 1e-4

    def some(x):
        return torch.where((x.flatten(1).mean(1) < brightest)[:, None, None, None], x.round(decimals=1), x)

    result = pgd(Wrapped(before=Do(some)), images, None, Threat(eps=0.001), steps=4)
    assert any("gradients were zero" in warning for warning in result.warnings)


def test_one_image_is_enough_to_see_that_the_batch_matters():
    result = pgd(FAULTS["depend on the other images"], toys.images(1), None, THREAT, steps=1)
    assert any("depend on the other images" in warning for warning in result.warnings)


@pytest.mark.parametrize(("attack", "settings"), [(pgd, {}), (apgd, {}), (square, {"queries": 200})])
def test_a_sound_model_is_not_accused(attack, settings):
    assert attack(Wrapped(), toys.images(37), None, THREAT, **settings).warnings == ()


def test_l1_apgd_compares_with_the_loss_at_its_start():
    threat = Threat("l1", 0.1)  # an iterate of the last phase may be no better than the one it begins at
    assert apgd(Wrapped(), toys.images(37), None, threat, steps=50).warnings == ()
    (warning,) = apgd(FAULTS["never rose"], toys.images(37), None, threat, steps=50).warnings
    assert "never rose" in warning


def test_square_shows_what_masked_gradients_hide():
    images = toys.images(37)
    result = autoattack(FAULTS["gradients were zero"], images, None, Threat("linf", 0.04), steps=3, queries=200)
    assert any("square, without gradients, broke" in warning for warning in result.warnings)
    assert any("gradients were zero" in warning for warning in result.warnings)


def test_one_lucky_sample_is_no_sign():
    assert black_box_wins(11, {"square": 1}, 50) == []
    assert len(black_box_wins(12, {"square": 2}, 50)) == 1


def test_falling_rates():
    assert falling_asr([0.1, 0.2, 0.3], [0.2, 0.2, 0.4]) == []
    assert len(falling_asr([0.1, 0.2, 0.3], [0.2, 0.1, 0.05])) == 2
