"""Images of every kind of source as a model takes them."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from antiphase.data import ArrayImages, load_data, load_pairs
from antiphase.data.decoding import Square
from antiphase.data.images import content_key, model_images
from antiphase.errors import UserError
from tests.training.tiny_pairs import tiny_pairs


def test_image_files_are_decoded_at_the_models_size(tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(
            tmp_path / label / "0.png"
        )
    images = load_data(f"folder:{tmp_path}", progress=False)
    batch = model_images(images, [1, 0], Square(17, "bilinear"))
    assert batch.shape == (2, 3, 17, 17)
    again = load_data(f"folder:{tmp_path}", image_size=17, progress=False)
    assert not torch.equal(batch, again.images([1, 0]))  # that one is bicubic
    assert torch.equal(model_images(images, [1], Square(17)), again.images([1]))


def test_grey_arrays_are_enlarged_and_repeated_for_a_model_in_colour():
    digits = load_data("digits", limit=3)
    batch = model_images(digits, [0, 2], Square(16))
    assert batch.shape == (2, 3, 16, 16)
    assert torch.equal(batch[:, 0], batch[:, 2])
    assert torch.equal(model_images(digits, [0, 2], Square(8), 1), digits.images([0, 2]))
    with pytest.raises(UserError, match=r"digits has images of shape \(1, 8, 8\), but the model expects \(1, 16, 16\)"):
        model_images(digits, [0], Square(16), 1)


def test_an_image_of_the_models_size_is_left_as_it_is():
    pixels = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    images = ArrayImages(
        name="x",
        split="test",
        class_names=("a",),
        ids=torch.arange(2),
        labels=torch.zeros(2, dtype=torch.int64),
        pixels=pixels,
    )
    assert torch.equal(model_images(images, [0, 1], Square(9)), pixels)


def test_pairs_are_squared_as_they_come():
    pairs, square = tiny_pairs(5), Square(8)
    batch = model_images(pairs, [3, 1], square)
    assert torch.equal(batch[1], square(pairs.pixels(1)).float() / 255)
    with pytest.raises(UserError, match="tiny is in colour"):
        model_images(pairs, [0], square, 1)
    assert load_pairs("openmoji", split="test", limit=2, progress=False).pixels(0).shape == (3, 64, 64)


def test_a_file_that_was_written_anew_is_other_content(tmp_path):
    (tmp_path / "a").mkdir()
    image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    image.save(tmp_path / "a" / "0.bmp")
    images = load_data(f"folder:{tmp_path}", progress=False)
    before = content_key(images), images.fingerprint()
    os.utime(tmp_path / "a" / "0.bmp", ns=(1, 1))
    assert content_key(images) != before[0]
    assert images.fingerprint() == before[1]  # that is the same on every machine
    (tmp_path / "a" / "0.bmp").unlink()
    with pytest.raises(UserError, match="was removed"):
        content_key(images)
    assert content_key(tiny_pairs(3)) == tiny_pairs(3).fingerprint()
