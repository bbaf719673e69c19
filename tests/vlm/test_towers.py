"""Image towers of other libraries: their own hidden state before the last block, without the class token."""

import pytest
import torch

from antiphase.data.decoding import Square
from antiphase.models import clip, load_model
from antiphase.vlm import image_tokens
from antiphase.vlm.checkpoint import named_weights
from antiphase.vlm.model import build_tower
from tests.models import tiny_open_clip  # noqa: F401

CLIP_PARTS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}


def rebuilt(tower):
    """Return the tower as a stored model gets it: built from its reference, then filled."""
    again = build_tower(tower.reference).eval()
    weights = named_weights(again)
    assert weights.keys() == named_weights(tower).keys()
    with torch.no_grad():
        for name, value in named_weights(tower).items():
            weights[name].copy_(value)
    return again


@torch.no_grad()
def test_an_open_clip_tower_ends_before_its_last_block():
    model = load_model("open_clip:tiny-vit", random_weights=True)
    tower, seen = image_tokens(model), []
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    hook = model.model.visual.transformer.resblocks[-1].register_forward_pre_hook(
        lambda block, given: seen.append(given[0])
    )
    model.encode_image(images)
    hook.remove()
    tokens = tower(images)
    assert (tokens.shape, tower.count, tower.width) == ((2, 16, 48), 16, 48)
    torch.testing.assert_close(tokens, seen[0][:, 1:])
    torch.testing.assert_close(rebuilt(tower)(images), tokens)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "size"),
    [("CLIP", {"size": {"shortest_edge": 16}, "crop_size": 16}), ("Siglip", {"size": {"height": 16, "width": 16}})],
)
def test_a_tower_of_transformers_ends_before_its_last_block(kind, size, tmp_path):
    import transformers

    vision = CLIP_PARTS | {"image_size": 16, "patch_size": 4}
    text = CLIP_PARTS | {"vocab_size": 50, "max_position_embeddings": 8}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    processor = getattr(transformers, f"{kind}ImageProcessor")(**size)
    for part in (config, processor):
        part.save_pretrained(tmp_path)
    tower = image_tokens(load_model(f"hf:{tmp_path}", random_weights=True))
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    hidden = tower.visual(pixel_values=tower.normalize(images), output_hidden_states=True).hidden_states
    tokens = tower(images)
    assert len(hidden) == 4
    assert (tokens.shape, tower.count) == ((2, 16, 16), 16)
    assert torch.equal(tokens, hidden[2][:, int(kind == "CLIP") :])
    torch.testing.assert_close(rebuilt(tower)(images), tokens)


def test_a_tower_of_ours_keeps_how_its_images_are_prepared():
    tower = clip("small").eval()
    tower.square = Square(64, squash=True)
    reference = image_tokens(tower).reference
    assert build_tower(reference).square == Square(64, squash=True)
    assert "size" not in reference  # as of towers stored before
    tower.square = Square(64)
    assert image_tokens(tower).reference.keys() == {"kind", "config", "interpolation"}
