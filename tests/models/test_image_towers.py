"""Image towers cut before their projection or head."""

import pytest
import torch
from torch import nn

from antiphase.errors import UserError
from antiphase.models import clip, load_model, write_model
from antiphase.models.card import ModelCard, with_card
from antiphase.models.image_towers import image_tower
from tests.models import tiny_open_clip  # noqa: F401
from tests.training.tiny_pairs import TINY


@torch.no_grad()
def test_features_and_projection_of_a_clip_make_its_embedding(tmp_path):
    write_model(clip(**TINY), tmp_path)
    model = load_model(str(tmp_path))
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    tower = image_tower(model)
    features = tower.features(images)
    assert (features.shape, tower.square.size, tower.channels, tower.raw) == ((3, 24), 16, 3, True)
    torch.testing.assert_close(tower.project(features), model.encode_image(images))


@torch.no_grad()
@pytest.mark.parametrize(("name", "width", "raw"), [("tiny-vit", 48, True), ("tiny-resnet", 16, False)])
def test_features_of_open_clips_towers(name, width, raw):
    model = load_model(f"open_clip:{name}", random_weights=True)
    images = torch.rand(1, *model.card.image_shape, generator=torch.Generator().manual_seed(0))
    tower = image_tower(model)
    features = tower.features(images)
    assert (features.shape[1], tower.raw) == (width, raw)
    torch.testing.assert_close(tower.project(features), model.encode_image(images))
    if raw:  # the cut leaves the model whole
        assert model.model.visual.proj is not None


@torch.no_grad()
def test_features_of_classifiers_are_what_their_head_is_given():
    images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = load_model("specimen:diffvit-0")
    tower = image_tower(model)
    assert (tower.channels, tower.square.size, tower.project) == (1, 28, None)
    torch.testing.assert_close(model.head(tower.features(images)), model(images))

    timm = load_model("timm:vit_tiny_patch16_224", random_weights=True)
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    tower = image_tower(timm)
    torch.testing.assert_close(timm.model.head(tower.features(images)), timm(images))


@torch.no_grad()
def test_the_features_of_a_dual_encoder_of_ones_own_are_its_embedding(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from antiphase.data.decoding import Square\n"
        "class Dual(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.square, self.logit_scale = Square(8), torch.nn.Parameter(torch.zeros(()))\n"
        "        self.image, self.text = torch.nn.Linear(192, 5), torch.nn.Embedding(256, 5)\n"
        "    def encode_image(self, images):\n"
        "        return self.image(images.flatten(1))\n"
        "    def encode_text(self, texts):\n"
        "        return torch.stack([self.text(torch.tensor(list(t.encode()))).mean(0) for t in texts])\n"
    )
    model = load_model(f"python:{tmp_path / 'mine.py'}:Dual")
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    tower = image_tower(model)
    assert (tower.channels, tower.square.size, tower.raw) == (3, 8, False)
    torch.testing.assert_close(tower.project(tower.features(images)), model.encode_image(images))


def test_a_model_of_unknown_make_is_refused():
    odd = with_card(nn.Linear(2, 2), ModelCard("odd", "odd:1", "softmax", 0, (3, 4, 4), 2))
    with pytest.raises(UserError, match="odd:1: cannot extract features"):
        image_tower(odd)
