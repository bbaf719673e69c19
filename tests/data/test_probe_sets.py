"""The sets of the linear probe, each in the layout that its archive unpacks to, read by torchvision's own classes."""

import hashlib
import json
import urllib.error

import numpy as np
import pytest
import torchvision.datasets as theirs
from scipy.io import savemat

from antiphase.data import load_data, sources
from antiphase.data.decoding import Square, decode
from antiphase.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.* were published")


def lines(path, *several):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in several))


@pytest.fixture
def no_network(monkeypatch):
    """Let every download fail as it does without a network."""

    def fail(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", fail)


class Layouts:
    """Write a small set in its real layout, with images that differ; returns nothing: the tests know what is in it."""

    def __init__(self, root, write_image, monkeypatch):
        self.root, self.write_image, self.monkeypatch = root, write_image, monkeypatch
        self.seed = 0

    def images(self, folder, *files):
        for file in files:
            self.seed += 1
            self.write_image(folder / file, self.seed)

    def food101(self):
        folder = self.root / "food-101"
        train = {"churros": ["churros/11", "churros/7"], "apple_pie": ["apple_pie/5"]}
        test = {"churros": ["churros/3"], "apple_pie": ["apple_pie/2", "apple_pie/13"]}
        for split, told in {"train": train, "test": test}.items():
            lines(folder / "meta" / f"{split}.json", json.dumps(told))
            for several in told.values():
                self.images(folder / "images", *(f"{file}.jpg" for file in several))

    def sun397(self):
        folder = self.root / "SUN397"
        lines(folder / "ClassName.txt", "/a/abbey", "/a/apartment_building/outdoor", "/b/basilica")
        lines(folder / "Training_01.txt", "/b/basilica/sun_a.jpg", "/a/abbey/sun_b.jpg")
        lines(folder / "Testing_01.txt", "/a/apartment_building/outdoor/sun_c.jpg", "/a/abbey/sun_d.jpg")
        spare = ["b/basilica/sun_in_no_half.jpg"]
        listed = ["b/basilica/sun_a.jpg", "a/abbey/sun_b.jpg", "a/abbey/sun_d.jpg"]
        self.images(folder, *listed, "a/apartment_building/outdoor/sun_c.jpg", *spare)

    def aircraft(self):
        folder = self.root / "fgvc-aircraft-2013b" / "data"
        lines(folder / "variants.txt", "707-320", "F/A-18", "Cessna 172")
        lines(folder / "images_variant_train.txt", "0034309 Cessna 172", "1025794 707-320")
        lines(folder / "images_variant_val.txt", "0056978 F/A-18")
        lines(folder / "images_variant_test.txt", "0000003 F/A-18", "0000002 Cessna 172", "0000001 707-320")
        numbers = ("0034309", "1025794", "0056978", "0000001", "0000002", "0000003")
        self.images(folder / "images", *(f"{number}.jpg" for number in numbers))

    def dtd(self):
        folder = self.root / "dtd" / "dtd"
        for number, (split, classes) in enumerate(
            {
                "train": ("polka-dotted", "banded"),
                "val": ("banded", "polka-dotted"),
                "test": ("banded", "polka-dotted"),
            }.items()
        ):
            for partition in (1, 2):
                files = [f"{name}/{name}_{number}{partition}.jpg" for name in classes]
                lines(folder / "labels" / f"{split}{partition}.txt", *files)
                self.images(folder / "images", *files)

    def pets(self):
        folder = self.root / "oxford-iiit-pet"
        lines(
            folder / "annotations/trainval.txt",
            "american_bulldog_100 2 2 1",
            "Abyssinian_10 1 1 1",
            "Abyssinian_2 1 1 1",
        )
        lines(folder / "annotations/test.txt", "Abyssinian_201 1 1 1", "american_bulldog_201 2 2 1")
        names = ("american_bulldog_100", "Abyssinian_10", "Abyssinian_2", "Abyssinian_201", "american_bulldog_201")
        self.images(folder / "images", *(f"{name}.jpg" for name in names))

    def flowers102(self):
        folder = self.root / "flowers-102"
        folder.mkdir()
        savemat(folder / "imagelabels.mat", {"labels": np.array([[102, 60, 1, 1, 60, 60, 102]])})
        savemat(folder / "setid.mat", {"trnid": [[5, 1]], "valid": [[7, 4]], "tstid": [[2, 6, 3]]})
        sums = {
            kind: (name, hashlib.md5((folder / name).read_bytes()).hexdigest() if kind != "image" else total)
            for kind, (name, total) in theirs.Flowers102._file_dict.items()
        }  # torchvision checks these, so it is told the sums of ours
        self.monkeypatch.setattr(theirs.Flowers102, "_file_dict", sums)
        self.images(folder / "jpg", *(f"image_{number:05d}.jpg" for number in range(1, 8)))


@pytest.fixture
def layouts(tmp_path, write_image, monkeypatch, no_network):
    return Layouts(tmp_path, write_image, monkeypatch)


FILES = {
    "food101": {
        "train": (["images/churros/11.jpg", "images/churros/7.jpg", "images/apple_pie/5.jpg"], [1, 1, 0]),
        "test": (["images/churros/3.jpg", "images/apple_pie/2.jpg", "images/apple_pie/13.jpg"], [1, 0, 0]),
    },
    "sun397": {
        "train": (["b/basilica/sun_a.jpg", "a/abbey/sun_b.jpg"], [2, 0]),
        "test": (["a/apartment_building/outdoor/sun_c.jpg", "a/abbey/sun_d.jpg"], [1, 0]),
    },
    "aircraft": {
        "train": (["data/images/0034309.jpg", "data/images/1025794.jpg"], [2, 0]),
        "val": (["data/images/0056978.jpg"], [1]),
        "test": ([f"data/images/000000{number}.jpg" for number in (3, 2, 1)], [1, 2, 0]),
    },
    "dtd": {
        "train": (["images/polka-dotted/polka-dotted_01.jpg", "images/banded/banded_01.jpg"], [1, 0]),
        "val": (["images/banded/banded_11.jpg", "images/polka-dotted/polka-dotted_11.jpg"], [0, 1]),
        "test": (["images/banded/banded_21.jpg", "images/polka-dotted/polka-dotted_21.jpg"], [0, 1]),
    },
    "pets": {
        "train": (
            [f"images/{name}.jpg" for name in ("american_bulldog_100", "Abyssinian_10", "Abyssinian_2")],
            [1, 0, 0],
        ),
        "test": (["images/Abyssinian_201.jpg", "images/american_bulldog_201.jpg"], [0, 1]),
    },
    "flowers102": {
        "train": (["jpg/image_00005.jpg", "jpg/image_00001.jpg"], [59, 101]),
        "val": (["jpg/image_00007.jpg", "jpg/image_00004.jpg"], [101, 0]),
        "test": (["jpg/image_00002.jpg", "jpg/image_00006.jpg", "jpg/image_00003.jpg"], [59, 59, 0]),
    },
}
NAMES = {
    "food101": ("apple pie", "churros"),
    "sun397": ("abbey", "apartment building outdoor", "basilica"),
    "aircraft": ("707-320", "F/A-18", "Cessna 172"),
    "dtd": ("banded", "polka-dotted"),
    "pets": ("Abyssinian", "American Bulldog"),
}


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, splits in FILES.items() for split in splits])
def test_a_split_is_that_of_the_published_list(layouts, name, split):
    getattr(layouts, name)()
    made = load_data(name, split=split, root=layouts.root, image_size=17)
    files, labels = FILES[name][split]
    assert (made.name, made.split, made.image_shape) == (name, split, (3, 17, 17))
    assert (list(made.files), made.labels.tolist()) == (files, labels)
    assert made.ids.tolist() == list(range(len(files)))
    assert made.class_names == NAMES.get(name, made.class_names)
    for row, file in enumerate(files):
        assert np.array_equal(made.images([row])[0] * 255, decode(made.root / file, Square(17), 3))


