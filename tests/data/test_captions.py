import json

import pytest
import torch

from antiphase.data.captions import coco_captions, coco_single_label, csv_pairs
from antiphase.data.decoding import decode_whole
from antiphase.errors import UserError
from antiphase.streams import generator

IMAGES = (42, 7, 391895, 9, 574)  # COCO's numbers are in no order
COUNTS = {42: 5, 7: 6, 9: 5, 574: 7}  # captions of each; one image has none


def file_name(number, split="val", year=2014):
    return f"COCO_{split}2014_{number:012d}.jpg" if year == 2014 else f"{number:012d}.jpg"


def write_coco(root, write_image, year=2014, split="val", counts=COUNTS):
    """Write captions, and images that differ, in COCO's layout."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    images = [{"id": number, "file_name": file_name(number, split, year)} for number in IMAGES]
    notes = [
        {"id": 1000 - 10 * turn - number % 10, "image_id": number, "caption": f" a {number} {turn}.\n"}
        for number, count in counts.items()
        for turn in range(count)
    ]
    told = {"info": {}, "images": images, "annotations": notes}
    (root / "annotations" / f"captions_{split}{year}.json").write_text(json.dumps(told))
    for image in images:
        write_image(root / f"{split}{year}" / image["file_name"], image["id"] % 100)
    return images


@pytest.mark.parametrize("year", [2014, 2017])
@pytest.mark.parametrize("below", ["", "coco"])
def test_coco_keeps_all_captions_in_order_and_names_images_without(tmp_path, write_image, year, below):
    write_coco(tmp_path / below, write_image, year)
    pairs = coco_captions(tmp_path, "val")
    assert (pairs.name, pairs.split, pairs.root) == ("coco", "val", tmp_path / below)
    assert pairs.files == tuple(f"val{year}/{file_name(number, 'val', year)}" for number in (7, 9, 42, 574))
    assert pairs.ids.tolist() == [0, 1, 2, 3]
    assert [len(captions) for captions in pairs.captions] == [6, 5, 5, 7]
    assert pairs.captions[1] == tuple(f"a 9 {turn}." for turn in (4, 3, 2, 1, 0))
    assert pairs.skipped == (f"val{year}/{file_name(391895, 'val', year)} has no caption",)
    assert pairs.labels is None
    for row, file in enumerate(pairs.files):
        assert torch.equal(pairs.pixels(row), decode_whole(tmp_path / below / file))
    assert coco_captions(tmp_path, "test").fingerprint() == pairs.fingerprint()


def test_ids_of_coco_keep_the_place_of_what_is_left_out(tmp_path, write_image):
    write_coco(tmp_path, write_image, counts={7: 5, 574: 5})
    assert coco_captions(tmp_path, "val").ids.tolist() == [0, 3]


def test_of_two_years_of_coco_the_first_is_taken(tmp_path, write_image):
    write_coco(tmp_path, write_image, 2017)
    assert coco_captions(tmp_path, "val").files[0].startswith("val2017/")
    write_coco(tmp_path, write_image, 2014)
    assert coco_captions(tmp_path, "val").files[0].startswith("val2014/")


def write_instances(root, images, notes, categories):
    told = {"images": images, "annotations": notes, "categories": categories}
    (root / "annotations" / "instances_val2014.json").write_text(json.dumps(told))


def slow_label(image, notes, categories):
    """The rule as it is said, by looking at everything over and over."""
    objects = [note for note in notes if note["image_id"] == image and note["iscrowd"] == 0]
    if not objects:
        return None
    widest = max(note["area"] for note in objects)
    chosen = min(note["id"] for note in objects if note["area"] == widest)
    (category,) = [note["category_id"] for note in objects if note["id"] == chosen]
    return sorted(entry["id"] for entry in categories).index(category)


@pytest.mark.parametrize("seed", range(5))
def test_coco_has_the_label_of_the_largest_object(tmp_path, write_image, seed):
    images = write_coco(tmp_path, write_image)
    random = generator(seed, "instances")
    categories = [{"id": number, "name": f"thing {number}"} for number in (90, 1, 13, 11, 27)]

    def draw(high):
        return int(torch.randint(high, (1,), generator=random))

    numbers = (torch.randperm(997, generator=random)[:17] + 1).tolist()
    notes = [
        {
            "id": number,
            "image_id": IMAGES[draw(5)],
            "category_id": categories[draw(5)]["id"],
            "area": (3.0, 5.5, 5.5, 7)[draw(4)],  # many ties
            "iscrowd": int(draw(3) == 0),
        }
        for number in numbers
    ]
    write_instances(tmp_path, images, notes, categories)
    pairs = coco_single_label(tmp_path, "val")
    assert pairs.class_names == ("thing 1", "thing 11", "thing 13", "thing 27", "thing 90")
    labels = {number: slow_label(number, notes, categories) for number in sorted(IMAGES)}
    kept = [number for number, label in labels.items() if label is not None]
    assert pairs.labels.tolist() == [labels[number] for number in kept]
    assert pairs.files == tuple(f"val2014/{file_name(number)}" for number in kept)
    assert pairs.ids.tolist() == [sorted(IMAGES).index(number) for number in kept]
    assert pairs.skipped == tuple(
        f"val2014/{file_name(number)} has no object but crowds" for number, label in labels.items() if label is None
    )


def test_coco_with_labels_has_the_captions_if_there_are_any_else_the_name_of_the_class(tmp_path, write_image):
    images = write_coco(tmp_path, write_image)
    notes = [
        {"id": 5, "image_id": 7, "category_id": 3, "area": 2, "iscrowd": 0},
        {"id": 9, "image_id": 391895, "category_id": 2, "area": 2, "iscrowd": 0},
        {"id": 3, "image_id": 42, "category_id": 2, "area": 2, "iscrowd": 1},
    ]
    write_instances(tmp_path, images, notes, [{"id": 3, "name": "dog"}, {"id": 2, "name": "cat"}])
    pairs = coco_single_label(tmp_path, "val")
    assert (pairs.name, pairs.class_names, pairs.labels.tolist()) == ("coco-single-label", ("cat", "dog"), [1, 0])
    assert (len(pairs.captions[0]), pairs.captions[1]) == (6, ("cat",))
    assert len(pairs.skipped) == 3
    (tmp_path / "annotations" / "captions_val2014.json").unlink()
    assert coco_single_label(tmp_path, "val").captions == (("dog",), ("cat",))


@pytest.mark.parametrize("function", [coco_captions, coco_single_label])
def test_coco_that_is_absent_or_damaged_is_one_line(tmp_path, write_image, function):
    with pytest.raises(UserError, match=r"COCO's annotations/.*_train2014\.json not found in .*/coco: unzip"):
        function(tmp_path, "train")
    with pytest.raises(UserError, match="has no split 'dev': expected one of train, val"):
        function(tmp_path, "dev")
    images = write_coco(tmp_path, write_image)
    note = {"id": 5, "image_id": 7, "category_id": 3, "area": 2, "iscrowd": 0}
    write_instances(tmp_path, images, [note], [{"id": 3, "name": "dog"}])
    function(tmp_path, "val")
    (tmp_path / "val2014").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"val2014/{file_name(7)} and the next images not found in {tmp_path}: m"):
        function(tmp_path, "val")
    path = tmp_path / "annotations" / f"{'captions' if function is coco_captions else 'instances'}_val2014.json"
    for text, line in (("{", "cannot be read"), ("[]", "expected the published layout"), ("{}", "KeyError")):
        path.write_text(text)
        with pytest.raises(UserError, match=line) as caught:
            function(tmp_path, "val")
        assert "\n" not in str(caught.value)


@pytest.fixture
def table(tmp_path, write_image):
    """Write a table's text and the images a.png, deep/b.png and c.png beside it."""
    for seed, file in enumerate(("a.png", "deep/b.png", "c.png")):
        write_image(tmp_path / file, seed)

    def write(text, name="pairs.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_a_space_before_a_quoted_cell_is_no_part_of_it(table):
    pairs = csv_pairs(table('image, caption\na.png, "a cat, black"\nc.png, "dog"\n'), "train")
    assert pairs.captions == (("a cat, black",), ("dog",))


def test_rows_of_one_image_are_captions_of_one_pair(table, tmp_path):
    path = table('image,caption\na.png,one\ndeep/b.png,"two, or ""more"""\na.png, three \n\nc.png,four\na.png,five\n')
    pairs = csv_pairs(path, "train")
    assert (pairs.name, pairs.split, pairs.root) == (f"csv:{path}", "train", tmp_path)
    assert pairs.files == ("a.png", "deep/b.png", "c.png")
    assert pairs.captions == (("one", "three", "five"), ('two, or "more"',), ("four",))
    assert (pairs.ids.tolist(), pairs.labels, pairs.skipped) == ([0, 1, 2], None, ())
    assert torch.equal(pairs.pixels(1), decode_whole(tmp_path / "deep/b.png"))
    assert csv_pairs(path, "test").split == "test"


@pytest.mark.parametrize("split", ["val", "test"])
def test_an_image_that_is_not_there_is_named_unless_it_is_to_train_on(table, split):
    path = table("image,caption\n" + "".join(f"{file},x\n" for file in ("a.png", "gone.png", "gone too.png")))
    assert csv_pairs(path, "train").files == ("a.png", "gone.png", "gone too.png")
    message = rf"\({split}\): 2 of the 3 listed images .*, the first is gone\.png: move them"
    with pytest.raises(UserError, match=message):
        csv_pairs(path, split)


@pytest.mark.parametrize("image", ["image", "file", "filepath", "path", "IMAGE_path"])
@pytest.mark.parametrize("caption", ["caption", "Title", "text"])
def test_columns_have_several_names_and_any_order_and_tabs_will_do(table, image, caption):
    text = f"\ufeffnumber\t{caption} \t{image}\n7\tone, two\ta.png\n8\tit's\tc.png\n"
    pairs = csv_pairs(table(text, "pairs.tsv"), "val")
    assert pairs.captions == (("one, two",), ("it's",))
    assert pairs.files == ("a.png", "c.png")
    with pytest.raises(UserError, match="has no split 'dev': expected one of train, val"):
        csv_pairs(table("image,caption\na.png,x\n"), "dev")


def test_rows_without_an_image_or_a_caption_are_named_and_leave_their_place(table):
    pairs = csv_pairs(table("image,caption\na.png,\n,two\ndeep/b.png,three\nc.png, \nc.png,four\n"), "train")
    assert (pairs.files, pairs.ids.tolist()) == (("deep/b.png", "c.png"), [1, 2])
    assert pairs.skipped == ("line 2 has no caption", "line 3 has no image", "line 5 has no caption")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "columns , 0 rows: expected a header with one of image, "),
        ("image,caption\n", "columns image, caption, 0 rows: expected"),
        ("picture,caption\na.png,x\n", "columns picture, caption, 1 rows: expected a header with one of image"),
        ("image,words\na.png,x\n", "columns image, words, .* one of caption, title, text"),
        ("image,caption\na.png,x, and y\n", r"line 2 of .*: expected 2 cells, like the header: put cells"),
        (
            "image,caption,split\na.png,x,val\n",
            "has a column split; expected one split, put each into a table of its own",
        ),
        ("image,caption\na.png,x\nc.png\n", "line 3 of .*: expected 2 cells"),
        ("image,caption\nb.png,x\n", "b.png and the next images not found in"),
        ("image,caption\nhttps://host/b.png,x\n", "images are URLs, such as https://.*: download them with img2d"),
        ("image,caption\na.png, \n", r"\(train\): no pairs"),
        ("image,caption\na.png,\0" + "x" * 200_000 + "\n", "line 2 of .* is no row of a table .*field limit"),
    ],
)
def test_a_table_that_cannot_be_served_is_one_line(table, text, line):
    with pytest.raises(UserError, match=line) as caught:
        csv_pairs(table(text), "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("caption", ['"no parking" on a sign', '"a man walks', 'he said "', '""', "'", '5" wide'])
def test_quotes_in_a_table_with_tabs_are_characters(table, caption):
    pairs = csv_pairs(table(f"image\tcaption\na.png\t{caption}\nc.png\tfour\n", "pairs.tsv"), "train")
    assert pairs.captions == ((caption,), ("four",))


@pytest.mark.parametrize(
    "rows",
    [
        'c.png,one\na.png,"a man walks\ndeep/b.png,three\n',
        'c.png,one\na.png,"a man walks\ndeep/b.png,he said "\n',
        'c.png,one\na.png,"no parking" on a sign\n',
        'c.png,one\na.png,"a man\ndeep/b.png,three\nc.png,"four\n',
        'c.png,one\na.png,"' + "x" * 200_000 + "\n",
    ],
)
def test_a_quote_that_would_swallow_rows_is_named_with_its_line(table, rows):
    with pytest.raises(UserError, match=r"line 3 of .*pairs\.csv is no row of a table"):
        csv_pairs(table(f"image,caption\n{rows}"), "train")


def test_a_quote_amid_a_cell_is_a_character(table):
    pairs = csv_pairs(table('image,caption\na.png,"one, two"\nc.png,5" wide\n'), "train")
    assert pairs.captions == (("one, two",), ('5" wide',))


def test_a_table_that_is_absent_or_no_text_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"absent\.csv: cannot be read \(No such file or directory\)"):
        csv_pairs(tmp_path / "absent.csv", "train")
    (tmp_path / "bad.csv").write_bytes(b"image,caption\na.png,\xff\n")
    with pytest.raises(UserError, match=r"cannot be read .*utf-8.*; give a table in UTF-8"):
        csv_pairs(tmp_path / "bad.csv", "train")


@pytest.mark.parametrize("column", ["split", "set", "subset"])
def test_a_table_of_several_splits_or_with_a_column_twice_is_refused(table, column):
    with pytest.raises(UserError, match=f"has a column {column}; expected one split"):
        csv_pairs(table(f"image,caption,{column}\na.png,a cat,train\nc.png,a dog,test\n"), "test")
    with pytest.raises(UserError, match="has the column caption twice"):
        csv_pairs(table("image,caption,caption\na.png,a cat,a pet\n"), "test")
