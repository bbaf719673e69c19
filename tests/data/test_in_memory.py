"""Images of one's own: arrays, data sets and loaders of torch, .npz and Parquet files."""

import io
import json
import os
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from antiphase.data import load_data, load_pairs
from antiphase.data.archives import read_index
from antiphase.data.in_memory import dataset_class_names
from antiphase.errors import UserError

LABELS = [1, 0, 2, 1, 0]


def pixels(count=5, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, channels, 7, 7), dtype=np.uint8)


class Pictures(Dataset):
    """A data set of Pillow's images, as torchvision's are without a transform."""

    classes = ("cat", "dog", "cow")

    def __init__(self):
        self.read = []

    def __len__(self):
        return 5

    def __getitem__(self, row):
        self.read.append(row)
        return Image.fromarray(pixels()[row].transpose(1, 2, 0)), LABELS[row]


def same(images, array=None):
    expected = torch.from_numpy(pixels() if array is None else array).float()
    if expected.max() > 1:
        expected /= 255
    assert torch.equal(images.images(range(len(images))), expected)
    assert images.labels.tolist() == LABELS
    assert images.ids.tolist() == [0, 1, 2, 3, 4]


def test_arrays_and_tensors():
    same(load_data(pixels(), LABELS))
    same(load_data(torch.from_numpy(pixels()), torch.tensor(LABELS)))
    same(load_data((pixels(), LABELS)))
    floats = pixels() / 255
    same(load_data(floats, np.array(LABELS)), floats.astype(np.float32))
    named = load_data(pixels(), LABELS, class_names=["a", "b", "c", "d"])
    assert named.class_names == ("a", "b", "c", "d")
    assert load_data(named, limit=2, seed=1).ids.tolist() == named.subset(2, 1).ids.tolist()
    assert load_data(pixels(), LABELS).fingerprint() == load_data(torch.from_numpy(pixels()), LABELS).fingerprint()


def test_data_sets_and_loaders():
    tensors = TensorDataset(torch.from_numpy(pixels()), torch.tensor(LABELS))
    same(load_data(tensors))
    same(load_data(DataLoader(tensors, batch_size=2)))
    pictures = Pictures()
    same(load_data(pictures))
    assert load_data(pictures).class_names == ("cat", "dog", "cow")
    pictures.read.clear()
    some = load_data(pictures, limit=2, seed=3)
    whole = load_data(pixels(), LABELS, class_names=pictures.classes).subset(2, 3)
    assert some.fingerprint() == whole.fingerprint()  # the same rows, which alone were read
    assert pictures.read == whole.ids.tolist()
    assert load_data(DataLoader(tensors, batch_size=2), limit=3).ids.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="gives images in its order, without a seed; give its Dataset"):
        load_data(DataLoader(tensors, batch_size=2), limit=3, seed=1)


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (pixels().astype(np.float32), LABELS, r"float32 in \[0, 255\]; expected \[0, 1\]: divide bytes by 255"),
        (pixels().astype(np.int64), LABELS, r"type int64; expected uint8 in 0..255, or floating point in \[0, 1\]"),
        (pixels() / 127.5 - 1, LABELS, r"float64 in \[-1, 1\]; .* do not normalise"),
        (pixels() * np.float32("nan"), LABELS, r"in \[nan, nan\]; expected \[0, 1\]"),
        (pixels().transpose(0, 2, 3, 1), LABELS, r"shape \(5, 7, 7, 3\) .*; expected .*channels, height"),
        (pixels()[:, 0], LABELS, r"shape \(5, 7, 7\) .*; expected .*\(images, channels"),
        (pixels(channels=2), LABELS, "1 or 3 channels"),
        (pixels(0), [], r"expected .*\(images"),
        (pixels(), LABELS[:4], r"labels of shape \(4,\); expected \(5,\)"),
        (pixels(), np.eye(3)[LABELS], r"labels of shape \(5, 3\); expected"),
        (pixels(), [0.5] * 5, "label 0.5; expected class numbers from 0"),
        (pixels(), [-1] * 5, "label -1; expected class numbers from 0"),
        (pixels(), None, r"no labels; give them as the second argument"),
        (DataLoader(TensorDataset(torch.zeros(5, 3, 2, 2), torch.zeros(5).long()), shuffle=True), None, "shuffles"),
        (TensorDataset(torch.zeros(5, 3, 2, 2)), None, r"gives a tuple; expected \(image, label\)"),
        (3, None, "data 3: expected the name of a source"),
        ("digits", LABELS, "digits: has its own labels"),
        (Pictures(), LABELS, "labels: .*Pictures object.* has its own; leave them out"),
    ],
)
def test_what_is_off_is_named(images, labels, named):
    with pytest.raises(UserError, match=named) as caught:
        load_data(images, labels)
    assert "\n" not in str(caught.value)


