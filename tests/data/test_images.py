import hashlib
import os
import struct
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphase.data import ArrayImages, FileImages, decoding, images
from antiphase.errors import UserError

COUNT = 17


def array_images(count=COUNT, **changes):
    generator = torch.Generator().manual_seed(count)
    fields = {
        "name": "made",
        "split": "test",
        "class_names": ("a", "b", "c"),
        "ids": torch.arange(count),
        "labels": torch.arange(count) % 3,
        "pixels": torch.randint(0, 256, (count, 3, 5, 7), dtype=torch.uint8, generator=generator),
    }
    return ArrayImages(**(fields | changes))


@pytest.fixture
def file_images(tmp_path, write_image):
    files = tuple(f"{'ab'[k % 2]}/{k}.png" for k in range(COUNT))
    for k, file in enumerate(files):
        write_image(tmp_path / file, seed=k)
    return FileImages(
        name="folder:made",
        split="test",
        class_names=("a", "b"),
        ids=torch.arange(COUNT),
        labels=torch.arange(COUNT) % 2,
        root=tmp_path,
        files=files,
        image_size=5,
        channels=3,
    )


@pytest.fixture(params=["array", "files"])
def image_set(request):
    return array_images() if request.param == "array" else request.getfixturevalue("file_images")


def test_images_are_float32_of_the_declared_shape_within_0_and_1(image_set):
    pixels = image_set.images(range(len(image_set)))
    assert pixels.dtype == torch.float32
    assert pixels.shape == (COUNT, *image_set.image_shape)
    assert 0 <= pixels.min() < 0.2
    assert 0.8 < pixels.max() <= 1


def test_uint8_is_divided_by_255_and_float_is_kept():
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    only = {"ids": torch.tensor([0]), "labels": torch.tensor([0])}
    assert torch.equal(array_images(pixels=levels, **only).images([0]).flatten() * 255, torch.arange(256.0))
    kept = levels.float() / 256
    assert torch.equal(array_images(pixels=kept, **only).images([0]), kept)


@pytest.mark.parametrize("positions", [[4, 0, 4], (4, 0, 4), torch.tensor([4, 0, 4])])
def test_positions_select_in_their_own_order(image_set, positions):
    one_by_one = torch.cat([image_set.images([position]) for position in (4, 0, 4)])
    assert torch.equal(image_set.images(positions), one_by_one)


def test_no_positions_give_no_images(image_set):
    assert image_set.images([]).shape == (0, *image_set.image_shape)
    assert len(image_set.take([])) == 0


@pytest.mark.parametrize("positions", [[-1], [COUNT], [0, COUNT]])
def test_a_position_outside_the_set_is_an_error(image_set, positions):
    with pytest.raises(IndexError, match=r"0\.\.16"):
        image_set.images(positions)


def test_a_mask_is_not_taken_for_positions(image_set):
    with pytest.raises(TypeError, match="bool"):
        image_set.images(torch.ones(COUNT, dtype=torch.bool))


@pytest.mark.parametrize("size", [1, 7, COUNT, 64])
def test_batches_cover_the_set_once_in_order_for_any_size(image_set, size):
    ids, pixels, labels = map(torch.cat, zip(*image_set.batches(size), strict=True))
    assert torch.equal(ids, image_set.ids)
    assert torch.equal(labels, image_set.labels)
    assert torch.equal(pixels, image_set.images(range(COUNT)))


def test_a_batch_of_no_images_is_refused(image_set):
    with pytest.raises(UserError, match="batch size 0: expected an integer of at least 1"):
        next(image_set.batches(0))


def test_subset_without_a_seed_is_the_beginning(image_set):
    assert image_set.subset(5).ids.tolist() == [0, 1, 2, 3, 4]
    assert image_set.subset(None).ids.tolist() == list(range(COUNT))
    assert image_set.subset(1000).ids.tolist() == list(range(COUNT))


