import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from antiphase.data.shards import ShardStream
from antiphase.data.sources import PAIR_SOURCES, load_pairs
from antiphase.errors import UserError


@pytest.fixture
def data(tmp_path, write_image):
    """A data folder with three images, in COCO's layout, in Karpathy's splits, in a table and in a shard."""
    root = tmp_path / "data"
    folder = root / "coco"
    (folder / "annotations").mkdir(parents=True)
    images = [{"id": number, "file_name": f"{number}.png"} for number in (3, 5, 7)]
    captions = [{"id": number, "image_id": number, "caption": f"say {number}"} for number in (3, 5, 7)]
    objects = [{"id": number, "image_id": number, "category_id": 2, "area": 1, "iscrowd": 0} for number in (3, 5)]
    entries = [
        {"filename": f"{number}.png", "filepath": "val2014", "split": "val", "sentences": [{"raw": "x"}]}
        for number in (3, 5)
    ]
    for path, told in {
        folder / "annotations" / "captions_val2014.json": {"images": images, "annotations": captions},
        folder / "annotations" / "instances_val2014.json": {
            "images": images,
            "annotations": objects,
            "categories": [{"id": 2, "name": "dog"}],
        },
        tmp_path / "dataset_coco.json": {"images": entries},
    }.items():
        path.write_text(json.dumps(told))
    (tmp_path / "pairs.csv").write_text("image,caption\ndata/coco/val2014/3.png,x\ndata/coco/val2014/7.png,y\n")
    with tarfile.open(tmp_path / "00000.tar", "w") as archive:
        for number in (3, 5, 7):
            write_image(folder / "val2014" / f"{number}.png", number)
            archive.add(folder / "val2014" / f"{number}.png", f"{number}.png")
            entry = tarfile.TarInfo(f"{number}.txt")
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"say"))
    return tmp_path


def test_every_source_of_pairs_has_a_one_line_description():
    assert set(PAIR_SOURCES) == {
        "openmoji",
        "noto-emoji",
        "twemoji",
        "fluent-emoji",
        "emojione",
        "blobmoji",
        "emoji",
        "emoji-scenes",
        "emoji-objects",
        "shards:PATTERN",
        "coco",
        "coco-single-label",
        "coco-objects",
        "flickr8k",
        "flickr30k",
        "coco-karpathy",
        "karpathy:JSON",
        "wds:PATH",
        "csv:PATH",
    }
    assert all(text and "\n" not in text for text in PAIR_SOURCES.values())


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [
        ("coco", "val", 3),
        ("coco", "test", 3),
        ("coco-single-label", "val", 2),
        ("karpathy:{}/dataset_coco.json", "val", 2),
        ("csv:{}/pairs.csv", "train", 2),
    ],
)
def test_a_set_of_pairs_is_found_by_its_name(data, name, split, count):
    name = name.format(data)
    pairs = load_pairs(name, split=split, root=data / "data")
    assert pairs.name == name
    assert len(pairs) == count
    assert pairs.pixels(0).shape == (3, 11, 13)
    (batch,) = pairs.batches(count, seed=0, epoch=0)
    assert sorted(batch.ids.tolist()) == list(range(count))
    few = load_pairs(name, split=split, root=data / "data", limit=1)
    assert few.fingerprint() == pairs.subset(1).fingerprint()
    assert len(load_pairs(name, split=split, root=data / "data", limit=997)) == count


def test_the_data_folder_may_be_named_in_the_environment(data, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(data / "data"))
    assert len(load_pairs("coco", split="val")) == 3


def test_shards_are_a_stream_whose_counts_are_kept_below_the_data_folder(data):
    stream = load_pairs(f"shards:{data}/0000{{0..0}}.tar", root=data / "data", progress=False)
    assert isinstance(stream, ShardStream)
    assert (stream.name, stream.samples, stream.lanes) == (f"shards:{data}/0000{{0..0}}.tar", 3, 1)
    assert len(list((data / "data" / "shards").iterdir())) == 1
    (batch,) = stream.batches(3, seed=0, epoch=0)
    assert [captions for captions in batch.captions] == [("say",)] * 3
    assert load_pairs(f"shards:{data}/00000.tar", samples=101).steps_per_epoch(2) == 50


def test_paths_may_begin_at_home(data, monkeypatch):
    monkeypatch.setenv("HOME", str(data))
    assert len(load_pairs("csv:~/pairs.csv")) == 2
    assert len(load_pairs("karpathy:~/dataset_coco.json", split="val", root=data / "data")) == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("cocos", "unknown source of pairs 'cocos': expected one of openmoji, noto-emoji, "),
        ("csv:PATH:", "PATH:: cannot be read"),
        ("csv:", "unknown source of pairs 'csv:'"),
        ("", "unknown source of pairs '': expected one of"),
    ],
)
def test_an_unknown_source_of_pairs_is_one_line_with_the_nearest_names(name, line):
    with pytest.raises(UserError) as caught:
        load_pairs(name)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("coco", {"limit": 0}, "limit 0: expected an integer of at least 1"),
        ("shards:x.tar", {"samples": 0}, "samples 0: expected an integer of at least 1"),
        ("shards:x.tar", {"limit": 5}, r"does not apply to shards; use --samples 5"),
        ("shards:x.tar", {"split": "val"}, "shards:x.tar has no split 'val': expected one of train"),
        ("shards:x.tar", {}, "no shard matches 'x.tar'"),
        ("coco", {"samples": 5}, "coco: --samples and --lanes only apply to shards; leave them out, or use --limit"),
        ("coco", {"split": "dev"}, "coco has no split 'dev'"),
        ("coco", {"root": Path("absent")}, "not found in absent or absent/coco"),
        ("csv:absent.csv", {}, "absent.csv: cannot be read"),
        ("karpathy:absent.json", {}, "absent.json: cannot be read"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_line(name, given, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=line) as caught:
        load_pairs(name, **given)
    assert "\n" not in str(caught.value)


def test_unreadable_pairs_are_left_out_and_the_limit_counts_the_others(tmp_path):
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.png").write_bytes(b"broken")
    lines = ["filepath,title", *(f"{name}.png,the letter {name}" for name in "abc")]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    pairs = load_pairs(f"csv:{tmp_path / 'pairs.csv'}", skip_bad=True, limit=2, progress=False)
    assert pairs.ids.tolist() == [1, 2]
    assert len(pairs.skipped) == 1