def test_images_of_different_sizes_are_refused():
    items = [(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 5, 5), 1)]
    with pytest.raises(UserError, match=r"\[3, 5, 5\].*; expected images that are tensors of one shape"):
        load_data(DataLoader(items, batch_size=1))


class Named(TensorDataset):
    """A data set whose ``classes`` are given."""

    def __init__(self, classes=None, **attributes):
        super().__init__(torch.from_numpy(pixels()), torch.tensor(LABELS))
        self.__dict__.update({"classes": classes} | attributes)


NAMES = ("zebra", "ant", "mole")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: Subset(data, [3, 2]),
        lambda data: random_split(data, [2, 3], torch.Generator().manual_seed(0))[0],
        lambda data: ConcatDataset([data, Subset(data, [0])]),
        lambda data: DataLoader(Subset(ConcatDataset([data, data]), range(6)), batch_size=4),
    ],
)
def test_class_names_survive_wrappers_of_torch(wrap):
    assert load_data(wrap(Named(NAMES))).class_names == NAMES


def test_labels_that_a_subset_numbers_anew_have_no_names():
    class Anew(Subset):
        def __getitem__(self, row):
            image, label = super().__getitem__(row)
            return image, label - 1

        def __getitems__(self, rows):
            return [self[row] for row in rows]

    data = Named(NAMES)
    labels = [int(data[row][1]) for row in range(len(data))]
    data.targets = labels
    rows = [row for row, label in enumerate(labels) if label > 0]
    assert load_data(Subset(data, rows)).class_names == NAMES
    assert load_data(Anew(data, rows)).class_names == ("0", "1")
    assert load_data(DataLoader(Anew(data, rows), batch_size=2)).class_names == ("0", "1")


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"classes": [("zebra", "equine"), ("ant",), ("mole", "talpid")]}, NAMES),
        ({"classes": {"ant": 1, "mole": 2, "zebra": 0}}, NAMES),
        ({"classes": np.array(NAMES)}, NAMES),
        ({"class_to_idx": {"ant": 1, "mole": 2, "zebra": 0}}, NAMES),
        ({"classes": 3}, None),
        ({"classes": set(NAMES)}, None),
        ({"classes": {"ant": 1, "mole": 5, "zebra": 0}}, None),
        ({"classes": lambda: NAMES}, None),
        ({"classes": NAMES, "target_transform": lambda label: 2 - label}, None),
        ({"classes": NAMES, "_target_types": ["category"]}, NAMES),
        (
            {"classes": ("Abyssinian",), "bin_classes": ["Cat", "Dog"], "_target_types": ["binary-category"]},
            ("Cat", "Dog"),
        ),
        ({"classes": NAMES, "_target_types": ["segmentation"]}, None),
    ],
)
def test_class_names_in_any_form_are_in_order_or_unknown(attributes, names):
    assert dataset_class_names(Named(**attributes)) == names


def test_the_classes_of_torchvisions_imagenet_are_known_by_wordnet_id():
    cranes = Named([("crane",), ("crane",)], wnids=["n02012849", "n03126707"])
    assert dataset_class_names(cranes) == ("crane bird", "construction crane")


@pytest.mark.parametrize("other", [NAMES[::-1], None])
def test_parts_of_different_or_unknown_classes_are_refused(other):
    with pytest.raises(UserError, match=r"parts of different classes, .*'mole'.*; give class_names"):
        load_data(ConcatDataset([Named(NAMES), Named(other)]))
    both = load_data(ConcatDataset([Named(NAMES), Named(NAMES[::-1])]), class_names=["a", "b", "c"])
    assert both.class_names == ("a", "b", "c")
    assert load_data(ConcatDataset([Named(), Named()])).class_names == ("0", "1", "2")


class Endless(IterableDataset):
    def __iter__(self):
        yield from Named()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Subset(Named(), [7]), "IndexError: index 7 is out of bounds"),
        (ChainDataset([Endless()]), "TypeError: object of type 'Endless' has no len"),
        (DataLoader(Subset(Named(), [7])), "IndexError: index 7"),
    ],
)
def test_a_data_set_that_fails_is_one_line(data, why):
    with pytest.raises(UserError, match=f"cannot be read .{why}"):
        load_data(data)


