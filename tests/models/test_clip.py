"""Dual encoders: counts, variants, texts, starts."""

import pytest
import torch

from antiphase.attention import DifferentialAttention
from antiphase.attention.lambdas import depth_scheduled
from antiphase.errors import UserError
from antiphase.models import clip, diffclip
from antiphase.models.clip import bare_clip, configure_clip, tokenize, trimmed

TEXTS = ["a mug", "a photo of a very big dog on a small mat", "lamp"]


@pytest.mark.parametrize(
    ("towers", "count"),
    [(None, 149_619_969), ("both", 149_629_185), ("vision", 149_619_969 + 4_608), ("text", 149_619_969 + 4_608)],
)
def test_parameter_counts_are_the_papers(towers, count):
    with torch.device("meta"):
        model = bare_clip(configure_clip("b16", towers=towers))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_builders_build_what_they_name():
    small = {"vision": {"depth": 1, "dim": 64, "num_heads": 4}, "text": {"depth": 1, "vocab_size": 49_408}}
    assert clip("b16", **small).image_shape == (3, 224, 224)
    model = diffclip("b16", lambda_init=0.6, towers="vision", **small)
    assert [m.lambda_init for m in model.modules() if isinstance(m, DifferentialAttention)] == [0.6]


def test_variants_differ_in_what_attends_alone():
    def layers(model, tower):
        return [m.lambda_init for m in getattr(model, tower).modules() if isinstance(m, DifferentialAttention)]

    assert layers(clip(), "visual") == layers(clip(), "text") == []
    assert layers(diffclip(), "visual") == [0.8] * 4
    assert layers(diffclip(), "text") == [0.8] * 3
    assert layers(diffclip(schedule="depth"), "text") == [depth_scheduled(layer) for layer in range(3)]
    assert layers(diffclip(towers="vision"), "text") == layers(diffclip(towers="text"), "visual") == []


def test_matched_twins_start_from_equal_weights_and_released_ones_do_not():
    one, two = dict(clip(seed=3).named_parameters()), dict(diffclip(seed=3).named_parameters())
    shared = [name for name in one if name in two]
    assert len(shared) == len(one)
    assert all(torch.equal(one[name], two[name]) for name in shared)
    released = dict(diffclip(seed=3, init="released").named_parameters())
    assert released["visual.blocks.0.mlp.fc1.bias"].abs().max() > 0.01
    assert one["visual.blocks.0.mlp.fc1.bias"].abs().max() == 0
    assert released["text.blocks.0.attn.qkv.bias"].abs().max() > 0.01
    assert torch.equal(released["text.blocks.0.attn.qkv.weight"], one["text.blocks.0.attn.qkv.weight"])


def test_weights_start_with_the_recipes_spread():
    model = clip(seed=0)
    spreads = {
        "visual.blocks.1.mlp.fc1.weight": 0.02,
        "text.token_embed.weight": 0.02,
        "text.pos_embed": 0.01,
        "text.blocks.1.attn.qkv.weight": 192**-0.5,
        "text.blocks.1.mlp.fc1.weight": 384**-0.5,
        "text.blocks.1.attn.proj.weight": 192**-0.5 * 6**-0.5,
        "image_projection": 192**-0.5,
    }
    for name, spread in spreads.items():
        assert float(model.get_parameter(name).detach().std()) == pytest.approx(spread, rel=0.03), name
    assert float(model.logit_scale.detach().exp()) == pytest.approx(1 / 0.07)


def test_seed_decides_the_weights_and_no_global_state_is_touched():
    state = torch.get_rng_state()
    one, two, other = clip(seed=1), clip(seed=1), clip(seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.image_projection, other.image_projection)


def test_a_text_does_not_depend_on_its_neighbours_or_on_padding():
    model = diffclip(seed=0).double().eval()
    together = model.encode_text(TEXTS)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(model.encode_text([text])[0], together[row], rtol=0, atol=1e-12)
    whole = model.text(tokenize(TEXTS, 32)) @ model.text_projection
    torch.testing.assert_close(whole, together, rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_are_normalised_as_open_clip_s_are(normalize):
    model, images = clip(seed=0), torch.rand(2, 3, 64, 64)
    for encode, given in ((model.encode_image, images), (model.encode_text, TEXTS)):
        plain = encode(given)
        expected = plain / plain.norm(dim=1, keepdim=True) if normalize else plain
        torch.testing.assert_close(encode(given, normalize), expected)
        assert torch.equal(encode(given, normalize=normalize), encode(given, normalize))


def test_a_text_tower_larger_than_the_memory_is_refused():
    with pytest.raises(UserError, match=r"text tower: .*vocab_size 2147483647.* the weights need"):
        clip(text={"vocab_size": 2**31 - 1})


def test_trimming_keeps_every_end():
    tokens = tokenize(TEXTS, 77)
    assert trimmed(tokens).shape[1] == 16
    assert torch.equal(trimmed(tokens).argmax(1), tokens.argmax(1))


def test_a_long_text_keeps_its_end():
    tokens = tokenize(["dog " * 100], 13)
    assert tokens.shape == (1, 13)
    assert int(tokens.argmax(1)) == 12
    assert int(tokens.max()) == 49_407


def test_kept_patches_in_full_are_all_patches():
    model = clip(seed=0).double().eval()
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    every = torch.arange(64).expand(2, 64)
    torch.testing.assert_close(model.encode_image(images, keep=every), model.encode_image(images))
    some = model.encode_image(images, keep=every[:, :31])
    assert (some - model.encode_image(images)).abs().max() > 1e-3


def test_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        model = diffclip(seed=0, vision={"depth": 2}, text={"depth": 2})
        model.visual.checkpointing = model.text.checkpointing = checkpointing
        image, text = model(torch.full((2, 3, 64, 64), 0.3), TEXTS[:2])
        (image * text).sum().backward()
        gradients.append([p.grad for name, p in model.named_parameters() if name != "logit_scale"])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"preset 'huge'.*b16, small"):
        clip("huge")
    with pytest.raises(UserError, match="towers 'none'"):
        diffclip(towers="none")
    with pytest.raises(UserError, match=r"vision\.num_heads"):
        clip(vision={"num_heads": 0})
    with pytest.raises(UserError, match="num_classes 5"):
        clip(vision={"num_classes": 5})
    with pytest.raises(UserError, match="text tower: dim 192"):
        clip(text={"num_heads": 7})
    with pytest.raises(TypeError, match="expected a list of strings"):
        clip().encode_text("a mug")
    with pytest.raises(ValueError, match="33 tokens"):
        clip().text(torch.zeros(1, 33, dtype=torch.long))
