"""Karpathy's lists of three sets: where they and their images may stand, and what does not fit together."""

import json

import pytest
import torch

from antiphase.data import load_pairs
from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.* were published")


def named(path, root, split):
    return load_pairs(f"karpathy:{path}", split=split, root=root)


@pytest.fixture
def splits(tmp_path, write_image):
    """Karpathy's list of seven images of COCO, below a folder that also has them."""
    kinds = ("train", "test", "restval", "val", "train", "restval", "test")
    entries = []
    for number, kind in enumerate(kinds):
        place = "train2014" if kind == "train" else "val2014"
        sentences = [{"raw": f" {number} {turn} \n", "tokens": []} for turn in range(5 + number % 2)]
        entries.append({"filename": f"{number}.png", "filepath": place, "split": kind, "sentences": sentences})
        write_image(tmp_path / "data" / "coco" / place / f"{number}.png", number)
    entries[6]["sentences"] = [{"raw": " "}]
    path = tmp_path / "lists" / "dataset_coco.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"dataset": "coco", "images": entries}))
    return path


def test_karpathys_splits_have_restval_in_train(tmp_path, splits):
    train, val, test = (named(splits, tmp_path / "data", split) for split in ("train", "val", "test"))
    assert train.files == ("train2014/0.png", "val2014/2.png", "train2014/4.png", "val2014/5.png")
    assert (val.files, test.files) == (("val2014/3.png",), ("val2014/1.png",))
    assert (train.name, train.split, val.split, test.split) == (f"karpathy:{splits}", "train", "val", "test")
    assert [len(captions) for captions in train.captions] == [5, 5, 5, 6]
    assert train.captions[1] == tuple(f"2 {turn}" for turn in range(5))
    assert (train.ids.tolist(), test.ids.tolist()) == ([0, 1, 2, 3], [0])
    assert (train.skipped, test.skipped) == ((), ("val2014/6.png has no caption",))
    assert train.pixels(3).shape == (3, 11, 13)
    assert torch.equal(train.pixels(3), decode_whole(tmp_path / "data/coco/val2014/5.png"))


def test_flickr30k_has_one_folder_which_may_stand_beside_the_list(tmp_path, write_image):
    entries = [
        {"filename": f"{number}.jpg", "split": "test", "sentences": [{"raw": "x"}], "sentids": [1]} for number in (3, 2)
    ]
    path = tmp_path / "dataset_flickr30k.json"
    path.write_text(json.dumps({"images": entries}))
    with pytest.raises(UserError, match=r"3\.jpg and the next images not found in .*flickr30k-images, "):
        named(path, tmp_path / "data", "test")
    write_image(tmp_path / "flickr30k-images" / "2.jpg", 2)
    write_image(tmp_path / "flickr30k-images" / "3.jpg", 3)
    pairs = named(path, tmp_path / "data", "test")
    assert (pairs.files, pairs.root) == (("3.jpg", "2.jpg"), tmp_path / "flickr30k-images")
    with pytest.raises(UserError, match=r"\(val\): no pairs"):
        named(path, tmp_path, "val")


def test_a_list_of_splits_that_is_absent_or_damaged_is_one_line(tmp_path):
    path = tmp_path / "dataset_coco.json"
    with pytest.raises(UserError, match=r"dataset_coco\.json: cannot be read \(No such file or directory\)"):
        named(path, tmp_path, "train")
    for text, line in (("nope", "cannot be read"), ('{"images": [{}]}', "expected the published layout .*'split'")):
        path.write_text(text)
        with pytest.raises(UserError, match=line):
            named(path, tmp_path, "train")
    with pytest.raises(UserError, match="has no split 'dev': expected one of train, val, test"):
        named(path, tmp_path, "dev")


IMAGES = {
    "flickr8k": ("flickr8k/Flicker8k_Dataset", "flickr8k/Flickr8k_Dataset", "flickr8k/images"),
    "flickr30k": ("flickr30k/flickr30k-images", "flickr30k/flickr30k_images", "flickr30k"),
    "coco-karpathy": ("coco", "coco/images"),
}
LISTS = {
    "flickr8k": "dataset_flickr8k.json",
    "flickr30k": "dataset_flickr30k.json",
    "coco-karpathy": "dataset_coco.json",
}


