"""Our wrapper, zero-shot classifier and loading against open_clip's own."""

import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from antiphase.data.decoding import pil_to_tensor
from antiphase.errors import UserError
from antiphase.models import load_model, zero_shot_classifier
from tests.models import tiny_open_clip  # noqa: F401

NAMES = ["mug", "lamp", "dog", "flower", "small house"]


@pytest.fixture(scope="module")
def ours():
    return load_model("open_clip:tiny-vit", random_weights=True, seed=3)


def test_zero_shot_logits_are_open_clips(ours):
    templates = open_clip.SIMPLE_IMAGENET_TEMPLATES
    weights = open_clip.build_zero_shot_classifier(
        ours.model, open_clip.get_tokenizer("tiny-vit"), NAMES, templates, num_classes_per_batch=None
    )
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    )
    with torch.no_grad():
        features = F.normalize(ours.model.encode_image((images - mean) / std), dim=-1)
        expected = ours.model.logit_scale.exp() * features @ weights
        logits = zero_shot_classifier(ours, NAMES, templates)(images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_preprocessing_is_open_clips(ours):
    pixels = torch.randint(0, 256, (241, 331, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    picture = Image.fromarray(pixels.numpy())
    _, _, preprocess = open_clip.create_model_and_transforms("tiny-vit", pretrained=None, force_image_size=32)
    expected = preprocess(picture)
    actual = ours.normalize(ours.square(pil_to_tensor(picture)).float()[None] / 255)[0]
    torch.testing.assert_close(actual, expected)


def test_random_weights_depend_on_the_seed_alone(ours):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    again = load_model("open_clip:tiny-vit", random_weights=True, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.model.visual.proj, ours.model.visual.proj)


@pytest.mark.parametrize("named", ["tiny-vit", "tiny-vit/own"])
def test_weights_of_a_file_have_the_preprocessing_of_their_tag(ours, tmp_path, monkeypatch, named):
    config = {"url": "", "mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0), "quick_gelu": True}
    tags = {"own": config, "usual": {"url": ""}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-vit", tags)
    weights = {f"module.{name}": 1.01 * value for name, value in ours.model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "own.pt")  # as open_clip trains
    model = load_model(f"open_clip:{named}@{tmp_path / 'own.pt'}")
    assert (model.card.name, model.card.seed, model.card.tag) == (named, None, "")
    assert torch.equal(model.model.visual.proj, 1.01 * ours.model.visual.proj)
    mean = config["mean"] if "/" in named else open_clip.OPENAI_DATASET_MEAN
    torch.testing.assert_close(model.normalize.mean.flatten(), torch.tensor(mean))
    doubts = " ".join(model.card.doubts)
    told = "a file of weights tells neither activation nor preprocessing; used are tiny-vit's own, "
    assert (told in doubts) == (f"give open_clip:tiny-vit/TAG@{tmp_path / 'own.pt'}" in doubts) == ("/" not in named)


def test_a_file_of_another_architecture_is_one_line(ours, tmp_path):
    torch.save(ours.model.visual.state_dict(), tmp_path / "tower.pt")
    with pytest.raises(UserError, match=r"tower.pt: parameter .* the architecture does not match"):
        load_model(f"open_clip:tiny-vit@{tmp_path / 'tower.pt'}")
    with pytest.raises(
        UserError, match="expected open_clip:tiny-vit/TAG with TAG one of none, open_clip:tiny-vit@FILE"
    ):
        load_model("open_clip:tiny-vit")


def test_mistakes_are_named():
    with pytest.raises(UserError, match="did you mean ViT-B-32"):
        load_model("open_clip:ViT-B-3")
    with pytest.raises(UserError, match="TAG one of openai"):
        load_model("open_clip:ViT-B-32/none")
    with pytest.raises(UserError, match="not a dual encoder"):
        zero_shot_classifier(load_model("specimen:vit-0"), NAMES)
