"""What the subtraction leaves: a planted cancellation, and loops over every token, head and entry."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention
from antiphase.errors import UserError
from antiphase.models import diffvit, vit
from antiphase.sensitivity import Layer, attention_layers
from antiphase.sensitivity.attention_adapters import find_adapter, register
from antiphase.sensitivity.depth import branch_changes, row_centred

SIZES = {"image_size": 6, "patch_size": 3, "in_channels": 1, "dim": 20, "num_heads": 4, "num_classes": 3}


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(kind=diffvit, depth=2):
    return kind(**SIZES, depth=depth).double().eval().requires_grad_(False)


class Toy(nn.Module):
    """Two layers of differential attention and nothing else, whose branches share a part of their queries and keys."""

    def __init__(self, lams, shared):
        super().__init__()
        self.layers = nn.ModuleList(
            DifferentialAttention(
                12, 4, lambda_init=lam, parameterisation="fixed", head_norm=False, rescale=False, qkv_bias=False
            )
            for lam in lams
        )
        with torch.random.fork_rng():
            torch.manual_seed(3)
            for layer in self.layers:
                nn.init.normal_(layer.qkv.weight, std=1.5)
                rows = layer.qkv.weight.data[:24].view(2, 2, 2, 3, 12)  # queries and keys, heads, branches
                rows[:, :, 1] = shared * rows[:, :, 0] + (1 - shared**2) ** 0.5 * rows[:, :, 1]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def toy(lams=(0.3, 0.75), shared=1.0):
    return Toy(lams, shared).double().eval().requires_grad_(False)


def test_alpha_recovers_the_cancellation_planted_in_two_layers():
    x = rand(3, 5, 12)
    changes = list(branch_changes(toy(), x, x + 0.01 * rand(3, 5, 12, seed=1)))
    for change, planted in zip(changes, (0.7, 0.25), strict=True):  # equal maps: 1 − λ of every change is left
        assert_close(change.alpha, torch.full((3,), planted).double(), rtol=1e-6, atol=0)
        assert_close(change.kept, torch.full((3,), planted).double(), rtol=1e-6, atol=0)
        assert_close(change.change_correlation, torch.ones(3, 2).double(), rtol=1e-6, atol=0)


def test_branches_that_share_less_cancel_less():
    x = rand(7, 5, 12)
    moved = x + 0.01 * rand(7, 5, 12, seed=1)
    means = []
    for shared in (1.0, 0.9, 0.0):
        (last,) = branch_changes(toy((0.8,), shared), x, moved)
        means.append((float(last.alpha.mean()), float(last.correlation.mean())))
    (full, equal), (some, alike), (none, apart) = means
    assert full < some < none
    assert equal > alike > apart


def test_every_number_by_hand():
    model, x = make(), rand(2, 1, 6, 6)
    moved = x + 0.05 * rand(2, 1, 6, 6, seed=1)
    changes = list(branch_changes(model, x, moved))
    assert [change.name for change in changes] == ["blocks.0.attn", "blocks.1.attn"]
    for index, change in enumerate(changes):
        module = model.blocks[index].attn
        lam = float(module.lam())
        for sample in range(2):
            squares = torch.zeros(2).double()
            for head in range(2):
                outputs, maps = [], []
                for image in (x, moved):
                    tokens = model.tokens(image[sample : sample + 1])
                    for block in model.blocks[:index]:
                        tokens = block(tokens)
                    normed = model.blocks[index].norm1(tokens)
                    both = module.maps(normed)
                    _, _, v = module.parts(module.qkv(normed))
                    a1, a2 = both.positive[0, head], both.negative[0, head]
                    outputs.append((a1 @ v[0, head], lam * (a2 @ v[0, head])))
                    maps.append((a1, a2))
                (one, two), (one_moved, two_moved) = outputs
                delta, other = one_moved - one, two_moved - two
                expected = {
                    "positive": delta.norm(),
                    "negative": other.norm(),
                    "moved": (delta - other).norm(),
                    "clean_positive": one.norm(),
                    "clean_moved": (one - two).norm(),
                    "clean_correlation": pearson(*maps[0]),
                    "correlation": pearson(*maps[1]),
                    "change_correlation": pearson(maps[1][0] - maps[0][0], maps[1][1] - maps[0][1]),
                }
                for name, value in expected.items():
                    assert_close(getattr(change, name)[sample, head], torch.as_tensor(value), msg=name)
                squares += torch.stack([(delta - other).square().sum(), delta.square().sum()])
            assert_close(change.alpha[sample], (squares[0] / squares[1]).sqrt())
        assert change.lam is not None
        assert change.lam.tolist() == [lam, lam]


def pearson(one, two):
    """Return Pearson's correlation of the entries, one by one."""
    rows, columns = one.shape
    products = [0.0, 0.0, 0.0]
    for i in range(rows):
        mean_one = sum(float(one[i, j]) for j in range(columns)) / columns
        mean_two = sum(float(two[i, j]) for j in range(columns)) / columns
        for j in range(columns):
            a, b = float(one[i, j]) - mean_one, float(two[i, j]) - mean_two
            products = [total + product for total, product in zip(products, (a * b, a * a, b * b), strict=True)]
    return torch.tensor(products[0] / (products[1] * products[2]) ** 0.5, dtype=torch.float64)


def test_correlations_of_maps_that_are_equal_opposite_or_uniform():
    one = torch.softmax(4 * rand(2, 3, 5, 5), -1)
    opposite = 2 / 5 - one
    assert_close(row_centred(one, one), torch.ones(2, 3).double())
    assert_close(row_centred(one, opposite), -torch.ones(2, 3).double())
    assert row_centred(one, torch.full_like(one, 0.25)).isnan().all()


def test_standard_attention_cancels_nothing():
    x = rand(2, 1, 6, 6)
    for change in branch_changes(make(vit), x, x + 0.01 * rand(2, 1, 6, 6, seed=1)):
        assert change.alpha.tolist() == [1.0, 1.0]
        assert change.kept.tolist() == [1.0, 1.0]
        assert change.negative.abs().max() == 0
        assert change.correlation.isnan().all()


def test_an_adapter_without_values_is_named():
    class Variant(DifferentialAttention):
        pass

    adapter = find_adapter(make().blocks[0].attn)
    assert callable(adapter)

    def without(module, call):
        full = adapter(module, call)
        return Layer(full.name, full.tokens, full.positive, full.negative, full.lam, full.finish)

    register(Variant, without)
    model = nn.Sequential(Variant(12, 4)).double().eval()
    x = rand(1, 5, 12)
    with pytest.raises(UserError, match="0: its adapter gives no values V"):
        list(branch_changes(model, x, x + 0.1))
    assert all(layer.values is not None for layer in attention_layers(toy(), x))