@pytest.fixture
def write_set(tmp_path, write_image):
    """Write one of the sets in its real layout: three images to train on, two to look at, four to test with."""

    def written(name, images, beside=None):
        entries = []
        for number, kind in enumerate(("train", "test", "restval", "val", "train", "test", "test", "val", "test")):
            entry = {"filename": f"{number}.jpg", "split": kind, "imgid": number, "sentids": [number]}
            if name == "coco-karpathy":
                entry["filepath"] = "train2014" if kind == "train" else "val2014"
            elif kind == "restval":
                entry["split"] = "train"
            entry["sentences"] = [{"raw": f"{number}, said {turn} times ", "imgid": number} for turn in range(5)]
            entries.append(entry)
            write_image(tmp_path / images / entry.get("filepath", "") / f"{number}.jpg", number)
        path = tmp_path / (beside or LISTS[name][8:-5]) / LISTS[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"dataset": name, "images": entries}))
        return path

    return written


@pytest.mark.parametrize(("name", "images"), [(name, images) for name, several in IMAGES.items() for images in several])
def test_a_set_is_found_by_its_name_with_images_in_the_usual_folders(write_set, tmp_path, name, images):
    write_set(name, images)
    test = load_pairs(name, split="test", root=tmp_path)
    below = "val2014/" if name == "coco-karpathy" else ""
    assert (test.name, test.split, test.root) == (name, "test", tmp_path / images)
    assert test.files == tuple(f"{below}{number}.jpg" for number in (1, 5, 6, 8))
    assert test.captions[3] == tuple(f"8, said {turn} times" for turn in range(5))
    assert torch.equal(test.pixels(2), decode_whole(tmp_path / images / below / "6.jpg"))
    assert [len(load_pairs(name, split=split, root=tmp_path)) for split in ("train", "val")] == [3, 2]
    assert len(load_pairs(name, split="test", root=tmp_path, limit=2)) == 2


def test_a_list_of_flickr8k_may_be_named_by_its_path(write_set, tmp_path):
    path = write_set("flickr8k", "lists/Flicker8k_Dataset", "lists")
    pairs = load_pairs(f"karpathy:{path}", split="test", root=tmp_path / "none")
    assert (len(pairs), pairs.root) == (4, tmp_path / "lists" / "Flicker8k_Dataset")


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("split", ["val", "test"])
def test_an_image_that_the_list_names_and_is_not_there_is_named_unless_it_is_to_train_on(
    write_set, tmp_path, name, split
):
    images = IMAGES[name][0]
    write_set(name, images)
    whole = load_pairs(name, split=split, root=tmp_path)
    train = load_pairs(name, split="train", root=tmp_path)
    (whole.root / whole.files[1]).unlink()
    (train.root / train.files[1]).unlink()
    line = rf"^{name} \({split}\): 1 of the {len(whole)} listed .*{images}, the first is {whole.files[1]}: unpack"
    with pytest.raises(UserError, match=line) as caught:
        load_pairs(name, split=split, root=tmp_path)
    assert "\n" not in str(caught.value)
    (batch,) = load_pairs(name, split="train", root=tmp_path).batches(3, seed=0, epoch=0)
    assert (len(batch.images), len(batch.bad)) == (2, 1)


PAGES = {"flickr8k": "forms.illinois.edu", "flickr30k": "shannon.cs.illinois.edu", "coco-karpathy": "cocodataset.org"}


@pytest.mark.parametrize("name", IMAGES)
def test_an_absent_list_and_absent_images_are_one_line_with_their_pages(write_set, tmp_path, name):
    with pytest.raises(
        UserError, match=rf"^{name}: .*{LISTS[name]} not found: .*caption_datasets\.zip in .*{PAGES[name]}"
    ) as caught:
        load_pairs(name, split="test", root=tmp_path)
    assert "\n" not in str(caught.value)
    write_set(name, "elsewhere")
    with pytest.raises(UserError, match=rf"^{name}: .*1\.jpg and the next images not found in .*{PAGES[name]}"):
        load_pairs(name, split="test", root=tmp_path)
    with pytest.raises(UserError, match=f"^{name} has no split 'dev': expected one of train, val, test"):
        load_pairs(name, split="dev", root=tmp_path)


@pytest.mark.filterwarnings("error")
def test_other_counts_than_the_published_ones_are_warned_of(write_set, tmp_path):
    write_set("flickr30k", "flickr30k/flickr30k-images")
    for split, count, published in (("train", 3, "29,000"), ("val", 2, "1,014"), ("test", 4, "1,000")):
        with pytest.warns(
            UserWarning, match=rf"^flickr30k \({split}\): images {count}, classes 0; {published} and 0 were published: "
        ):
            load_pairs("flickr30k", split=split, root=tmp_path, limit=1)
    assert len(load_pairs(f"karpathy:{tmp_path}/flickr30k/dataset_flickr30k.json", split="test", root=tmp_path)) == 4
