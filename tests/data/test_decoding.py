import io

import numpy as np
import pytest
import torch
from PIL import Image

from antiphase.data.decoding import Square, decode, flat
from antiphase.errors import UserError


@pytest.mark.parametrize(("width", "height"), [(13, 29), (29, 13), (13, 13), (5, 7)])
def test_the_shorter_side_is_resized_bicubically_and_the_centre_is_cut_out(tmp_path, write_image, width, height):
    write_image(tmp_path / "a.png", size=(width, height))
    size = 11
    scale = size / min(width, height)
    with Image.open(tmp_path / "a.png") as image:
        resized = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BICUBIC)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    expected = np.asarray(resized.crop((left, top, left + size, top + size)))
    pixels = decode(tmp_path / "a.png", Square(size), 3)
    assert pixels.dtype == torch.uint8
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), expected)


def test_shrinking_averages_instead_of_picking_pixels(tmp_path):
    # A one-pixel chequerboard: with antialias every result is grey, without it black or white.
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a.png")
    pixels = decode(tmp_path / "a.png", Square(8), 1)[:, 1:-1, 1:-1].float()
    assert (pixels - 127.5).abs().max() < 3


def test_an_image_of_the_right_size_is_unchanged(tmp_path, write_image):
    write_image(tmp_path / "a.png", size=(11, 11))
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(decode(tmp_path / "a.png", Square(11), 3).permute(1, 2, 0), np.asarray(image))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".bmp", ".webp", ".gif", ".tif"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_files_of_every_format_take_the_channels_asked_for(
    tmp_path, write_image, suffix, mode, channels
):
    path = tmp_path / f"a{suffix}"
    write_image(path, mode=mode)
    pixels = decode(path, Square(7), channels)
    assert pixels.shape == (channels, 7, 7)
    if mode == "L" and channels == 3:
        assert torch.equal(pixels[0], pixels[2])


def test_alpha_is_dropped_and_leaves_the_colours(tmp_path, write_image):
    write_image(tmp_path / "a.png", mode="RGBA", size=(7, 7))
    with Image.open(tmp_path / "a.png") as image:
        expected = np.asarray(image)[..., :3]
    assert np.array_equal(decode(tmp_path / "a.png", Square(7), 3).permute(1, 2, 0), expected)


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    colours = np.arange(49, dtype=np.uint8).reshape(7, 7) % 4
    image = Image.fromarray(colours, mode=None).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    image.save(tmp_path / "a.png", transparency=bytes([0, 255, 128, 255]))
    with Image.open(tmp_path / "a.png") as again:
        assert again.mode == "P"
        assert isinstance(again.info["transparency"], bytes)
    pixels = decode(tmp_path / "a.png", Square(7), 3)
    assert set(map(tuple, pixels.flatten(1).T.tolist())) == {(255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 9, 9)}


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bits_are_scaled_instead_of_clipped_to_white(tmp_path, suffix):
    Image.fromarray(np.full((7, 7), 40_000, dtype=np.uint16)).save(tmp_path / f"a{suffix}")
    assert (decode(tmp_path / f"a{suffix}", Square(7), 3) == round(40_000 / 65_535 * 255)).all()


def test_16_bits_in_which_0_is_white_are_inverted(tmp_path):
    picture = Image.fromarray(np.full((7, 7), 65_535 - 40_000, dtype=np.uint16))
    picture.save(tmp_path / "a.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "a.tif") as again:
        assert again.tag_v2[262] == 0
    assert (decode(tmp_path / "a.tif", Square(7), 3) == round(40_000 / 65_535 * 255)).all()


def test_pixels_of_unknown_range_are_refused(tmp_path):
    for values in (np.full((7, 7), 40_000, np.int32), np.full((7, 7), 0.5, np.float32)):
        Image.fromarray(values).save(tmp_path / "a.tif")
        with pytest.raises(UserError, match=r"a\.tif \(mode [IF] does not tell the range of its pixels"):
            decode(tmp_path / "a.tif", Square(7), 3)
    twelve = Image.fromarray(np.zeros((7, 7), np.uint16))
    twelve.tag_v2 = {258: (12,)}  # as of a TIFF file with 12 bits, which Pillow does not write
    with pytest.raises(ValueError, match="mode I;16 does not tell the range"):
        flat(twelve, "L")


@pytest.mark.parametrize(("width", "height"), [(1, 16_000), (4_001, 2), (3, 301)])
def test_a_long_thin_image_is_cut_before_it_is_enlarged(tmp_path, width, height, monkeypatch):
    ramp = np.linspace(0, 255, max(width, height)).astype(np.uint8)[:, None].repeat(min(width, height), 1)
    Image.fromarray(ramp if height > width else ramp.T).save(tmp_path / "a.png")
    made = decode(tmp_path / "a.png", Square(24), 1).float()
    with monkeypatch.context() as patched:
        patched.setattr("antiphase.data.decoding._MOST_ASPECT", 10**6)
        assert (made - decode(tmp_path / "a.png", Square(24), 1)).abs().max() <= 1
        patched.undo()
    sizes = []
    patch = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda image, size, *more, **k: sizes.append(size) or patch(image, size, *more, **k)
    )
    decode(tmp_path / "a.png", Square(224), 1)
    assert max(sizes[0]) <= 17 * 224


def damaged_files():
    whole = io.BytesIO()
    Image.fromarray(np.arange(4096, dtype=np.uint8).reshape(64, 64)).save(whole, "PNG")
    png = whole.getvalue()
    whole = io.BytesIO()
    Image.fromarray(np.arange(4096, dtype=np.uint8).reshape(64, 64)).save(whole, "JPEG")
    jpeg = whole.getvalue()
    return {
        "empty.png": b"",
        "text.png": b"<html>404</html>",
        "cut.png": png[: len(png) // 2],
        "header.png": png[:20],
        "flipped.png": png[:60] + bytes([png[60] ^ 255]) + png[61:],
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "start.jpg": jpeg[:3],
    }


@pytest.mark.parametrize("name", damaged_files())
def test_an_unreadable_image_is_one_line_that_names_it_and_says_how_to_fix_it(tmp_path, name):
    (tmp_path / name).write_bytes(damaged_files()[name])
    with pytest.raises(UserError, match="--skip-bad to skip such files") as caught:
        decode(tmp_path / name, Square(7), 3)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
