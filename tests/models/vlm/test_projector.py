"""The projector's start that matches words."""

import pytest
import torch

from antiphase.models.vlm.projector import Projector


@pytest.mark.parametrize("kind", ["linear", "mlp2x"])
def test_after_matching_the_outputs_have_mean_0_and_the_norm_of_words(kind):
    torch.manual_seed(0)
    projector = Projector(kind, width=6, count=16, language_width=10, merge=2).double()
    tokens = 3 * torch.randn(20, 16, 6, dtype=torch.float64) + 5
    before = projector(tokens)
    projector.match(tokens, 3.2)
    after = projector(tokens)
    torch.testing.assert_close(after.mean((0, 1)), torch.zeros(10, dtype=torch.float64), atol=1e-12, rtol=0)
    assert after.norm(dim=-1).mean().item() == pytest.approx(3.2)
    centred = before - before.mean((0, 1))
    torch.testing.assert_close(
        after, centred * (3.2 / centred.norm(dim=-1).mean())
    )  # nothing else has changed
    assert all(parameter.requires_grad for parameter in projector.parameters())
