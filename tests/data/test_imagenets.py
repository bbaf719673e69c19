"""ImageNet's shifted sets, in the layouts of their archives; ImageNet itself is with the other folders."""

import hashlib

import pytest
import torch
from open_clip import IMAGENET_CLASSNAMES
from timm.data import ImageNetInfo

from antiphase.data import load_data
from antiphase.data.image_sets import class_words, published_wnids
from antiphase.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:imagenet-.* were published")
PLACES = {
    "imagenet-v2": (
        "imagenetv2-matched-frequency-format-val",
        "imagenet-v2/imagenetv2-matched-frequency-format-val",
        "imagenet-v2",
    ),
    "imagenet-a": ("imagenet-a",),
    "imagenet-r": ("imagenet-r",),
    "imagenet-sketch": ("sketch", "imagenet-sketch", "imagenet-sketch/sketch"),
}
CLASSES = {"imagenet-v2": 1000, "imagenet-a": 200, "imagenet-r": 200, "imagenet-sketch": 1000}


def folder_names(name):
    return [str(k) for k in range(1000)] if name == "imagenet-v2" else list(published_wnids(name))


@pytest.fixture
def write(tmp_path, write_image):
    """Write a set below the data folder, an image of its own for each class, and return its folder."""

    def written(name, place=None, folders=None):
        folder = tmp_path / "data" / (place or PLACES[name][0])
        write_image(tmp_path / "one.jpg", 1, size=(29, 23))
        image = (tmp_path / "one.jpg").read_bytes()
        for entry in folder_names(name) if folders is None else folders:
            (folder / entry).mkdir(parents=True)
            (folder / entry / f"of_{entry}.jpg").write_bytes(image)
        (folder / "README.txt").write_text("as in the archives of A and R")
        return folder

    return written


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, places[-1]) for name, places in PLACES.items()] + [("imagenet-v2", PLACES["imagenet-v2"][0])],
)
def test_a_shifted_set_has_the_classes_of_imagenet_that_it_is_of(write, tmp_path, name, place):
    folder = write(name, place)
    made = load_data(name, root=tmp_path / "data", image_size=17)
    assert (made.name, made.split, made.root) == (name, "test", folder)
    assert made.labels.tolist() == made.ids.tolist() == list(range(CLASSES[name]))
    # the file of label k lies in the folder of class k: as text, folder 10 would come before 2
    assert made.files == tuple(f"{entry}/of_{entry}.jpg" for entry in folder_names(name))
    numbers = _places(published_wnids(name))
    assert made.class_names == tuple(IMAGENET_CLASSNAMES[number] for number in numbers)
    assert made.images([CLASSES[name] - 1]).shape == (1, 3, 17, 17)
    assert (
        load_data(name, split="val", root=tmp_path / "data").fingerprint()
        == load_data(name, root=tmp_path / "data").fingerprint()
    )
    with pytest.raises(UserError, match=f"{name} has no split 'train': expected one of test$"):
        load_data(name, split="train", root=tmp_path / "data")


def test_numbers_with_zeros_before_them_are_numbers(write, tmp_path):
    write("imagenet-v2", folders=[f"{k:03d}" for k in range(1000)])
    made = load_data("imagenet-v2", root=tmp_path / "data")
    assert made.files[10] == "010/of_010.jpg"
    assert torch.equal(made.labels, torch.arange(1000))


def _places(wnids):
    """Return the index of each wnid among ImageNet's 1,000 classes."""
    every = ImageNetInfo().label_names()
    return tuple(map(every.index, wnids))


@pytest.mark.parametrize(("letter", "golden"), [("a", "1b241a7a5dd97991"), ("r", "becd1bb8e8059908")])
def test_the_200_classes_are_those_of_the_authors(letter, golden):
    numbers = _places(published_wnids(f"imagenet-{letter}"))
    assert (len(numbers), numbers) == (200, tuple(sorted(numbers)))
    assert hashlib.sha256(" ".join(map(str, numbers)).encode()).hexdigest()[:16] == golden


