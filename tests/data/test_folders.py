import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphase.data import load_data
from antiphase.data.decoding import Square, decode
from antiphase.errors import UserError


@pytest.fixture
def unsplit(tmp_path, write_image):
    folder = tmp_path / "animals"
    write_image(folder / "dog" / "b.PNG", 1)
    write_image(folder / "dog" / "a.jpg", 2, mode="L")
    write_image(folder / "cat" / "deep" / "er" / "z.png", 3, mode="RGBA")
    write_image(folder / "cat" / "y.webp", 4)
    write_image(folder / "cat" / ".hidden.png", 5)
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / ".git").mkdir()
    return folder


def test_a_folder_has_a_class_for_each_sub_folder_in_sorted_order(unsplit):
    made = load_data(f"folder:{unsplit}", image_size=7)
    assert made.name == f"folder:{unsplit}"
    assert made.split == "test"
    assert made.class_names == ("cat", "dog")
    assert made.files == ("cat/deep/er/z.png", "cat/y.webp", "dog/a.jpg", "dog/b.PNG")
    assert made.labels.tolist() == [0, 0, 1, 1]
    assert made.ids.tolist() == [0, 1, 2, 3]
    for row, file in enumerate(made.files):
        assert np.array_equal(made.images([row])[0] * 255, decode(unsplit / file, Square(7), 3))


def test_folders_default_to_224_and_rgb_and_take_other_shapes(unsplit):
    assert load_data(f"folder:{unsplit}").images([0]).shape == (1, 3, 224, 224)
    assert load_data(f"folder:{unsplit}", image_size=5, channels=1).images([0]).shape == (1, 1, 5, 5)


def test_a_home_folder_may_be_abbreviated(unsplit, monkeypatch):
    monkeypatch.setenv("HOME", str(unsplit.parent))
    assert len(load_data("folder:~/animals")) == 4


def test_an_unsplit_folder_does_not_pose_as_training_data(unsplit):
    with pytest.raises(UserError, match=r"no train split in .*move the class folders into"):
        load_data(f"folder:{unsplit}", split="train")


def test_splits_share_one_numbering_of_the_classes(tmp_path, write_image):
    for k, file in enumerate(["train/a/1.png", "train/c/1.png", "test/b/1.png", "test/c/1.png"]):
        write_image(tmp_path / file, k)
    train, test = (load_data(f"folder:{tmp_path}", split=split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("a", "b", "c")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 2], [1, 2])
    assert train.files == ("a/1.png", "c/1.png")
    with pytest.raises(UserError, match="no split 'val': expected one of train, test"):
        load_data(f"folder:{tmp_path}", split="val")


def test_test_means_val_where_only_that_is_held_out(tmp_path, write_image):
    write_image(tmp_path / "train/a/1.png")
    write_image(tmp_path / "val/a/2.png")
    assert load_data(f"folder:{tmp_path}").split == "val"
    write_image(tmp_path / "test/a/3.png")
    assert load_data(f"folder:{tmp_path}").split == "test"


def test_a_class_called_train_is_no_split(tmp_path, write_image):
    write_image(tmp_path / "train/1.png")
    write_image(tmp_path / "bus/1.png")
    assert load_data(f"folder:{tmp_path}").class_names == ("bus", "train")


