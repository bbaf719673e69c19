"""ViT and DiffViT of any size: presets, seeds, the likeness of twins, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

from antiphase.attention import DifferentialAttention, SoftmaxAttention
from antiphase.attention.lambdas import depth_scheduled
from antiphase.errors import UserError
from antiphase.models.vit import PRESETS, VitConfig, build, configure, diffvit, initialise, vit

TINY = {"patch_size": 2, "in_channels": 2, "dim": 20, "depth": 3, "num_heads": 4, "num_classes": 5}
WIDTH = 5  # of a head: 20 / 4


def _state(model):
    return model.state_dict()


def _equal(one, other):
    return _state(one).keys() == _state(other).keys() and all(
        torch.equal(tensor, _state(other)[name]) for name, tensor in _state(one).items()
    )


@pytest.mark.parametrize("make", [vit, diffvit])
@pytest.mark.parametrize("size", [8, 28, 32, 64])
def test_presets_build_and_classify(make, size):
    model = make(size)
    channels, classes = PRESETS[size]["in_channels"], PRESETS[size]["num_classes"]
    assert model.image_shape == (channels, size, size)
    with torch.no_grad():
        assert model(torch.rand(2, channels, size, size)).shape == (2, classes)


@pytest.mark.parametrize("size", PRESETS)
def test_presets_fit_together_for_both_kinds_of_attention(size):
    preset = VitConfig(attention="differential", image_size=size, **PRESETS[size])
    assert size % preset.patch_size == 0
    assert preset.num_heads % 2 == 0
    assert preset.dim % preset.num_heads == 0


def test_the_largest_preset_is_vit_base():
    assert PRESETS[224] == {
        "patch_size": 16,
        "in_channels": 3,
        "dim": 768,
        "depth": 12,
        "num_heads": 12,
        "num_classes": 1000,
    }


def test_the_kind_of_attention_is_the_only_difference_between_the_two():
    standard, differential = vit(6, **TINY), diffvit(6, **TINY)
    assert type(standard) is type(differential)
    assert {type(block.attn) for block in standard.blocks} == {SoftmaxAttention}
    assert {type(block.attn) for block in differential.blocks} == {DifferentialAttention}


@pytest.mark.parametrize("depth", [1, 3])
def test_twins_differ_by_the_lambda_vectors_and_the_head_norm(depth):
    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    standard, differential = vit(6, **{**TINY, "depth": depth}), diffvit(6, **{**TINY, "depth": depth})
    assert count(differential) - count(standard) == 4 * WIDTH * depth + 2 * WIDTH * depth


@pytest.mark.parametrize("seed", [0, 3])
def test_twins_of_a_seed_start_from_equal_weights_wherever_both_have_them(seed):
    standard, differential = vit(6, seed=seed, **TINY), diffvit(6, seed=seed, **TINY)
    for name, parameter in standard.named_parameters():
        assert torch.equal(parameter, differential.get_parameter(name)), name


@pytest.mark.parametrize("make", [vit, diffvit])
def test_a_seed_fixes_the_weights_and_another_gives_others(make):
    one = make(6, seed=1, **TINY)
    assert _equal(one, make(6, seed=1, **TINY))
    other = make(6, seed=2, **TINY)
    for name, parameter in one.named_parameters():
        drawn = parameter.std() > 0
        assert torch.equal(parameter, other.get_parameter(name)) != drawn, name


@pytest.mark.parametrize("make", [vit, diffvit])
def test_building_neither_uses_nor_moves_torchs_global_generator(make):
    before = torch.get_rng_state()
    one = make(6, **TINY)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        assert _equal(one, make(6, **TINY))


def test_parameters_draw_from_streams_of_their_own():
    deep, shallow = vit(6, **TINY), vit(6, **{**TINY, "depth": 1})
    for name, parameter in shallow.named_parameters():
        assert torch.equal(parameter, deep.get_parameter(name)), name
    first, second = deep.blocks[0], deep.blocks[1]
    assert not torch.equal(first.mlp.fc1.weight, second.mlp.fc1.weight)


def test_initial_weights_have_the_documented_distribution():
    model = diffvit(16, patch_size=4, in_channels=3, dim=64, depth=1, num_heads=4, num_classes=11)
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if ".lam." in name:
            assert 0.04 < values.std() < 0.2, name
        elif name == "cls_token":
            assert 0 < values.abs().max() <= 2e-6
        elif name.startswith(("blocks.", "patch_embed.")) and values.ndim > 1:  # uniform within ±1/√fan_in
            bound = values[0].numel() ** -0.5
            assert 0.99 * bound < values.abs().max() <= bound, name
            assert float(values.std()) == pytest.approx(bound / 3**0.5, rel=0.03), name
        elif values.ndim > 1:  # N(0, 0.02) cut at two standard deviations
            assert 0.035 < values.abs().max() <= 0.04, name
            assert float(values.std()) == pytest.approx(0.02 * 0.8796, rel=0.1), name
        else:
            norm = "norm" in name and name.endswith("weight")
            assert (values == (1.0 if norm else 0.0)).all(), name


def test_a_second_scheme_changes_the_matrices_of_the_blocks_alone():
    sizes = {"patch_size": 4, "in_channels": 3, "dim": 64, "depth": 1, "num_heads": 4, "num_classes": 11}
    usual, normal = diffvit(16, **sizes), diffvit(16, initial_weights="normal", **sizes)
    for name, parameter in usual.named_parameters():
        other = normal.get_parameter(name).detach()
        drawn = name.startswith("blocks.") and parameter.ndim > 1
        assert torch.equal(parameter, other) != drawn, name
        if drawn:
            assert 0.035 < other.abs().max() <= 0.04, name
            assert float(other.std()) == pytest.approx(0.02 * 0.8796, rel=0.05), name
    stored = VitConfig.model_validate_json(normal.config.model_dump_json())
    assert _equal(build(stored), normal)


def test_zero_lambda_keeps_the_factor_and_norm_of_its_twin():
    model = diffvit(6, parameterisation="zero", **TINY)
    for block in model.blocks:
        assert float(block.attn.lam()) == 0
        assert block.attn.scale == pytest.approx(0.2)
        assert block.attn.norm is not None


def test_initialise_serves_a_bare_attention_module_too():
    attention = DifferentialAttention(20, 4)
    initialise(attention, seed=0)
    assert all((vector != 0).all() for vector in attention.lam.parameters())
    scalars = DifferentialAttention(20, 4, parameterisation="scalar")
    initialise(scalars, seed=0)
    assert_close(scalars.lam(), torch.full((2,), 0.8))


def test_lambda_options_reach_the_attention():
    model = diffvit(6, lambda_init=0.3, parameterisation="scalar", head_norm=False, rescale=False, **TINY)
    for block in model.blocks:
        assert_close(block.attn.lam(), torch.full((2,), 0.3))
        assert block.attn.norm is None
        assert block.attn.scale == 1.0
    scheduled = diffvit(6, lambda_schedule="depth", parameterisation="fixed", **TINY)
    for layer, block in enumerate(scheduled.blocks):
        assert float(block.attn.lam()) == pytest.approx(depth_scheduled(layer))
        assert block.attn.scale == pytest.approx(1 - depth_scheduled(layer))


def test_a_stored_configuration_builds_the_same_model_again():
    model = diffvit(6, seed=5, lambda_init=0.3, mean=(0.1, 0.2), std=(0.3, 0.4), **TINY)
    stored = VitConfig.model_validate_json(model.config.model_dump_json())
    again = build(stored, seed=5)
    assert again.config == model.config
    assert _equal(model, again)
    images = torch.rand(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), again(images))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 3}, "num_heads 3"),
        ({"num_heads": 6}, "dim 20 cannot be divided among 6 heads"),
        ({"patch_size": 4}, "patch_size 4 does not divide image_size 6"),
        ({"heads": 4}, "heads: "),
        ({"parameterisation": "matrix"}, "parameterisation 'matrix': expected one of"),
        ({"initial_weights": "zeros"}, "initial_weights 'zeros': expected uniform or normal"),
        ({"lambda_init": "high"}, "lambda_init 'high': expected a number"),
        ({"mean": (0.5,), "std": (0.5,)}, "mean"),
        ({"std": (0.0, 1.0)}, "std above 0"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_one_line(changes, named):
    with pytest.raises(UserError) as caught:
        diffvit(6, **{**TINY, **changes})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_image_size_without_preset_names_what_is_missing():
    with pytest.raises(UserError, match=r"dim: .*8, 28, 32, 64, 224"):
        vit(100)


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 0},
        {"dim": -20},
        {"depth": 0},
        {"depth": -1},
        {"num_classes": -1},
        {"in_channels": 0},
        {"image_size": 0},
        {"image_size": -6},
        {"mlp_ratio": 0.0},
        {"mlp_ratio": -1.0},
        {"lambda_init": float("nan")},
        {"lambda_init": float("inf")},
    ],
    ids=str,
)
def test_sizes_out_of_range_are_refused(changes):
    (field,) = changes
    with pytest.raises(UserError, match=field):
        diffvit(**{"image_size": 6, **TINY, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dim": 10**12}, "dim 1000000000000: expected an integer of at most 2147483647"),
        ({"depth": 10**9}, "depth 1000000000: expected an integer of at most 10000"),
        ({"dim": 2**16, "depth": 9999}, "dim 65536, depth 9999, .* the weights need [0-9,]+ GiB and this machine has"),
        ({"image_size": 2**30, "patch_size": 2}, "the weights need"),
        ({"num_classes": 2**31 - 1, "dim": 4000}, "the weights need"),
        ({"mlp_ratio": 1e300}, "the weights need"),
    ],
    ids=str,
)
def test_a_tower_larger_than_the_memory_is_refused_before_any_is_allocated(changes, named):
    with pytest.raises(UserError, match=named):
        diffvit(**{"image_size": 6, **TINY, **changes})


@pytest.mark.parametrize(("make", "kind"), [(vit, "differential"), (diffvit, "softmax")])
def test_a_factory_cannot_be_talked_into_the_other_kind(make, kind):
    with pytest.raises(UserError, match="attention"):
        make(6, attention=kind, **TINY)


def test_a_vit_with_norm_and_factor_starts_from_the_weights_of_its_twins():
    model = build(configure("normed", 6, {**TINY, "lambda_init": 0.7}))
    standard = vit(6, **TINY)
    for name, parameter in standard.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    for block in model.blocks:
        assert block.attn.scale == pytest.approx(0.3)
        assert torch.equal(block.attn.norm.weight, torch.ones(WIDTH))
