"""Models whose logits change between calls: their mean logits are attacked, and a warning says how."""

import pytest
import torch
from torch import nn

from antiphase.attacks import Threat, apgd, pgd, square
from antiphase.attacks.catalogue import find_attack, most_passes, parse_settings
from tests.attacks import toys

ATTACKS = {"pgd": pgd, "apgd": apgd, "square": square}
SETTINGS = {"pgd": {"steps": 20}, "apgd": {"steps": 20}, "square": {"queries": 100}}


class Dropped(nn.Module):
    """A linear model that is shown a random tenth of the pixels at each call; its mean logits are those of all."""

    def __init__(self):
        super().__init__()
        self.linear = toys.Linear(4, scale=0.5).requires_grad_(False)
        self.linear.bias -= self.linear(toys.images(40)).mean(0)

    def forward(self, x):
        shown = (torch.rand_like(x) < 0.1) / 0.1
        return self.linear(0.5 + (x - 0.5) * shown)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacking_the_mean_of_passes_breaks_the_mean_model(name):
    torch.manual_seed(0)
    model, images = Dropped().eval(), toys.images(40)
    label = model.linear(images).argmax(1)
    threat = Threat(eps=float(toys.least(model.linear, images, "linf").median()) * (10 if name == "square" else 1.3))

    def broken(eot):
        # of the mean model: a single call may differ from the label by chance
        result = ATTACKS[name](
            model, images, label, threat, **SETTINGS[name], eot=eot, early_stop=False, precision="float32"
        )
        return int((model.linear(result.adversarial).argmax(1) != label).sum()), result

    few, single = broken(1)
    many, mean = broken(40)
    assert many > few + 5
    assert (mean.settings["passes"], "passes" in single.settings) == (40, False)
    assert (mean.forwards % 40 == 0).all()
    (warning,) = [text for text in single.warnings if "randomised" in text]
    assert "eot=20" in warning
    assert "--set eot=20" in warning
    assert not any("randomised" in text for text in mean.warnings)


def test_the_option_that_the_warning_names_exists():
    assert parse_settings("pgd", ["eot=20"]) == {"eot": 20}
    (stage,) = find_attack("square", eot=20, queries=7).stages
    assert most_passes(stage, 10) == (140, 0)