def test_flowers_have_names_for_a_prompt(layouts):
    layouts.flowers102()
    made = load_data("flowers102", root=layouts.root)
    assert len(made.class_names) == 102
    assert [made.class_names[k] for k in (0, 59, 101)] == ["pink primrose", "pink-yellow dahlia", "blackberry lily"]


def test_suns_partition_may_be_in_a_folder_of_its_own(layouts):
    layouts.sun397()
    folder = layouts.root / "SUN397"
    (folder / "Partitions").mkdir()
    for name in ("Training_01.txt", "Testing_01.txt"):
        (folder / name).rename(folder / "Partitions" / name)
    assert len(load_data("sun397", split="train", root=layouts.root)) == 2


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_missing_partition_of_sun_is_one_line_with_its_page(layouts, split):
    layouts.sun397()
    name = {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    (layouts.root / "SUN397" / name).unlink()
    with pytest.raises(UserError, match=rf"{name} in .*SUN/download/Partitions\.zip there$"):
        load_data("sun397", split=split, root=layouts.root)


def test_a_line_of_suns_partition_without_a_class_is_named(layouts):
    layouts.sun397()
    lines(layouts.root / "SUN397/Testing_01.txt", "/a/abbey/sun_d.jpg", "", "/z/zoo/sun_e.jpg")
    with pytest.raises(UserError, match=r"z/zoo/sun_e\.jpg of .*Testing_01\.txt is of no class"):
        load_data("sun397", root=layouts.root)


PAGES = {
    "food101": r"food-101.*data\.vision\.ee\.ethz\.ch",
    "sun397": r"SUN397.*vision\.princeton\.edu",
    "aircraft": r"fgvc-aircraft-2013b.*robots\.ox\.ac\.uk/~vgg/data/fgvc-aircraft",
    "dtd": r"dtd.*robots\.ox\.ac\.uk/~vgg/data/dtd",
    "pets": r"robots\.ox\.ac\.uk/~vgg/data/pets/ as .*oxford-iiit-pet",
    "flowers102": r"robots\.ox\.ac\.uk/~vgg/data/flowers/102/ as .*flowers-102",
    "caltech101": r"data\.caltech\.edu/records.* as .*101_ObjectCategories",
}


@pytest.mark.parametrize("name", PAGES)
def test_without_files_or_network_a_set_is_one_line_with_its_page(tmp_path, no_network, name):
    with pytest.raises(UserError, match=rf"^{name}\b.*{tmp_path}.*{PAGES[name]}.*ANTIPHASE_DATA$") as caught:
        load_data(name, root=tmp_path)
    assert "no network" in str(caught.value)
    assert "\n" not in str(caught.value)


LISTS = {
    "food101": ("food-101/meta/test.json", "{"),
    "sun397": ("SUN397/ClassName.txt", ""),
    "aircraft": ("fgvc-aircraft-2013b/data/images_variant_test.txt", "0000001\n"),
    "dtd": ("dtd/dtd/labels/test1.txt", "banded_21.jpg\n"),
    "pets": ("oxford-iiit-pet/annotations/test.txt", "Abyssinian_201 1\n"),
    "flowers102": ("flowers-102/setid.mat", "nothing"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_damaged_or_missing_list_is_one_line(layouts, name):
    getattr(layouts, name)()
    file, text = LISTS[name]
    (layouts.root / file).write_text(text)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"^{name} \(test\) is missing or incomplete in .*: unpack") as caught:
            load_data(name, root=layouts.root)
        assert "\n" not in str(caught.value)
        (layouts.root / file).unlink(missing_ok=True)


@pytest.mark.parametrize("name", FILES)
def test_an_image_that_the_list_names_and_is_not_there_is_named(layouts, name):
    getattr(layouts, name)()
    files, _ = FILES[name]["test"]
    whole = load_data(name, root=layouts.root)
    (whole.root / files[1]).unlink()
    line = rf"^{name} \(test\): 1 of the {len(files)} listed images .*, the first is {files[1]}: unpack"
    with pytest.raises(UserError, match=line):
        load_data(name, root=layouts.root)
    assert len(load_data(name, split="train", root=layouts.root)) == len(FILES[name]["train"][0])


def test_an_empty_list_is_one_line(layouts):
    layouts.aircraft()
    lines(layouts.root / "fgvc-aircraft-2013b/data/images_variant_test.txt")
    with pytest.raises(UserError, match=r"^aircraft \(test\): its list in .* is empty: unpack"):
        load_data("aircraft", root=layouts.root)


def test_an_unreadable_image_is_left_out_where_that_is_wished(layouts):
    layouts.pets()
    (layouts.root / "oxford-iiit-pet/images/Abyssinian_201.jpg").write_bytes(b"no image")
    kept = load_data("pets", root=layouts.root, skip_bad=True, progress=False)
    assert (kept.skipped, kept.ids.tolist()) == (("images/Abyssinian_201.jpg",), [1])


@pytest.mark.filterwarnings("error")
def test_other_counts_than_the_published_ones_are_warned_of_and_those_are_not(layouts, monkeypatch):
    layouts.pets()
    with pytest.warns(UserWarning, match="were published") as caught:
        load_data("pets", root=layouts.root, limit=1)
    (warning,) = caught
    assert str(warning.message) == (
        "pets (test): images 2, classes 2; 3,669 and 37 were published: results are not comparable, download it again"
    )
    assert warning.filename == __file__  # it points at the caller, not at the package
    monkeypatch.setitem(sources._PUBLISHED, "pets", {"classes": 2, "test": 2})
    load_data("pets", root=layouts.root, limit=1)
    monkeypatch.setitem(sources._PUBLISHED, "pets", {"classes": 3, "test": 2})
    with pytest.warns(UserWarning, match="images 2, classes 2; 2 and 3 were published"):
        load_data("pets", root=layouts.root)
