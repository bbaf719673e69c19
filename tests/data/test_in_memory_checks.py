"""Labels and pixels of every source: taken as they are, or refused in one line."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from antiphase.data import load_data
from antiphase.data.in_memory import MOST_CLASSES, checked_pixels, class_numbers
from antiphase.errors import UserError

IMAGES = torch.arange(4)[:, None, None, None].expand(4, 1, 8, 8) / 10


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 2, 1],
        [0.0, 1.0, 2.0, 1.0],
        np.array([[0], [1], [2], [1]], dtype=np.uint8),
        np.array([0, 1, 2, 1], dtype=object),
        torch.tensor([0, 1, 2, 1], dtype=torch.bfloat16),
        torch.tensor([0.0, 1, 2, 1], requires_grad=True),
        [torch.tensor([label]) for label in (0, 1, 2, 1)],
    ],
)
def test_class_numbers_of_any_type_are_integers(labels):
    assert torch.equal(class_numbers("x", labels, 4), torch.tensor([0, 1, 2, 1]))


def test_truth_values_are_two_classes():
    assert class_numbers("x", [np.True_, np.False_], 2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (0.7, r"label 0\.7; expected class numbers"),
        (torch.tensor(0.9), r"label 0\.89"),
        (float("nan"), "label nan"),
        (-1, "label -1; expected class numbers from 0"),
        (10**9, "label 1000000000; .* to 999,999"),
        (np.uint64(2**63), "label 9.22337203685478e"),
        (2**70, "label 1.1805"),
        ("cat", "labels .*'cat'.*; expected class numbers"),
        ("1", "labels .*'1'.*; expected class numbers"),
        (None, "label nan"),
        ({"labels": 1}, "labels .*expected class numbers"),
        (1j, "labels .*1j"),
        (np.array([0, 1]), r"labels of shape \(2, 2\); expected \(2,\)"),
        (torch.eye(4)[1], r"labels of shape \(2, 4\)"),
        ([1, 2, 3], r"labels of shape \(2, 3\)"),
    ],
)
def test_a_label_that_is_no_class_number_is_one_line(label, message):
    with pytest.raises(UserError, match=message) as caught:
        load_data(Items([(IMAGES[0], label)] * 2))
    assert "\n" not in str(caught.value)


def test_the_largest_label_is_one_below_the_most_classes():
    assert class_numbers("x", [MOST_CLASSES - 1], 1).tolist() == [MOST_CLASSES - 1]
    with pytest.raises(UserError, match="label 1000000; "):
        class_numbers("x", [MOST_CLASSES], 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images.numpy().astype(">f8"),
        lambda images: images.numpy()[::-1][::-1],
        lambda images: images.numpy()[::-1].copy()[::-1],
        lambda images: np.frombuffer(images.numpy().tobytes(), np.float32).reshape(images.shape),
    ],
)
def test_arrays_in_any_memory_layout_are_the_same_pixels(change):
    assert torch.equal(checked_pixels("x", change(IMAGES.contiguous())), IMAGES)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((2, 1, 4, 4), 300, np.uint16), "type uint16; expected uint8"),
        (torch.full((2, 1, 4, 4), 300, dtype=torch.uint16), "type uint16"),
        (np.ones((2, 1, 4, 4), np.uint8), r"type uint8 in \[1, 1\]; expected 0..255"),
        (np.ones((2, 1, 4, 4), bool), "type bool"),
        (np.array([None, None]), "no array of numbers"),
        (np.ma.masked_greater(np.zeros((2, 1, 4, 4)), 1), "they are masked"),
        (torch.zeros(2, 1, 4, 4, device="meta"), "no array of numbers"),
        (IMAGES.to_sparse(), "nested or sparse"),
        (np.zeros((2, 784)), r"shape \(2, 784\) .*; expected"),
        (np.zeros((2, 4, 9, 9)), "1 or 3 channels"),
        (np.zeros((2, 3, 0, 0)), r"expected .*\(images"),
    ],
)
def test_arrays_that_are_no_images_are_one_line(images, message):
    with pytest.raises(UserError, match=message) as caught:
        load_data(images, [0, 1])
    assert "\n" not in str(caught.value)


GREY = np.linspace(0, 65535, 64).reshape(8, 8)


@pytest.mark.parametrize(
    "picture",
    [
        Image.fromarray(GREY.astype(np.uint16)),
        Image.frombytes("I;16B", (8, 8), GREY.astype(">u2").tobytes()),
        Image.fromarray((GREY / 257).astype(np.uint8)).convert("LA"),
        Image.fromarray((GREY / 257).astype(np.uint8)).convert("P"),
        Image.fromarray((GREY / 257).astype(np.uint8)).convert("CMYK"),
    ],
)
def test_pictures_without_a_transform_have_their_brightness(picture):
    images = load_data(Items([(picture, 0)])).images([0])
    assert torch.allclose(images, torch.from_numpy(GREY / 65535).float().expand_as(images), atol=1 / 255)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.fromarray(GREY.astype(np.int32)), "mode I does not tell the range"),
        (Image.fromarray(GREY.astype(np.float32)), "mode F does not tell the range"),
        ("a.png", "cannot be read .*; expected images that are tensors"),
        (None, "cannot be read .*; expected images that are tensors"),
        (np.zeros((8, 8, 3), np.uint8), "channels, height"),
    ],
)
def test_items_that_are_no_pictures_are_one_line(picture, message):
    with pytest.raises(UserError, match=message) as caught:
        load_data(Items([(picture, 0)] * 2))
    assert "\n" not in str(caught.value)
