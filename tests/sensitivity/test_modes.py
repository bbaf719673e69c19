"""What torch's modes do to the sensitivity functions, and what these leave of the caller's modes."""

import inspect
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

import antiphase.sensitivity as sensitivity
from antiphase.errors import UserError
from antiphase.models import diffvit
from antiphase.sensitivity import exact_norm, power_iteration, propagate, stage_norms
from antiphase.sensitivity.depth import BranchChange
from antiphase.streams import key, sample_keys

MODES = {"gradients": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def make(**fields):
    sizes = {"patch_size": 3, "in_channels": 1, "dim": 20, "depth": 2, "num_heads": 4, "num_classes": 3}
    model = diffvit(image_size=6, **sizes, **fields)
    return model.double().eval()  # its parameters ask for gradients, as a user's do


def images():
    return torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def keys():
    return sample_keys(key(0, "probe"), torch.arange(4)).view(2, 2)


GENERATORS = {
    "branch_changes": lambda model: sensitivity.branch_changes(model, images(), images().flip(0)),
    "attention_layers": lambda model: sensitivity.attention_layers(model, images()),
    "token_grams": lambda model: sensitivity.token_grams(model, images(), keys(), exact=False),
    "direction_grams": lambda model: sensitivity.direction_grams(model, images(), images()[None]),
    "gradient_terms": lambda model: sensitivity.gradient_terms(model, images(), images()[None]),
    "loss_grams": lambda model: sensitivity.loss_grams(model, images(), lambda logits: logits.logsumexp(1).sum()),
}


def state(model):
    """Return every switch that a generator might leave changed."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "forward mode": forward_ad._is_fwd_grad_enabled(),
        "dual level": forward_ad._current_level,
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "kernels": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ),
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
        "training": model.training,
        "gradients": [p.grad is not None for p in model.parameters()],
        "asks": [p.requires_grad for p in model.parameters()],
    }


def numbers(item):
    """Return what one step of a generator gave, as tensors."""
    if isinstance(item, tuple):
        gram = item[1]
        return [gram.first, gram.second, gram.third if hasattr(gram, "third") else gram.cross]
    if isinstance(item, BranchChange):
        return [item.positive, item.negative, item.moved]
    return [item.maps.positive.detach(), item.maps.negative.detach()]


def test_every_public_generator_is_covered():
    public = {
        name for name in sensitivity.__all__ if inspect.isgeneratorfunction(inspect.unwrap(getattr(sensitivity, name)))
    }
    assert public == set(GENERATORS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_leaves_the_modes_of_its_caller(name, mode):
    model = make(**({"variant": "v2"} if name == "gradient_terms" else {}))
    expected = [numbers(item) for item in GENERATORS[name](model)]
    assert expected
    with MODES[mode]():
        before = state(model)
        results = []
        for one in GENERATORS[name](model):
            assert state(model) == before
            results.append(numbers(one))
        assert state(model) == before
        for _ in GENERATORS[name](model):
            break
        assert state(model) == before
        again = [numbers(one) for one in GENERATORS[name](model)]
    assert_close(results, expected, rtol=1e-12, atol=1e-12)
    assert_close(again, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_norms_and_paths_are_the_same_in_every_mode(mode):
    model = make()

    def compute():
        x = images()
        path = propagate(model, x, x.flip(0))
        return [
            power_iteration(model, x, steps=3).value,
            exact_norm(model, x).value,
            stage_norms(model, x, steps=3),
            path.length,
            path.moved,
        ]

    expected = compute()
    with MODES[mode]():
        results = compute()
    assert_close(results, expected, rtol=1e-9, atol=1e-9)
    assert min(float(result.min()) for result in results[:3]) > 0


def test_a_model_made_in_inference_mode_has_no_gradients():
    with torch.inference_mode():
        model = make()
    with pytest.raises(UserError, match=r"created in torch.inference_mode\(\).*: load it outside"):
        next(GENERATORS["loss_grams"](model))
