"""Flip and crop: what it may do to an image, and that its draws belong to (seed, epoch, sample)."""

import pytest
import torch

from antiphase.training.classifier import flip_crop

HEIGHT, WIDTH = 11, 13


def _images(count, seed=0):
    """Images without a zero, so that every zero that comes out has moved in."""
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, HEIGHT, WIDTH, generator=stream) * 0.9 + 0.1


def _variants(image):
    """Every outcome by hand, keyed by (flipped, shift down, shift right)."""
    for flipped in (False, True):
        source = image.flip(-1) if flipped else image
        for down in range(-4, 5):
            for right in range(-4, 5):
                moved = torch.zeros_like(source)
                for row in range(HEIGHT):
                    for column in range(WIDTH):
                        if 0 <= row - down < HEIGHT and 0 <= column - right < WIDTH:
                            moved[:, row, column] = source[:, row - down, column - right]
                yield (flipped, down, right), moved


def test_each_result_is_a_flip_and_a_shift_by_at_most_four_pixels():
    images = _images(5)
    for image, result in zip(images, flip_crop(images, torch.arange(5), seed=0, epoch=0), strict=True):
        assert sum(torch.equal(result, moved) for _, moved in _variants(image)) == 1


def test_every_shift_and_both_sides_come_equally_often():
    # a ramp tells where it was moved: the value at the centre is its source's coordinate
    rows, columns = torch.arange(1, HEIGHT + 1)[:, None], torch.arange(1, WIDTH + 1)[None, :]
    ramp = torch.stack([rows.expand(HEIGHT, WIDTH), columns.expand(HEIGHT, WIDTH)]).float()
    count = 8100
    results = flip_crop(ramp.expand(count, -1, -1, -1), torch.arange(count), seed=0, epoch=0)
    down = HEIGHT // 2 + 1 - results[:, 0, HEIGHT // 2, WIDTH // 2]
    across = results[:, 1, HEIGHT // 2]
    flipped = across[:, WIDTH // 2 + 1] < across[:, WIDTH // 2]
    assert abs(int(flipped.sum()) - count / 2) < 5 * (count / 4) ** 0.5
    place = across[:, WIDTH // 2]
    right = WIDTH // 2 + 1 - torch.where(flipped, WIDTH + 1 - place, place)
    for shift in (down, right):
        values, counts = shift.unique(return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert (counts - count / 9).abs().max() < 5 * (count * 8 / 81) ** 0.5
    assert abs(float((down * right).mean())) < 5 * (60 / 9) / count**0.5  # the two axes move independently


def test_a_result_depends_on_seed_epoch_and_sample_alone():
    images, ids = _images(7), torch.tensor([50, 3, 17, 9, 4, 0, 23])
    whole = flip_crop(images, ids, seed=1, epoch=2)
    some = torch.tensor([5, 0, 3])
    assert torch.equal(flip_crop(images[some], ids[some], seed=1, epoch=2), whole[some])


@pytest.mark.parametrize("changes", [{"seed": 2}, {"epoch": 3}])
def test_another_seed_or_epoch_gives_other_images(changes):
    images, ids = _images(20), torch.arange(20)
    whole = flip_crop(images, ids, **{"seed": 1, "epoch": 2})
    other = flip_crop(images, ids, **{"seed": 1, "epoch": 2, **changes})
    assert (whole != other).flatten(1).any(1).sum() > 15


def test_images_are_not_changed_in_place_and_keep_shape_and_dtype():
    images = _images(3)
    before = images.clone()
    result = flip_crop(images, torch.arange(3), seed=0, epoch=0)
    assert torch.equal(images, before)
    assert result.shape == images.shape
    assert result.dtype == images.dtype