def test_the_other_variants_have_all_classes_in_order_of_wnid():
    for name in ("imagenet-v2", "imagenet-sketch"):
        assert _places(published_wnids(name)) == tuple(range(1000))
    assert list(published_wnids("imagenet-v2")) == sorted(published_wnids("imagenet-v2"))


PAGES = {
    "imagenet-v2": r"https://huggingface\.co/datasets/vaishaal/ImageNetV2",
    "imagenet-a": "https://github.com/hendrycks/natural-adv-examples",
    "imagenet-r": "https://github.com/hendrycks/imagenet-r",
    "imagenet-sketch": "https://github.com/HaohanWang/ImageNet-Sketch",
}


@pytest.mark.parametrize("name", PLACES)
def test_an_absent_set_is_one_line_with_its_page(tmp_path, name):
    with pytest.raises(
        UserError, match=rf"^{name} has no class folders in {tmp_path}.*unpack .*{PAGES[name]}"
    ) as caught:
        load_data(name, root=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "spoil", "line"),
    [
        ("imagenet-v2", lambda names: names[:7] + names[8:], "lacks the class 7, or has a folder of no class"),
        ("imagenet-v2", lambda names: [*names, "1000"], "lacks the class 1000, or has a folder of no class"),
        ("imagenet-v2", lambda names: [*names, "n01440764"], "lacks the class n01440764, or has a folder of no"),
        ("imagenet-v2", lambda names: [*names, "007"], "lacks the class 0?0?7, or has a folder of no class"),
        ("imagenet-a", lambda names: names[1:-1], "lacks the class n01498041"),
        ("imagenet-r", lambda names: [*names, "n01440764"], "lacks the class n01440764, or has a folder of no class"),
        ("imagenet-sketch", lambda names: [*names[:-1], "n99999999"], "or has a folder of no class"),
    ],
)
def test_class_folders_that_are_not_the_published_ones_are_named(write, tmp_path, name, spoil, line):
    write(name, folders=spoil(folder_names(name)))
    with pytest.raises(UserError, match=line) as caught:
        load_data(name, root=tmp_path / "data")
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_class_names_are_words_of_a_text():
    assert class_words(["n01440764", "n02012849", "fire_truck", "T-shirt/top"]) == (
        "tench",
        "crane bird",
        "fire truck",
        "T-shirt/top",
    )
    assert class_words(["n00005787"]) == ("benthos",)  # of ImageNet-21k
    assert class_words(["n02085620-Chihuahua", "n02091032-Italian_greyhound"]) == ("Chihuahua", "Italian greyhound")
    assert class_words(["001.Black_footed_Albatross", "002.Crow"]) == ("Black footed Albatross", "Crow")
    assert class_words(["2_wheeler", "4_wheeler"]) == ("2 wheeler", "4 wheeler")  # only the number tells them apart
    assert class_words(["1_cat", "2_dog", "3_dog"]) == ("1 cat", "2 dog", "3 dog")
    assert class_words(["7 up", "cola"]) == ("7 up", "cola")


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (("0", "1", "10"), "0, 1, 10"),
        (("n99999999", "cat"), "n99999999"),
        (("1_2", "3"), "1 2, 3"),
        (("0", "cat"), "0"),
        (("class_0", "cat"), "class 0"),
        (("c0", "c1", "c10"), "c0, c1, c10"),
        (("category_1", "category_2"), "category 1, category 2"),
    ],
)
def test_class_names_that_are_no_words_are_warned_of(names, odd):
    with pytest.warns(UserWarning, match=f"class names '{odd}' are no words"):
        class_words(names)


def test_class_names_that_are_the_same_words_are_warned_of():
    for names, word in ((("hot_dog", "hot dog", "cat"), "hot dog"), (("n00483313", "n00483409"), "singles")):
        with pytest.warns(UserWarning, match=f"class names '{word}' are the same words for several classes"):
            class_words(names)


def test_other_counts_than_the_published_ones_are_warned_of(write, tmp_path):
    write("imagenet-a")
    with pytest.warns(UserWarning, match=r"imagenet-a \(test\): images 200, classes 200; 7,500 and 200 were published"):
        load_data("imagenet-a", root=tmp_path / "data")