@pytest.mark.parametrize(
    ("folders", "split", "chosen"),
    [
        (("train", "valid", "test"), "val", "valid"),
        (("Training", "Testing"), "train", "Training"),
        (("Train", "Test"), "test", "Test"),
        (("train", "dev"), "test", "dev"),
        (("training", "VALIDATION"), "val", "VALIDATION"),
    ],
)
def test_splits_have_other_names(tmp_path, write_image, folders, split, chosen):
    for folder in folders:
        write_image(tmp_path / folder / "a" / "1.png")
        write_image(tmp_path / folder / "b" / "1.png")
    made = load_data(f"folder:{tmp_path}", split=split)
    assert (made.class_names, made.root.name) == (("a", "b"), chosen)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["val/a/1.png", "validation/a/1.png"], "val, validation name the same split twice"),
        (["train/1.png", "test/1.png"], "test, train have no sub-folder for each class"),
        (["seg_train/seg_train/a/1.png", "seg_test/seg_test/a/1.png"], "seg_train looks like a split"),
        (["training_set/a/1.png", "test_set/a/1.png"], "training_set looks like a split"),
        (["x/train/a/1.png", "x/test/a/1.png"], "all images are in sub-folders of .*x: give it"),
        (["x/y/a/1.png", "x/y/b/1.png", "x/y/c/1.png"], "all images are in sub-folders of .*x: give it"),
        (["images/1.png", "Masks/1.png"], "Masks, images are no classes"),
        (["valid/p/1.png", "invalid/q/1.png"], "valid and invalid have different sub-folders"),
        (["train/cat/1.png", "train/dog/1.png", "test/test1/1.png"], "train and test have different sub-folders"),
        (
            ["train/hot_dog/1.png", "train/a/1.png", "test/Hot-Dog/1.png", "test/a/1.png"],
            "train has a class 'hot_dog', not 'Hot-Dog'",
        ),
        (
            [f"{split}/a/1.png" for split in ("train", "test")] + ["train/caf\u00e9/1.png", "test/cafe\u0301/1.png"],
            r"train has a class 'caf\\xe9', not 'cafe\\u0301': rename one of them",
        ),
        (
            [f"{domain}/{label}/1.png" for domain in ("art", "photo") for label in ("cat", "dog")],
            "several class folders have a sub-folder cat, dog: .* such as .*art",
        ),
        (["photo/cat/1.png", "photo/dog/1.png", "sketch/dog/1.png"], "several class folders have a sub-folder dog: .*"),
    ],
)
def test_folders_that_may_not_be_classes_are_one_line(tmp_path, write_image, files, line):
    for file in files:
        write_image(tmp_path / file)
    with pytest.raises(UserError, match=line) as caught:
        load_data(f"folder:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_sub_folders_that_several_classes_have_are_refused(tmp_path, write_image):
    for label in ("cold", "covid", "well"):
        write_image(tmp_path / label / "images" / "1.png")
        write_image(tmp_path / label / "masks" / "1.png")
    with pytest.raises(UserError, match="have a sub-folder images, masks"):
        load_data(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    "litter",
    [
        "cat/.ipynb_checkpoints/y-checkpoint.png",
        "cat/.thumbnails/y.png",
        "cat/@eaDir/y.png/SYNOPHOTO_THUMB_M.png",
        "__MACOSX/cat/y.png",
        "cat/._y.png",
        "$RECYCLE.BIN/y.png",
    ],
)
def test_what_operating_systems_leave_is_no_image(unsplit, write_image, litter):
    before = load_data(f"folder:{unsplit}").fingerprint()
    write_image(unsplit / litter)
    assert load_data(f"folder:{unsplit}").fingerprint() == before


def test_linked_folders_are_followed_once(unsplit, write_image, tmp_path):
    write_image(tmp_path / "elsewhere" / "1.png")
    (unsplit / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (unsplit / "cat" / "again").symlink_to("deep")
    (unsplit / "cat" / "deep" / "self").symlink_to(".")
    (unsplit / "dog" / "up").symlink_to("..")
    made = load_data(f"folder:{unsplit}")
    assert made.files == ("cat/deep/er/z.png", "cat/more/1.png", "cat/y.webp", "dog/a.jpg", "dog/b.PNG")
    (unsplit / "dog" / "other").symlink_to("../cat")
    with pytest.raises(UserError, match="other is a folder of the class cat, too: remove the link"):
        load_data(f"folder:{unsplit}")


def test_images_next_to_class_folders_are_counted(tmp_path, write_image):
    for file in ("a/1.png", "b/1.png", "preview.png", ".hidden.png"):
        write_image(tmp_path / file, size=(16, 16))
    with pytest.warns(UserWarning, match=r"left out images that are in no class folder: 1 in .*, such as preview\.png"):
        assert len(load_data(f"folder:{tmp_path}")) == 2


def test_rare_formats_are_read_or_counted(tmp_path, write_image):
    write_image(tmp_path / "a" / "1.png", size=(16, 16))
    with Image.open(tmp_path / "a" / "1.png") as image:
        image.save(tmp_path / "a" / "2.jfif", "JPEG")
        image.save(tmp_path / "a" / "3.tga")
    for name in ("4.heic", "5.HEIC", "6.dcm"):
        (tmp_path / "a" / name).write_bytes(b"")
    with pytest.warns(UserWarning, match=r"left out files that Pillow cannot read, .*'\.heic': 2"):
        made = load_data(f"folder:{tmp_path}", image_size=8)
    assert made.files == ("a/1.png", "a/2.jfif", "a/3.tga")
    assert made.images([0, 1, 2]).shape == (3, 3, 8, 8)


def test_a_pipe_among_images_is_an_unreadable_image(unsplit):
    os.mkfifo(unsplit / "cat" / "pipe.png")
    made = load_data(f"folder:{unsplit}", image_size=5, skip_bad=True, progress=False)
    assert made.skipped == ("cat/pipe.png",)


def test_missing_and_empty_folders_are_one_line_each(tmp_path, write_image):
    with pytest.raises(UserError, match=r"folder:.*absent: .*absent is not a folder"):
        load_data(f"folder:{tmp_path / 'absent'}")
    with pytest.raises(UserError, match=r"no images in .* in a sub-folder"):
        load_data(f"folder:{tmp_path}")
    write_image(tmp_path / "lone.png")
    with pytest.raises(UserError, match="is not a folder"):
        load_data(f"folder:{tmp_path / 'lone.png'}")
    with pytest.raises(UserError, match=r"no images in .* in a sub-folder"):
        load_data(f"folder:{tmp_path}")
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match=r"class folder .*cat has no images: add some or remove it"):
        load_data(f"folder:{tmp_path}")


def test_a_split_without_class_folders_is_refused(tmp_path, write_image):
    for file in ("train/x/images/0.png", "train/y/images/0.png", "val/images/0.png"):
        write_image(tmp_path / file)
    with pytest.raises(UserError, match=r"val has no sub-folder for each class, only images: move its images"):
        load_data(f"folder:{tmp_path}")


def test_an_unreadable_image_is_named_or_left_out_and_counted(unsplit):
    (unsplit / "dog" / "a.jpg").write_bytes(b"not a jpeg")
    with pytest.raises(UserError, match=r"dog/a\.jpg .*use --skip-bad to skip such files"):
        list(load_data(f"folder:{unsplit}").batches(2))
    kept = load_data(f"folder:{unsplit}", skip_bad=True, progress=False)
    assert kept.skipped == ("dog/a.jpg",)
    assert kept.ids.tolist() == [0, 1, 3]
    assert len(list(kept.batches(2))) == 2
    assert load_data(f"folder:{unsplit}", skip_bad=True, limit=2, progress=False).skipped == ()


def test_names_that_are_not_utf8_can_be_printed_and_stored(tmp_path, write_image):
    folder = os.fsdecode(bytes(tmp_path) + b"/r\xe9")
    for name in (b"caf\xe9/a.png", b"tea/b.png"):
        write_image(Path(folder) / os.fsdecode(name))
    (Path(folder) / "tea" / os.fsdecode(b"\xff.png")).write_bytes(b"no image")
    made = load_data(f"folder:{folder}", image_size=5, skip_bad=True, progress=False)
    assert made.class_names == ("caf\\xe9", "tea")
    assert made.skipped == ("tea/\\xff.png",)
    assert made.name.endswith("r\\xe9")
    assert made.images([0, 1]).shape == (2, 3, 5, 5)
    with pytest.raises(UserError, match=r"tea/\\xff\.png") as caught:
        load_data(f"folder:{folder}", image_size=5).images([2])
    for line in (*made.class_names, *made.skipped, made.name, str(caught.value)):
        line.encode()  # fails for what a terminal or a file in UTF-8 cannot hold


WNIDS = ("n01440764", "n02102040", "n03000684")


@pytest.mark.parametrize("below", ["", "imagenet"])
def test_imagenet_reads_torchvisions_layout_with_classes_in_order_of_wnid(tmp_path, write_image, below):
    for k, wnid in enumerate(reversed(WNIDS)):
        write_image(tmp_path / below / "train" / wnid / f"{wnid}_{k}.JPEG", k, size=(29, 23))
        write_image(tmp_path / below / "val" / wnid / f"ILSVRC2012_val_0000000{k}.JPEG", k, size=(29, 23))
    val = load_data("imagenet", root=tmp_path, image_size=17)
    assert (val.name, val.split) == ("imagenet", "val")
    assert val.class_names == ("tench", "English Springer Spaniel", "chainsaw")  # what CLIP is prompted with
    assert [file.split("/")[0] for file in val.files] == list(WNIDS)
    assert val.images([2]).shape == (1, 3, 17, 17)
    assert load_data("imagenet", split="train", root=tmp_path).labels.tolist() == [0, 1, 2]
    assert load_data("imagenet", root=tmp_path).image_shape == (3, 224, 224)


def test_absent_imagenet_and_a_flat_val_folder_are_one_line_with_the_page_and_the_layout(tmp_path, write_image):
    for _ in range(2):
        with pytest.raises(UserError, match=r"imagenet/val: .*image-net\.org/download.*val/<wnid>/\*\.JPEG") as caught:
            load_data("imagenet", root=tmp_path)
        assert "\n" not in str(caught.value)
        write_image(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG")


@pytest.fixture
def tiny(tmp_path, write_image):
    folder = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(WNIDS):
        for number in range(2):
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", k, size=(64, 64))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    (folder / "wnids.txt").write_text("\n".join((WNIDS[2], WNIDS[0], WNIDS[1])) + "\n")
    (folder / "words.txt").write_text(
        f"n00001740\tentity\n{WNIDS[0]}\ttench, Tinca tinca\n{WNIDS[1]}\tEnglish springer, springer spaniel\n"
    )
    notes = [(0, WNIDS[2]), (1, WNIDS[0]), (2, WNIDS[2]), (10, WNIDS[1])]
    for number, _ in notes:
        mode = "L" if number == 1 else "RGB"
        write_image(folder / "val" / "images" / f"val_{number}.JPEG", number, size=(64, 64), mode=mode)
    lines = [f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n" for number, wnid in notes]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    write_image(folder / "test" / "images" / "test_0.JPEG", size=(64, 64))
    return folder


def test_tiny_imagenet_reads_the_annotations_of_val(tiny):
    val = load_data("tiny-imagenet", root=tiny.parent)
    assert (val.name, val.split, val.image_shape) == ("tiny-imagenet", "val", (3, 64, 64))
    assert val.class_names == ("tench", "English springer", WNIDS[2])
    assert val.files == tuple(f"images/val_{number}.JPEG" for number in (0, 1, 2, 10))
    assert val.labels.tolist() == [2, 0, 2, 1]
    with Image.open(tiny / "val/images/val_10.JPEG") as image:
        assert np.array_equal(val.images([3])[0].permute(1, 2, 0) * 255, np.asarray(image))
    assert val.images([1]).shape == (1, 3, 64, 64)


def test_tiny_imagenet_reads_the_class_folders_of_train(tiny):
    train = load_data("tiny-imagenet", split="train", root=tiny)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.files[3] == f"{WNIDS[1]}/images/{WNIDS[1]}_1.JPEG"
    assert train.class_names == load_data("tiny-imagenet", root=tiny).class_names


def test_tiny_imagenet_that_is_absent_or_damaged_is_one_line(tiny, tmp_path):
    with pytest.raises(UserError, match=r"wnids\.txt'\): unzip http://.*tiny-imagenet-200\.zip in .*none"):
        load_data("tiny-imagenet", root=tmp_path / "none")
    notes = tiny / "val" / "val_annotations.txt"
    for bad in ("val_2.JPEG\tn99999999\t0\t0\t1\t1\n", "val_2.JPEG\n"):
        notes.write_text(f"val_0.JPEG\t{WNIDS[0]}\t0\t0\t1\t1\n{bad}")
        with pytest.raises(UserError, match=r"tiny-imagenet: .* is incomplete"):
            load_data("tiny-imagenet", root=tiny)
    (tiny / "words.txt").unlink()
    with pytest.raises(UserError, match=r"words\.txt"):
        load_data("tiny-imagenet", root=tiny)


def test_files_of_a_class_whose_names_are_no_pictures_are_counted(tmp_path, write_image):
    write_image(tmp_path / "a" / "1.png")
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for name, content in {
        "2": whole,
        "3.png.1": whole,
        "4.jpg_large": whole,
        ".5": whole,
        "tmp": b"x",
        "6.txt": b"",
        "7.webp_original": b"RIFF\x10\0\0\0WEBPVP8 ",
        "8.bmp_": b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0",
    }.items():
        (tmp_path / "a" / name).write_bytes(content)
    with pytest.warns(UserWarning, match="left out files") as record:
        assert len(load_data(f"folder:{tmp_path}")) == 1
    (warning,) = record
    counted = ("without a suffix", ".1", ".jpg_large", ".webp_original", ".bmp_")
    assert all(f"'{kind}': 1" in str(warning.message) for kind in counted)
    assert "txt" not in str(warning.message)


def test_class_folders_next_to_a_split_are_left_out_with_a_warning(tmp_path, write_image):
    for k, file in enumerate(["test/a/1.png", "test/b/1.png", "a/2.png", "b/2.png"]):
        write_image(tmp_path / file, k)
    with pytest.warns(UserWarning, match="left out a, b, which name no split"):
        assert len(load_data(f"folder:{tmp_path}")) == 2