def test_class_names_follow_the_numbers_of_the_labels():
    numbers = {"zebra": 1, "ant": 0, "mole": 2}
    assert dataset_class_names(Named(["zebra", "ant", "mole"], class_to_idx=numbers)) == ("ant", "zebra", "mole")
    assert dataset_class_names(Named(["a", "b", "c"], class_to_idx=numbers)) == ("a", "b", "c")  # other names


def test_a_loader_may_give_single_items_and_may_not_draw_them():
    same(load_data(DataLoader(Named(), batch_size=None)))
    with pytest.raises(UserError, match="shuffles"):
        load_data(DataLoader(Named(), sampler=SubsetRandomSampler(range(5))))
    with pytest.raises(UserError, match="shuffles"):
        load_data(DataLoader(Named(), batch_sampler=BatchSampler(RandomSampler(range(5)), 2, drop_last=False)))
    with pytest.raises(UserError, match="shuffles"):
        load_data(DataLoader(Named(), sampler=DistributedSampler(Named(), num_replicas=1, rank=0)))
    with pytest.raises(UserError, match="3 images with 2 labels"):
        load_data(DataLoader([(torch.zeros(3, 1, 4, 4), torch.zeros(2))], batch_size=None))


def test_options_without_a_use_are_refused():
    with pytest.raises(UserError, match="array: --skip-bad leaves out files"):
        load_data(pixels(), LABELS, skip_bad=True)
    with pytest.raises(UserError, match=r"class_names: .* has its own"):
        load_data(load_data("digits", limit=2), class_names=["a"])
    with pytest.raises(UserError, match="split 'train': array is given as images of one split"):
        load_data(pixels(), LABELS, split="train")
    with pytest.raises(UserError, match="class names 'abc'; expected a name for each class"):
        load_data(pixels(), LABELS, class_names="abc")


def test_class_names_must_cover_the_labels():
    with pytest.raises(UserError, match=r"label 2, class names .*; expected a name for each"):
        load_data(pixels(), LABELS, class_names=["a", "b"])


def test_npz_files(tmp_path):
    np.savez(tmp_path / "a.npz", images=pixels(), labels=LABELS, class_names=["cat", "dog", "cow"])
    data = load_data(f"npz:{tmp_path / 'a.npz'}")
    same(data)
    assert (data.split, data.class_names) == ("test", ("cat", "dog", "cow"))
    # MedMNIST's layout: channels last, labels of one column, splits in the names
    rows, last = np.array(LABELS)[:, None], pixels().transpose(0, 2, 3, 1)
    np.savez(tmp_path / "b.npz", train_images=last[:2], train_labels=rows[:2], val_images=last, val_labels=rows)
    same(load_data(f"npz:{tmp_path / 'b.npz'}"))  # test means val
    assert len(load_data(f"npz:{tmp_path / 'b.npz'}", split="train")) == 2
    notes = np.array([{"not": "read"}])  # a pickle
    np.savez_compressed(tmp_path / "c.npz", x_test=pixels()[:, 0], y_test=LABELS, notes=notes)  # Keras's
    same(load_data(f"npz:{tmp_path / 'c.npz'}"), pixels()[:, :1])
    np.savez(tmp_path / "d.npz", images=pixels(), labels=LABELS)
    with pytest.raises(UserError, match=r"no train split, .*: name them train_images and train_labels"):
        load_data(f"npz:{tmp_path / 'd.npz'}", split="train")


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"images": pixels().astype(np.float32), "labels": LABELS}, r"float32 in \[0, 255\]; expected \[0, 1\]"),
        ({"pictures": pixels()}, "has the arrays pictures; expected images, labels"),
        ({"train_images": pixels(), "train_labels": LABELS}, "no split 'test': expected one of train"),
        ({"images": np.array([None]), "labels": LABELS}, "cannot be read .*; expected a file of numpy.savez"),
    ],
)
def test_an_npz_file_that_is_off_is_one_line_of_the_command(tmp_path, run_cli, arrays, named):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=named) as caught:
        load_data(f"npz:{tmp_path / 'a.npz'}")
    code, _, err = run_cli("audit", "specimen:vit-0", "--data", f"npz:{tmp_path / 'a.npz'}", "--out", tmp_path / "o")
    assert (code, err) == (2, f"antiphase: {caught.value}\n")