@given(limit=st.integers(1, 20), more=st.integers(0, 9), seed=st.integers(0, 2**32))
def test_a_seeded_subset_is_sorted_keeps_its_samples_and_grows_with_the_limit(limit, more, seed):
    whole = array_images()
    small, large = whole.subset(limit, seed), whole.subset(limit + more, seed)
    assert len(small) == min(limit, COUNT)
    assert small.ids.tolist() == sorted(set(small.ids.tolist()))
    assert set(small.ids.tolist()) <= set(large.ids.tolist())
    assert torch.equal(small.labels, whole.labels[small.ids])
    assert torch.equal(small.images(range(len(small))), whole.images(small.ids))
    assert small.fingerprint() == whole.subset(limit, seed).fingerprint()


def test_seeds_give_different_subsets():
    choices = {tuple(array_images().subset(5, seed).ids.tolist()) for seed in range(20)}
    assert len(choices) > 15


def test_a_subset_of_a_subset_still_has_the_ids_of_the_full_split(image_set):
    inner = image_set.take([3, 5, 8, 13]).subset(2, seed=1)
    assert set(inner.ids.tolist()) < {3, 5, 8, 13}
    assert torch.equal(inner.images([0, 1]), image_set.images(inner.ids))


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_1_is_refused(image_set, limit):
    with pytest.raises(UserError, match=f"limit {limit}: expected an integer of at least 1"):
        image_set.subset(limit)


def test_fingerprint_tells_pixels_labels_ids_and_type_apart():
    whole = array_images()
    other_pixel = whole.pixels.clone()
    other_pixel[16, 2, 4, 6] ^= 1
    variants = [
        whole,
        array_images(pixels=other_pixel),
        array_images(pixels=whole.pixels.float() / 255),
        array_images(pixels=whole.pixels.mT.contiguous()),
        array_images(labels=whole.labels.flip(0)),
        array_images(ids=whole.ids + 1),
        whole.take(range(16)),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)


def test_fingerprint_of_an_array_does_not_see_its_name_or_its_memory_layout():
    whole = array_images()
    assert whole.take(range(COUNT)).fingerprint() == whole.fingerprint()
    assert array_images(name="other").fingerprint() == whole.fingerprint()
    strided = whole.pixels.to(memory_format=torch.channels_last)
    assert array_images(pixels=strided).fingerprint() == whole.fingerprint()


def test_fingerprint_of_an_array_is_the_hash_of_its_little_endian_bytes_each_after_its_length():
    # Written out by hand: if the recipe changes, every stored run loses the data it belongs to.
    fixed = torch.arange(2 * 3 * 5 * 7, dtype=torch.uint8).reshape(2, 3, 5, 7)
    made = array_images(pixels=fixed, ids=torch.tensor([4, 9]), labels=torch.tensor([0, 2]))
    parts = (b"array torch.uint8 (2, 3, 5, 7)", bytes(range(210)), struct.pack("<2q", 0, 2), struct.pack("<2q", 4, 9))
    expected = hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).hexdigest()
    assert made.fingerprint() == expected


def test_fingerprint_of_files_moves_with_the_folder_and_sees_names_sizes_labels_and_transform(file_images, tmp_path):
    before = file_images.fingerprint()
    changed = {
        "labels": file_images.labels.flip(0).roll(1),
        "ids": file_images.ids + 1,
        "files": tuple(reversed(file_images.files)),
        "image_size": 6,
        "channels": 1,
    }
    prints = {before}
    for field, value in changed.items():
        prints.add(FileImages(**(vars(file_images) | {field: value})).fingerprint())
    assert len(prints) == 1 + len(changed)

    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    os.rename(tmp_path, moved)
    there = FileImages(**(vars(file_images) | {"root": moved}))
    assert there.fingerprint() == before
    with (moved / file_images.files[0]).open("ab") as file:
        file.write(b"\0")
    assert there.fingerprint() != before


def test_a_file_that_went_away_is_one_line(file_images, tmp_path):
    (tmp_path / "a/0.png").unlink()
    with pytest.raises(UserError, match=r"a/0\.png was removed"):
        file_images.fingerprint()
    with pytest.raises(UserError, match=r"cannot read image .*a/0\.png .*--skip-bad"):
        file_images.images([0])


