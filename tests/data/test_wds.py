"""CLIP_benchmark's tar files, written as its own converter writes them: with webdataset's ShardWriter."""

import io
import tarfile

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from antiphase.data import FileImages, load_data, load_pairs
from antiphase.data.archives import read_index
from antiphase.data.decoding import Square, decode, decode_whole
from antiphase.data.hub import has_captions
from antiphase.errors import UserError


def picture(seed, form="webp"):
    """Return the bytes of a noise image of 13×11 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, size=(11, 13, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=form, **({"lossless": True} if form == "webp" else {}))
    return buffer.getvalue()


@pytest.fixture
def write(tmp_path):
    """Write a split of samples, three to a shard, and the texts of the folder, and return it."""

    def written(samples, split="test", **texts):
        folder = tmp_path / "wds_set"
        (folder / split).mkdir(parents=True, exist_ok=True)
        sink = webdataset.ShardWriter(str(folder / split / "%d.tar"), maxcount=3, verbose=0)
        for number, sample in enumerate(samples):
            sink.write({"__key__": f"s{number:07d}"} | sample)
        sink.close()
        shards = len(list((folder / split).glob("*.tar")))
        (folder / split / "nshards.txt").write_text(f"{shards}\n")
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
        return folder

    return written


LABELS = (2, 0, 1, 1, 0, 2, 1)
CLASSES = "cat\ndog\nsnow leopard\n\n"


@pytest.fixture
def classified(write):
    samples = [{"webp": picture(seed), "cls": label} for seed, label in enumerate(LABELS)]
    write([{"png": picture(101, "png"), "cls": 1}], split="train")
    return write(samples, classnames=CLASSES)


def test_labels_and_images_are_read_from_the_tar_files_in_order(classified, tmp_path):
    made = load_data(f"wds:{classified}", image_size=7)
    assert isinstance(made, FileImages)
    assert (made.name, made.split, made.image_shape) == (f"wds:{classified}", "test", (3, 7, 7))
    assert made.class_names == ("cat", "dog", "snow leopard")
    assert made.labels.tolist() == list(LABELS)
    assert made.ids.tolist() == list(range(7))
    assert [file.partition("/")[0] for file in made.files] == ["0.tar"] * 3 + ["1.tar"] * 3 + ["2.tar"]
    for row in range(7):
        (tmp_path / "one.webp").write_bytes(picture(row))
        assert np.array_equal(made.images([row])[0] * 255, decode(tmp_path / "one.webp", Square(7), 3))
    assert made.prompts is None
    assert load_data(f"wds:{classified}", split="train").files == ("0.tar/s0000000.png",)
    assert load_data(f"wds:{classified}").image_shape == (3, 224, 224)
    few = load_data(f"wds:{classified}", limit=4, seed=1)
    assert torch.equal(few.labels, made.labels[few.ids])


def test_keys_may_have_dots(write):
    samples = [
        {"__key__": "a.v1.5", "png": picture(0, "png"), "cls": 1},
        {"__key__": "a.v1.6", "png": picture(1, "png"), "cls": 0, "json": "{}"},
    ]
    assert load_data(f"wds:{write(samples)}").labels.tolist() == [1, 0]


def test_the_templates_of_the_folder_are_prompts(classified):
    (classified / "zeroshot_classification_templates.txt").write_text("a photo of a {c}.\n\nart of the {c}\n")
    made = load_data(f"wds:{classified}")
    assert made.prompts == (
        ("a photo of a cat.", "art of the cat"),
        ("a photo of a dog.", "art of the dog"),
        ("a photo of a snow leopard.", "art of the snow leopard"),
    )
    (classified / "zeroshot_classification_templates.txt").write_text("a photo of a {}.\n")
    with pytest.raises(UserError, match=r"template 'a photo of a \{\}\.' of .* has no \{c\}"):
        load_data(f"wds:{classified}")


def test_classes_without_names_are_numbers(classified):
    (classified / "classnames.txt").unlink()
    assert load_data(f"wds:{classified}").class_names == ("0", "1", "2")


def test_a_fingerprint_sees_the_images_in_the_tar_files(classified, write):
    first = load_data(f"wds:{classified}").fingerprint()
    assert load_data(f"wds:{classified}").fingerprint() == first
    moved = classified.rename(classified.with_name("moved"))
    assert load_data(f"wds:{moved}").fingerprint() == first
    write([{"webp": picture(0), "cls": label} for label in LABELS[:-1]] + [{"webp": picture(7), "cls": 1}])
    (moved.with_name("wds_set") / "classnames.txt").write_text(CLASSES)
    assert load_data(f"wds:{moved.with_name('wds_set')}").fingerprint() != first


def test_an_image_that_cannot_be_read_is_named_or_left_out(write):
    folder = write([{"jpg": picture(1, "jpeg"), "cls": 0}, {"jpg": b"no image", "cls": 0}])
    with pytest.raises(UserError, match=r"cannot read image .*test/0\.tar/s0000001\.jpg .*--skip-bad"):
        load_data(f"wds:{folder}").images([0, 1])
    kept = load_data(f"wds:{folder}", skip_bad=True, progress=False)
    assert (kept.ids.tolist(), kept.skipped) == ([0], ("0.tar/s0000001.jpg",))


def test_pairs_have_a_caption_in_each_line(write):
    texts = ("one\ntwo, \n\nthree\n", "four", " \n", "five\nsix")
    samples = [{"jpg": picture(seed, "jpeg"), "txt": text} for seed, text in enumerate(texts)]
    folder = write(samples, dataset_type="retrieval\n")
    pairs = load_pairs(f"wds:{folder}", split="test")
    assert (pairs.name, pairs.split) == (f"wds:{folder}", "test")
    assert pairs.captions == (("one", "two,", "three"), ("four",), ("five", "six"))
    assert pairs.ids.tolist() == [0, 1, 3]
    assert pairs.skipped == ("0.tar/s0000002.jpg has no caption",)
    assert pairs.labels is None
    for row, seed in enumerate((0, 1, 3)):
        assert torch.equal(pairs.pixels(row), decode_whole(picture(seed, "jpeg")))
    (batch,) = pairs.batches(3, seed=0, epoch=0)
    assert batch.bad == ()
    assert pairs.fingerprint() != load_pairs(f"wds:{folder}", split="test", limit=2).fingerprint()
    with pytest.raises(UserError, match="has no split 'train': expected one of test"):
        load_pairs(f"wds:{folder}")


def test_a_set_of_the_other_kind_is_one_line(write, classified):
    with pytest.raises(UserError, match=r"has labels, not captions \(see dataset_type\.txt\)"):
        load_pairs(f"wds:{classified}", split="test")
    assert not has_captions(classified)
    folder = write([{"jpg": picture(1, "jpeg"), "txt": "x"}], dataset_type="retrieval")
    assert has_captions(folder)
    with pytest.raises(UserError, match=r"has captions, not labels \(see dataset_type"):
        load_data(f"wds:{folder}")


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ({"webp": picture(1)}, r"s0000000 in .*0\.tar has no \.cls: download"),
        ({"cls": 1}, r"s0000000 in .*0\.tar has no image \(\.jpg, \.png, \.webp, \.jpeg\): download"),
        ({"webp": picture(1), "npy": b"\x93NUMPY"}, r"has no \.cls"),
        ({"webp": picture(1), "cls": b"cat"}, r"0\.tar/s0000000\.webp has the label 'cat'; expected a class number"),
        ({"webp": picture(1), "cls": b"-1"}, r"label '-1'; expected"),
        ({"webp": picture(1), "cls": 3}, r"s0000000\.webp has the label '3'; expected a class number from 0 to 2"),
        ({"webp": picture(1), "cls": b"9" * 5000}, r"label '9+ … 9+'; expected a class number from 0"),
    ],
)
def test_a_sample_that_is_no_good_is_named(write, sample, line):
    folder = write([sample], classnames=CLASSES)
    with pytest.raises(UserError, match=line) as caught:
        load_data(f"wds:{folder}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", [10**9, 2**63, 2**64])
def test_a_huge_label_without_names_is_refused(write, label):
    folder = write([{"webp": picture(1), "cls": label}])
    with pytest.raises(UserError, match=f"label '{label}'; expected a class number from 0 to 999999"):
        load_data(f"wds:{folder}")


def test_a_set_that_is_not_whole_is_one_line(classified, tmp_path):
    with pytest.raises(UserError, match=r"no nshards\.txt in .*huggingface\.co/clip-benchmark .*--local-dir") as caught:
        load_data(f"wds:{tmp_path / 'absent'}")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"no nshards\.txt in"):
        load_pairs(f"wds:{tmp_path / 'absent'}")
    (classified / "test" / "2.tar").unlink()
    with pytest.raises(UserError, match=r"test/2\.tar is no complete, uncompressed tar file \(.*No such file"):
        load_data(f"wds:{classified}")
    for text in ("three", "0", ""):
        (classified / "test" / "nshards.txt").write_text(text)
        with pytest.raises(UserError, match=r"nshards\.txt: .*expected a number of shards"):
            load_data(f"wds:{classified}")


def test_a_blank_line_among_class_names_is_refused(classified):
    (classified / "classnames.txt").write_text("cat\n\ndog\n")
    with pytest.raises(UserError, match=r"classnames\.txt: has a blank line, so that lines cannot be counted"):
        load_data(f"wds:{classified}")


@pytest.mark.parametrize("cut", ["compressed", "cut in an image", "cut between", "damaged header", "empty"])
def test_a_damaged_tar_file_is_one_line(classified, cut):
    tar = classified / "test" / "1.tar"
    whole = tar.read_bytes()
    start = read_index(tar)["s0000004.webp"].offset
    spoilt = {
        "compressed": b"\x1f\x8b" + whole,
        "cut in an image": whole[: start + 7],
        "cut between": whole[: start - 512],
        "damaged header": whole[: start - 512] + b"x" * 512 + whole[start:],
        "empty": b"",
    }[cut]
    tar.write_bytes(spoilt)
    with pytest.raises(UserError, match=r"1\.tar is no complete, uncompressed tar file \(.*\): get it again") as caught:
        load_data(f"wds:{classified}")
    assert "\n" not in str(caught.value)


def test_a_sample_that_is_in_a_tar_file_twice_is_refused(classified):
    tar = classified / "test" / "1.tar"
    with tarfile.open(tar, "a") as archive:
        entry = tarfile.TarInfo("s0000004.webp")
        entry.size = len(picture(9))
        archive.addfile(entry, io.BytesIO(picture(9)))
    with pytest.raises(UserError, match=r"1\.tar .*\(it has s0000004\.webp twice\): get it again"):
        load_data(f"wds:{classified}")


def test_an_index_says_where_bytes_are_and_follows_a_file_that_changes(tmp_path):
    tar = tmp_path / "0.tar"
    for text in (b"first", b"second one"):
        with tarfile.open(tar, "w") as archive:
            entry = tarfile.TarInfo("./a/b.txt")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            folder = tarfile.TarInfo("a.d")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        ((name, member),) = read_index(tar).items()
        assert name == "a/b.txt"
        assert tar.read_bytes()[member.offset : member.offset + member.size] == text


def test_a_folder_whose_name_ends_like_a_tar_file_is_a_folder(tmp_path, write_image):
    write_image(tmp_path / "set.tar" / "cat" / "1.png")
    assert load_data(f"folder:{tmp_path / 'set.tar'}").images([0]).shape == (1, 3, 224, 224)


def test_a_name_of_the_hub_is_fetched_where_there_is_no_such_folder(classified, tmp_path, monkeypatch):
    calls = []

    def fetched(name, repo_type):
        calls.append((name, repo_type))
        return str(classified)

    monkeypatch.setattr("antiphase.data.hub.snapshot_download", fetched)
    monkeypatch.chdir(tmp_path)
    made = load_data("wds:clip-benchmark/wds_things", image_size=7)
    assert calls == [("clip-benchmark/wds_things", "dataset")]
    assert made.labels.tolist() == list(LABELS)
    assert made.name == "wds:clip-benchmark/wds_things"


def test_where_there_is_no_network_the_command_that_fetches_it_is_said(tmp_path, monkeypatch):
    def offline(name, repo_type):
        raise OSError("no network\nat all")

    monkeypatch.setattr("antiphase.data.hub.snapshot_download", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"\(no network\): download it .*--repo-type dataset clip-benchmark/wds_food101"
    ):
        load_data("wds:clip-benchmark/wds_food101")