def test_an_npz_file_that_is_missing_or_damaged_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"none.npz: cannot be read \(No such file"):
        load_data(f"npz:{tmp_path / 'none.npz'}")
    np.save(tmp_path / "one.npy", np.zeros((3, 2)))  # which dict() would take
    with pytest.raises(UserError, match=r"one.npy: cannot be read \(it holds one array"):
        load_data(f"npz:{tmp_path / 'one.npy'}")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UserError, match=r"bad.npz: cannot be read \(.*\); expected a file of numpy.savez"):
        load_data(f"npz:{tmp_path / 'bad.npz'}")
    np.save(tmp_path / "one.npy", pixels())
    with pytest.raises(UserError, match="cannot be read"):
        load_data(f"npz:{tmp_path / 'one.npy'}")


def encoded(array):
    buffer = io.BytesIO()
    Image.fromarray(array.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path, rows, names=None, **columns):
    """Write images as the library ``datasets`` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(pixels()[row]), "path": f"{row}.png"} for row in rows]
    frame = pl.DataFrame({"image": images, "label": [LABELS[row] for row in rows]} | columns)
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    frame.write_parquet(path, metadata=about, row_group_size=2)


def test_parquet_files_of_the_hub(tmp_path):
    names = ["cat", "dog", "cow"]
    write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet", [4, 4], names)
    write_parquet(tmp_path / "data" / "test-00000-of-00002.parquet", [0, 1, 2], names)
    write_parquet(tmp_path / "data" / "test-00001-of-00002.parquet", [3, 4], names)
    for pattern in (tmp_path, tmp_path / "data" / "test-*.parquet"):
        data = load_data(f"parquet:{pattern}", image_size=7)
        same(data)
        assert (data.split, data.class_names) == ("test", ("cat", "dog", "cow"))
    assert load_data(f"parquet:{tmp_path}", split="train", image_size=7).labels.tolist() == [0, 0]
    part = data.take([3, 0])
    assert torch.equal(part.images([0, 1]), data.images([3, 0]))
    assert load_data(f"parquet:{tmp_path}", image_size=7).fingerprint() == data.fingerprint()
    other = tmp_path / "other.parquet"  # without names of classes or of a split
    write_parquet(other, range(5))
    same(load_data(f"parquet:{other}", image_size=7))
    assert load_data(f"parquet:{other}").image_shape == (3, 224, 224)


@pytest.mark.parametrize("other", ["extra", "unlabeled", "unsupervised"])
def test_parquet_files_of_an_unknown_split_are_left_out_with_a_warning(tmp_path, other):
    for split, rows in {"train": [0], "test": [1, 2], other: [3, 4]}.items():
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", rows)
    with pytest.warns(UserWarning, match=f"left out the files that name no known split: {other};"):
        data = load_data(f"parquet:{tmp_path}", image_size=7)
    assert data.labels.tolist() == [0, 2]
    alone = load_data(f"parquet:{tmp_path}/data/{other}-00000-of-00001.parquet")
    assert alone.labels.tolist() == [1, 0]


def test_parquet_files_that_are_links_to_blobs_are_read(tmp_path):
    write_parquet(tmp_path / "blob.parquet", range(5))
    (tmp_path / "blob.parquet").rename(tmp_path / "blob")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test-00000-of-00001.parquet").symlink_to(tmp_path / "blob")
    same(load_data(f"parquet:{tmp_path / 'data'}", image_size=7))


def test_parquet_files_of_several_configurations_are_refused(tmp_path):
    for config in ("160px", "320px", "full_size"):
        write_parquet(tmp_path / config / "validation" / "0000.parquet", [0])
    for pattern in (tmp_path, f"{tmp_path}/*/validation/*.parquet"):
        with pytest.raises(UserError, match=r"\(val\): 3 configurations or splits, 160px, 320px, full size; give"):
            load_data(f"parquet:{pattern}")
    assert len(load_data(f"parquet:{tmp_path}/320px")) == 1


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["cifar10-test.parquet", "cifar100-test.parquet"], "2 configurations or splits, cifar10, cifar100"),
        (["extra.parquet", "unlabeled.parquet"], "2 configurations or splits, extra, unlabeled"),
        (["fold/a.parquet", "test-labels/a.parquet"], None),
        (["0001.parquet", "0002.parquet"], None),
        (["224/test/0000.parquet", "384/test/0000.parquet"], "2 configurations or splits, 224, 384; give one, such as"),
        (["1.0.0/test/0.parquet", "2.0.0/test/0.parquet"], "2 configurations or splits, 1 0 0, 2 0 0"),
        (["test_clean.parquet", "test.parquet"], r"\(unnamed\), clean; give one, such as parquet:.*/test.*\.parquet"),
        (["part-0-3f2a99c01b7d.parquet", "part-1-77aa99c01b7d.parquet"], None),
    ],
)
def test_parquet_files_are_one_split_of_one_configuration(tmp_path, files, named):
    for row, file in enumerate(files):
        write_parquet(tmp_path / file, [row])
    if named is None:
        with warnings.catch_warnings(action="ignore"):
            assert len(load_data(f"parquet:{tmp_path}")) in (1, 2)
        return
    with pytest.raises(UserError, match=named):
        load_data(f"parquet:{tmp_path}")


def test_parquet_files_with_different_class_names_are_refused(tmp_path):
    write_parquet(tmp_path / "test-0.parquet", [1], ["cat", "dog"])
    write_parquet(tmp_path / "test-1.parquet", [1], ["dog", "cat"])
    with pytest.raises(UserError, match="files with different class names"):
        load_data(f"parquet:{tmp_path}")


@pytest.mark.parametrize(
    ("label", "named"),
    [(0.5, r"label 0\.5"), (10**9, "label 1000000000"), (-7, "label -7"), ([1], r"label \(List\(Int64\)\)")],
)
def test_parquet_labels_are_checked_as_all_others(tmp_path, label, named):
    pl.DataFrame({"image": [{"bytes": b"", "path": ""}], "label": [label]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=named):
        load_data(f"parquet:{tmp_path / 'a.parquet'}")


def test_pipes_among_data_files_are_not_waited_for(tmp_path):
    for name in ("a.npz", "a.parquet", "a.csv", "a.json", "a.tar"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=r"is no regular file|is a pipe or a device"):
        load_data(f"npz:{tmp_path}/a.npz")
    with pytest.raises(UserError, match="no such file"):
        load_data(f"parquet:{tmp_path}")
    with pytest.raises(UserError, match=r"is no regular file|is a pipe or a device"):
        load_pairs(f"csv:{tmp_path}/a.csv")
    with pytest.raises(UserError, match=r"is no regular file|is a pipe or a device"):
        load_pairs(f"karpathy:{tmp_path}/a.json")
    with pytest.raises(UserError, match="no shard matches"):
        load_pairs(f"shards:{tmp_path}")
    with pytest.raises(UserError, match="it is no regular file"):
        read_index(tmp_path / "a.tar")


def test_a_parquet_row_that_is_no_image_can_be_left_out(tmp_path):
    file = tmp_path / "test.parquet"
    images = [{"bytes": encoded(pixels()[0]), "path": None}, {"bytes": b"no image", "path": None}]
    pl.DataFrame({"img": [*images, {"bytes": None, "path": "a.png"}], "label": [0, 1, 2]}).write_parquet(file)
    data = load_data(f"parquet:{file}", image_size=7)
    with pytest.raises(UserError, match=r"test.parquet/1 "):
        data.images([0, 1])
    with pytest.raises(UserError, match="has a path in place of an image"):
        data.images([2])
    kept = load_data(f"parquet:{file}", image_size=7, skip_bad=True, progress=False)
    assert (kept.ids.tolist(), kept.skipped) == ([0], ("test.parquet/1", "test.parquet/2"))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"a": [1]}, r"has the columns a \(Int64\); expected image, of bytes"),
        ({"image": ["a.png"], "label": [0]}, r"image \(String\), label"),
        ({"image": [{"bytes": b"", "path": ""}], "label": ["cat"]}, r"label \(String\); expected .* of integers"),
        ({"image": [{"bytes": b"", "path": ""}], "label": [-1]}, "label -1"),
        ({"image": [{"bytes": b"", "path": ""}] * 2, "label": [0, None]}, "column label .*: 1 rows without a label"),
    ],
)
def test_a_parquet_file_that_is_off_is_one_line(tmp_path, columns, named):
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=named) as caught:
        load_data(f"parquet:{tmp_path / 'a.parquet'}")
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_is_missing_or_damaged_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no such file; give a Parquet file, a folder"):
        load_data(f"parquet:{tmp_path / 'test-*.parquet'}")
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"no complete Parquet file"):
        load_data(f"parquet:{tmp_path}")
    image, name = {"bytes": bytes(range(256)) * 40, "path": ""}, tmp_path / "whole.parquet"
    for order in (("image", "label"), ("label", "image")):
        pl.DataFrame({"image": [image], "label": [0]}).select(order).write_parquet(name, compression="uncompressed")
        content = bytearray(name.read_bytes())
        content[4:24] = b"\xff" * 20  # of the first column's pages; the description at the end is whole
        name.write_bytes(content)
        with pytest.raises(
            UserError, match=r"whole.parquet is no complete Parquet file .*: download it again"
        ) as caught:
            load_data(f"parquet:{name}").fingerprint()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "files", [["0-of-2"], ["0-of-1", "0-of-2", "1-of-2"], ["0-of-1", "0-of-2"], ["0-of-1-a09b74b3", "0-of-1-b3ef9c3b"]]
)
def test_a_parquet_split_that_is_incomplete_or_there_twice_is_refused(tmp_path, files):
    for file in files:
        write_parquet(tmp_path / f"test-{file}.parquet", range(5))
    with pytest.raises(UserError, match=rf"\(test\): {len(files)} files, such as test-0-of-.*; expected all of \d, of"):
        load_data(f"parquet:{tmp_path}")
    assert len(load_data(f"parquet:{tmp_path / f'test-{files[0]}.parquet'}")) == 5


def test_printing_a_data_set_is_one_line(tmp_path):
    assert repr(load_data("digits", limit=3)) == "<ArrayImages digits (test): 3 images>"
    assert repr(load_data(pixels(), LABELS)) == "<ArrayImages array (test): 5 images>"
    write_parquet(tmp_path / "test.parquet", range(5))
    assert "\n" not in repr(load_data(f"parquet:{tmp_path}"))


def test_arrays_of_a_split_by_its_other_names(tmp_path):
    images, labels = np.zeros((2, 1, 7, 7), np.float32), np.arange(2)
    arrays = {
        f"{split}_{kind}": one
        for split in ("training", "valid")
        for kind, one in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "a.npz", **arrays)
    for split, words in (("train", "train"), ("test", "val")):
        assert load_data(f"npz:{tmp_path / 'a.npz'}", split=split).split == words


def test_the_split_of_parquet_files_may_be_two_folders_up(tmp_path):
    write_parquet(tmp_path / "train" / "default" / "0000.parquet", range(5))
    with pytest.raises(UserError, match="no split 'test'"):
        load_data(f"parquet:{tmp_path / 'train' / 'default'}", image_size=7)


@pytest.mark.parametrize("names", [3, "xyz", {"0": "a", "2": "c"}, [None, "a", "b"]])
def test_class_names_of_the_hub_that_cannot_be_read_are_refused(tmp_path, names):
    write_parquet(tmp_path / "test.parquet", range(5), names)
    with pytest.raises(UserError, match="the class names of label are"):
        load_data(f"parquet:{tmp_path / 'test.parquet'}", image_size=7)


def test_class_names_are_those_of_the_column_of_the_labels(tmp_path):
    features = {
        name: {"names": list(names), "_type": "ClassLabel"} for name, names in (("label", "qrs"), ("labels", "xyz"))
    }
    images = [{"bytes": encoded(pixels()[row]), "path": f"{row}.png"} for row in range(3)]
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    pl.DataFrame({"image": images, "labels": [0, 1, 2]}).write_parquet(tmp_path / "test.parquet", metadata=about)
    assert load_data(f"parquet:{tmp_path / 'test.parquet'}", image_size=7).class_names == ("x", "y", "z")


def test_the_usual_name_of_a_split_counts_more_than_its_others(tmp_path):
    labels = {"val": [0, 1], "dev": [1, 0]}
    arrays = {f"{split}_images": np.zeros((2, 1, 7, 7), np.float32) for split in labels}
    np.savez(tmp_path / "a.npz", **arrays, **{f"{split}_labels": numbers for split, numbers in labels.items()})
    assert load_data(f"npz:{tmp_path / 'a.npz'}", split="val").labels.tolist() == [0, 1]


def test_parquet_files_below_a_folder_of_development_are_to_be_tested_on(tmp_path):
    write_parquet(tmp_path / "dev" / "digits" / "images.parquet", range(5))
    assert load_data(f"parquet:{tmp_path / 'dev' / 'digits'}", image_size=7).split == "test"
