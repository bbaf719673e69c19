"""CLIPs exported to open_clip, which loads them and computes the same logits."""

import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from antiphase.data.decoding import pil_to_tensor
from antiphase.errors import UserError
from antiphase.models import clip, diffclip, load_model, write_model

SIZES = {
    "vision": {"image_size": 32, "patch_size": 8, "dim": 36, "depth": 3, "num_heads": 6, "mlp_ratio": 3.0},
    "text": {"dim": 28, "depth": 2, "num_heads": 2, "context_length": 11},
    "embed_dim": 20,
}
TEXTS = ["a mug on a table", "Two dogs, running!", "x" * 300]


@pytest.fixture(scope="module")
def model():
    """A CLIP whose every weight was drawn, biases and norms included."""
    net = clip(seed=1, **SIZES).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return net


@pytest.fixture(scope="module")
def picture():
    shape, generator = (48, 72, 3), torch.Generator().manual_seed(1)
    return Image.fromarray(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).numpy())


def logits(model, images, texts):
    embedded = model.encode_image(images), model.encode_text(texts)
    images, texts = (F.normalize(part, dim=-1) for part in embedded)
    return model.logit_scale.exp() * images @ texts.T


def pixels_of(model, picture):
    return model.square(pil_to_tensor(picture)).float()[None] / 255


@torch.no_grad()
def test_open_clip_computes_the_same_logits_from_a_picture_and_words(model, picture, tmp_path):
    write_model(model, tmp_path / "out", layout="open_clip")
    name = f"local-dir:{tmp_path / 'out'}"
    peer, _, preprocess = open_clip.create_model_and_transforms(name)
    tokens = open_clip.get_tokenizer(name)(TEXTS)
    expected = logits(model, pixels_of(model, picture), TEXTS)
    torch.testing.assert_close(logits(peer.eval(), preprocess(picture)[None], tokens), expected)
    again = load_model(f"open_clip:{tmp_path / 'out'}")
    assert (again.card.name, again.card.image_shape, again.card.attention) == ("out", (3, 32, 32), "softmax")
    torch.testing.assert_close(logits(again, pixels_of(again, picture), TEXTS), expected)
    with pytest.raises(UserError, match="has its own weights; leave out @FILE and --random-weights"):
        load_model(f"open_clip:{tmp_path / 'out'}", random_weights=True)


def test_what_the_layout_cannot_express_is_one_line_and_nothing_is_written(tmp_path):
    for other, why in (
        (diffclip(**SIZES), "the image tower has differential attention; expected standard attention"),
        (diffclip(towers="text", **SIZES), "the text tower has differential attention; expected standard"),
        (clip(logit_bias=-10.0, **SIZES), "cannot store a logit bias"),
    ):
        with pytest.raises(UserError, match=why):
            write_model(other, tmp_path, layout="open_clip")
    with pytest.raises(UserError, match="layout 'open_clip': expected a CLIP, not VisionTransformer"):
        write_model(load_model("specimen:vit-0"), tmp_path, layout="open_clip")
    assert not list(tmp_path.iterdir())
