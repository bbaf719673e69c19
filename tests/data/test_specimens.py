from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image

from antiphase.data import image_sets, load_data
from antiphase.data.image_sets import specimens
from antiphase.errors import UserError
from tests import needs
from tests.data.specimen_file import make_specimen_images

FOLDER = files("antiphase") / "specimens"


def test_the_specimens_are_100_of_each_class_sorted_by_position():
    made = load_data("specimen-fashion-mnist")
    assert (len(made), made.image_shape, made.split) == (1000, (1, 28, 28), "test")
    assert made.labels.bincount().tolist() == [100] * 10
    assert (made.ids.diff() > 0).all()
    assert 0 <= made.ids.min() <= made.ids.max() < 10_000


def test_the_specimens_are_the_ones_that_models_were_audited_on():
    # A golden value: it moves only if the file does.
    golden = "38f4ecccb81a4e195c8e19a6cd5acd5827f7eb4fa2c752cd7b078936ba6503ba"
    assert load_data("specimen-fashion-mnist").fingerprint() == golden


@needs.fashion_mnist
def test_the_specimens_are_the_real_test_images_at_their_ids():
    made, whole = load_data("specimen-fashion-mnist"), load_data("fashion-mnist")
    assert made.class_names == whole.class_names
    assert made.fingerprint() == whole.take(made.ids).fingerprint()


@needs.fashion_mnist
def test_the_packaged_file_is_what_the_function_makes(tmp_path):
    make_specimen_images(tmp_path / "made.png")
    assert specimens(tmp_path / "made.png").fingerprint() == specimens().fingerprint()


def test_the_file_is_small_and_its_licence_is_beside_it():
    assert len((FOLDER / image_sets.SPECIMEN_FILE).read_bytes()) < 600_000
    licence = (FOLDER / "LICENSE-fashion-mnist").read_text()
    assert "Zalando SE" in licence
    assert "The MIT License" in licence
    assert image_sets.SPECIMEN_FILE in licence


def test_made_from_any_test_set_the_file_gives_back_its_pixels_labels_and_ids(
    tmp_path, monkeypatch, write_fashion_mnist
):
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path)
    images, labels = write_fashion_mnist(tmp_path, count=101)
    make_specimen_images(tmp_path / "out" / "made.png", per_class=3)
    made = specimens(tmp_path / "out" / "made.png")
    assert made.labels.bincount().tolist() == [3] * 10
    assert np.array_equal(made.labels, labels[made.ids])
    assert np.array_equal(made.images(range(30))[:, 0] * 255, torch.from_numpy(images)[made.ids])


def test_a_damaged_file_is_one_line(tmp_path):
    whole = (FOLDER / image_sets.SPECIMEN_FILE).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    Image.new("L", (28, 28)).save(tmp_path / "plain.png")
    for name in ("cut.png", "plain.png", "absent.png"):
        with pytest.raises(UserError, match=f"{name} is not a valid file of specimen images"):
            specimens(tmp_path / name)