def test_files_are_decoded_only_when_asked_for_and_in_several_threads(file_images, monkeypatch):
    decoded, threads = [], set()
    meet = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(decoding, "WORKERS", 2)

    def decode(path, square, channels):
        meet.wait()  # passes only if two decodings are under way at once
        decoded.append(path.name)
        threads.add(threading.get_ident())
        return torch.zeros(channels, square.size, square.size, dtype=torch.uint8)

    monkeypatch.setattr(images, "decode", decode)
    part = file_images.subset(8, seed=3)
    assert len(part.labels) == 8
    assert not decoded
    part.images([0, 1, 2, 3])
    assert sorted(decoded) == sorted(file.split("/")[1] for file in part.files[:4])
    assert len(threads) == 2


def test_without_unreadable_leaves_out_bad_files_and_keeps_the_ids_of_the_others(
    file_images, tmp_path, monkeypatch, capsys
):
    (tmp_path / "a/4.png").write_bytes(b"not an image")
    whole = (tmp_path / "b/11.png").read_bytes()
    (tmp_path / "b/11.png").write_bytes(whole[: len(whole) // 2])
    good = file_images.without_unreadable(progress=False)
    assert good.skipped == ("a/4.png", "b/11.png")
    assert good.ids.tolist() == [k for k in range(COUNT) if k not in (4, 11)]
    assert torch.equal(good.labels, file_images.labels[good.ids])
    assert torch.equal(good.images([4]), file_images.images([5]))
    assert good.subset(2).skipped == good.skipped
    assert capsys.readouterr() == ("", "")


def test_progress_is_shown_on_stderr_only(file_images, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    file_images.without_unreadable(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Checking folder:made" in err


def test_a_set_of_bad_files_only_is_one_line(file_images, tmp_path):
    for file in file_images.files:
        (tmp_path / file).write_bytes(b"")
    with pytest.raises(UserError, match=r"none of its 17 images can be read, the first is a/0\.png"):
        file_images.without_unreadable(progress=False)


@pytest.mark.parametrize("bad", [1.01, -0.01, float("nan")])
def test_pixels_outside_0_and_1_are_refused(bad):
    pixels = torch.full((COUNT, 3, 5, 7), 0.5)
    pixels[16, 2, 4, 6] = bad
    with pytest.raises(UserError, match=f"made: pixel {bad:g} is outside \\[0, 1\\]"):
        array_images(pixels=pixels)


@pytest.mark.parametrize("bad", [3, -1])
def test_a_label_without_a_class_is_refused(bad):
    labels = torch.arange(COUNT) % 3
    labels[5] = bad
    with pytest.raises(UserError, match=rf"made: label {bad}: expected 0 to 2"):
        array_images(labels=labels)


# With jaxtyping's run-time checks on, its TypeError comes before the class's own error.
def test_fields_of_different_lengths_are_refused(file_images):
    with pytest.raises(UserError, match=r"labels of shape \(16,\) .* one per sample, \(17,\), as in ids"):
        array_images(labels=torch.zeros(16, dtype=torch.int64))
    with pytest.raises(UserError, match=r"pixels of shape \(16, 3, 5, 7\) .*: expected samples 17, as in ids"):
        array_images(pixels=torch.zeros(16, 3, 5, 7))
    with pytest.raises(ValueError, match="1 files but 17 labels"):
        FileImages(**(vars(file_images) | {"files": ("a/0.png",)}))


def test_pixels_of_another_type_are_refused():
    with pytest.raises(UserError, match=r"pixels of shape .* and torch\.int32: expected a torch tensor of uint8"):
        array_images(pixels=torch.zeros(COUNT, 3, 5, 7, dtype=torch.int32))


@pytest.mark.parametrize("field", ["name", "class_names", "ids", "labels", "pixels"])
def test_fields_of_another_type_are_refused(field):
    with pytest.raises(UserError, match=f"^{field} of type object: expected "):
        array_images(**{field: object()})
