import base64
import dataclasses
import io
import re

import numpy as np
import pytest
from PIL import Image

from antiphase.errors import UserError
from antiphase.report.gallery import data_uri, gallery_markup, magnification, read_gallery, write_gallery


def pixels(uri):
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def images(gallery):
    """The three images of every tile of the gallery's markup, by sample and model."""
    uris = re.findall(r'<img src="([^"]+)"', gallery_markup(gallery, {}))
    return [uris[start : start + 3] for start in range(0, len(uris), 3)]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_gallery_survives_its_file(tmp_path, make_gallery, channels):
    gallery = make_gallery(["a", "b"], channels=channels)
    write_gallery(tmp_path / "g.safetensors", gallery)
    again = read_gallery((tmp_path / "g.safetensors").read_bytes())
    for field in dataclasses.fields(gallery):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(gallery, field.name))


def test_the_magnified_perturbation_spans_the_range_around_grey(make_gallery):
    gallery = make_gallery(["a", "b"], eps=2 / 255)
    assert magnification(gallery) == 63  # 0.5 / (2/255) = 63.75
    perturbation = images(gallery)[2][1]  # of the second sample, first model
    delta = gallery.adversarial[0][1, 0] - gallery.clean[1, 0]
    np.testing.assert_allclose(pixels(perturbation), 127.5 + 255 * 63 * delta, atol=0.51)
    assert (pixels(perturbation)[delta == 0] == 128).all()


def test_without_any_perturbation_all_is_grey(make_gallery):
    gallery = make_gallery(["a"], eps=0.0)
    assert magnification(gallery) == 1
    assert (pixels(images(gallery)[0][1]) == 128).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_keep_their_pixels(channels):
    image = np.random.default_rng(0).random((channels, 5, 7))
    shown = pixels(data_uri(image))
    assert shown.shape == ((5, 7) if channels == 1 else (5, 7, 3))
    np.testing.assert_allclose(shown.reshape(5, 7, channels), 255 * np.moveaxis(image, 0, -1), atol=0.51)


def test_cards_name_classes_and_tell_changed_from_held(make_gallery):
    first, second = gallery_markup(make_gallery(["a", "b"]), {}).split("<article>")[1:3]
    assert "<h3>T-shirt <small>sample 0</small></h3>" in first
    assert "<h3>Trouser <small>sample 17</small></h3>" in second
    assert (first.count('"held"'), first.count('"flipped"')) == (2, 0)
    assert second.count('alt="adversarial image, answer Coat"') == 2
    assert second.count('"flipped"') == 2


def test_classes_without_names_are_numbers(make_gallery):
    gallery = dataclasses.replace(make_gallery(["a"]), class_names=())
    assert "<h3>2 <small>" in gallery_markup(gallery, {})


def test_only_small_images_keep_hard_pixels(make_gallery):
    assert 'class="cards hard"' in gallery_markup(make_gallery(["a"], side=28), {})
    assert 'class="cards hard"' not in gallery_markup(make_gallery(["a"], side=224), {})


def test_a_corrupt_file_is_named():
    with pytest.raises(UserError, match=r"gallery\.safetensors cannot be read"):
        read_gallery(b"\x07" * 40)
