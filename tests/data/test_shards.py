import gzip
import io
import itertools
import json
import os
import shlex
import signal
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antiphase.data import load_pairs
from antiphase.data import shards as shards_module
from antiphase.data.shards import (
    CC3M,
    CC12M,
    TITLES,
    RawSample,
    ShardStream,
    count_samples,
    find_shards,
    open_shards,
    read_shard,
    shuffled,
)
from antiphase.errors import UserError
from antiphase.streams import generator, key
from tests import needs


def picture(number, suffix="png"):
    """A file whose pixels all say ``number``, each of another width."""
    file = io.BytesIO()
    kind = {"jpg": "JPEG", "jpeg": "JPEG"}.get(suffix, suffix.upper())
    image = Image.fromarray(np.full((3, 5 + number % 7, 3), number % 251, dtype=np.uint8))
    image.save(file, **({"lossless": True} if kind == "WEBP" else {}), format=kind)
    return file.getvalue()


def write_tar(path, members):
    """Write (name, bytes) in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def members_of(number, suffix="png"):
    told = json.dumps({"key": f"{number:06d}"}).encode()
    return [
        (f"{number:06d}.{suffix}", picture(number, suffix)),
        (f"{number:06d}.json", told),
        (f"{number:06d}.txt", f" number {number}\n".encode()),
    ]


def write_shards(folder, sizes, prefix="cc"):
    """Write shards of so many samples, numbered throughout, and return the pattern for all of them."""
    numbers = itertools.count()
    for shard, size in enumerate(sizes):
        samples = [members_of(next(numbers)) for _ in range(size)]
        write_tar(folder / f"{prefix}-{shard:04d}.tar", itertools.chain.from_iterable(samples))
    return f"{folder}/{prefix}-{{0000..{len(sizes) - 1:04d}}}.tar"


@pytest.fixture(autouse=True)
def own_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))


@pytest.fixture
def six(tmp_path):
    """Six shards of seven samples."""
    return write_shards(tmp_path / "six", [7] * 6)


def numbers_of(batch):
    return [int(caption.removeprefix("number ")) for (caption,) in batch.captions]


def run(stream, size=6, seed=3, epoch=2, **given):
    return list(stream.batches(size, seed=seed, epoch=epoch, **given))


def assert_equal(made, expected):
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one.ids, other.ids)
        assert (one.captions, one.size, one.bad) == (other.captions, other.size, other.bad)
        assert all(map(torch.equal, one.images, other.images))
        assert len(one.images) == len(other.images)


def test_a_batch_holds_the_pixels_the_caption_and_the_id_of_each_sample(six):
    batches = run(open_shards(six, lanes=2))
    assert [batch.size for batch in batches] == [6] * 7
    for batch in batches:
        assert batch.bad == ()
        assert batch.ids.dtype == torch.int64
        assert len(batch.images) == len(batch.captions) == len(batch.ids) == 6
        for sample, image, number in zip(batch.ids, batch.images, numbers_of(batch), strict=True):
            assert int(sample) == key("shard", f"cc-{number // 7:04d}.tar", f"{number:06d}")
            assert torch.equal(image, torch.full((3, 3, 5 + number % 7), number, dtype=torch.uint8))


def test_every_sample_is_in_an_epoch_once_when_the_sizes_fit(six):
    for lanes, buffer in ((1, 1), (2, 5), (2, 1000), (6, 3)):
        stream = open_shards(six, lanes=lanes, buffer=buffer)
        seen = [number for batch in run(stream) for number in numbers_of(batch)]
        assert sorted(seen) == list(range(42))
        assert seen != sorted(seen)


def test_all_image_suffixes_are_read_in_any_case_and_whatever_else_is_there(tmp_path):
    suffixes = ("jpg", "png", "webp", "jpeg")
    members = [member for number, suffix in enumerate(suffixes, start=11) for member in members_of(number, suffix)]
    members += [("000019.PNG", picture(19)), ("000019.cls", b"4"), ("000019.Txt", b"number 19"), ("README", b"x")]
    write_tar(tmp_path / "a.tar", members)
    (batch,) = run(open_shards(str(tmp_path / "a.tar")), 5)
    shown = dict(zip(numbers_of(batch), batch.images, strict=True))
    assert sorted(shown) == [11, 12, 13, 14, 19]
    for number, image in shown.items():
        assert (image.int() - number).abs().max() <= 1, number  # JPEG rounds
        assert image.shape == (3, 3, 5 + number % 7)


@pytest.mark.parametrize("world", [2, 4])
def test_the_shares_of_all_processes_make_up_the_batch_of_one(tmp_path, world):
    stream = open_shards(write_shards(tmp_path, [5, 3, 7, 2, 11]), lanes=4, buffer=3)
    whole = run(stream, 4)
    shares = [run(stream, 4, rank=rank, world=world) for rank in range(world)]
    assert len(whole) == 28 // 4
    for step, batch in enumerate(whole):
        together = [number for share in shares for number in numbers_of(share[step])]
        assert sorted(together) == sorted(numbers_of(batch))
        for rank, share in enumerate(shares):  # a sample a lane
            assert torch.equal(share[step].ids, batch.ids[rank::world])
            assert share[step].size == 4


def test_a_resumed_run_sees_the_batches_of_one_that_was_not_interrupted(tmp_path):
    damage_some(tmp_path)
    stream = open_shards(str(tmp_path), samples=37, lanes=2, buffer=3)
    for rank, world in ((0, 1), (1, 2)):
        whole = run(stream, 4, rank=rank, world=world)
        assert len(whole) == 9
        assert any(batch.bad for batch in whole[3:])
        for first in range(10):
            assert_equal(run(stream, 4, first=first, rank=rank, world=world), whole[first:])
    assert run(stream, 4, first=13) == []


def test_a_resumed_run_decodes_nothing_before_its_first_step(six, monkeypatch):
    decoded = []
    whole = "antiphase.data.shards.decode_whole"
    monkeypatch.setattr(whole, lambda file, name, fix: decoded.append(name) or torch.zeros(3, 1, 1).byte())
    run(open_shards(six, lanes=2), first=5)
    assert len(decoded) == 2 * 6


def test_epochs_and_seeds_are_other_orders_and_the_same_ones_are_the_same(six):
    stream = open_shards(six, lanes=2, buffer=5)
    orders = {
        tuple(number for batch in run(stream, seed=seed, epoch=epoch) for number in numbers_of(batch))
        for seed, epoch in itertools.product((0, 1), (0, 1))
    }
    assert len(orders) == 4
    assert_equal(run(stream), run(open_shards(six, lanes=2, buffer=5)))


def test_a_lane_begins_again_in_another_order_when_its_samples_run_out(tmp_path):
    pattern = write_shards(tmp_path, [13, 3])
    stream = open_shards(pattern, lanes=2, buffer=2)
    assert stream.steps_per_epoch(2) == 8
    seen = [numbers_of(batch) for batch in run(stream, 2)]
    assert len({long for long, _ in seen}) == 8
    short = [number for _, number in seen]
    assert [sorted(short[k : k + 3]) for k in (0, 3)] == [[13, 14, 15]] * 2
    longer = ShardStream(stream.name, stream.shards, 300, 2, 2)
    passes = [number for _, number in (numbers_of(batch) for batch in run(longer, 2))]
    assert len({tuple(passes[k : k + 3]) for k in range(0, 150, 3)}) > 1


def test_a_lane_permutes_its_shards_by_seed_lane_epoch_and_pass(six):
    stream = ShardStream("x", find_shards(six), samples=84, lanes=2, buffer=1)
    batches = run(stream, 14, seed=5, epoch=3)
    assert len(batches) == 6
    for number in range(2):
        seen = [list(dict.fromkeys(n // 7 for n in numbers_of(batch)[7 * number :][:7])) for batch in batches]
        expected = [
            2 * int(shard) + number
            for turn in range(2)
            for shard in torch.randperm(3, generator=generator(5, "shards", number, 3, turn))
        ]
        assert seen == [[shard] for shard in expected]


def test_what_a_step_holds_does_not_depend_on_the_folder(tmp_path):
    here, there = (write_shards(tmp_path / name, [7, 5], "x") for name in ("here", "there"))
    assert_equal(run(open_shards(here), 4), run(open_shards(there), 4))
    assert open_shards(here).fingerprint() == open_shards(there).fingerprint()


def test_a_shuffle_buffer_permutes_and_lets_nobody_far_ahead():
    samples = [RawSample("s", str(number), "png", b"", "c") for number in range(101)]

    def order(size, seed):
        return [int(s.key) for s in shuffled(iter(samples), size, generator(seed))]

    assert order(1, 0) == list(range(101))
    for size in (2, 13, 100, 101, 997):
        assert sorted(order(size, 0)) == list(range(101))
        assert all(number < place + size for place, number in enumerate(order(size, 0)))
        assert order(size, 0) != order(size, 1)
    firsts = torch.bincount(torch.tensor([order(5, seed)[0] for seed in range(500)]), minlength=5)
    assert len(firsts) == 5
    assert ((firsts / 500 - 0.2).abs() < 4 * (0.2 * 0.8 / 500) ** 0.5).all()


def damage_some(folder):
    """Write four shards of which the last is whole, and return how many samples can be used."""
    write_shards(folder, [5, 5, 5, 5])
    samples = [members_of(number) for number in range(10)]
    samples[2] = samples[2][:2]  # no caption
    samples[3][2] = ("000003.txt", b" \n")  # an empty one
    samples[4] = samples[4][1:]  # no image
    write_tar(folder / "cc-0000.tar", itertools.chain.from_iterable(samples[:5]))
    samples[6][0] = ("000006.jpg", picture(6, "jpg")[:-9])
    samples[8] = samples[8][1:2]  # neither
    write_tar(folder / "cc-0001.tar", itertools.chain.from_iterable(samples[5:10]))
    cut = (folder / "cc-0002.tar").read_bytes()
    start = cut.index(b"000013.png")
    (folder / "cc-0002.tar").write_bytes(cut[: start + 512 + 20])
    return 2 + 4 + 3 + 5


def test_damage_is_named_and_left_out_and_the_stream_goes_on(tmp_path):
    usable = damage_some(tmp_path)
    stream = open_shards(str(tmp_path), samples=usable, lanes=1)
    batches = run(stream, 7)
    lines = sorted(line for batch in batches for line in batch.bad)
    lines[0] = lines[0].partition(" (")[0]  # Pillow's words follow
    assert lines[:4] == [
        "cannot read image cc-0001.tar/000006.jpg",
        "cc-0000.tar: 000002 has no caption (.txt)",
        "cc-0000.tar: 000003 has no caption (.txt)",
        "cc-0000.tar: 000004 has no image (.jpg, .png, .webp, .jpeg)",
    ]
    assert lines[4] == "cc-0001.tar: 000008 has no image (.jpg, .png, .webp, .jpeg)"
    cut = "cc-0002.tar is cut short or damaged after 000012 (unexpected end of data): the rest of it is left out"
    assert lines[5:] == [cut]
    assert [len(batch.ids) for batch in batches] in ([6, 7], [7, 6])
    assert all(batch.size == 7 for batch in batches)
    seen = sorted(number for batch in batches for number in numbers_of(batch))
    assert seen == [0, 1, 5, 7, 9, 10, 11, 12, 15, 16, 17, 18, 19]


def read(path):
    lines = []
    (shard,) = find_shards(str(path))
    return [sample.key for sample in read_shard(shard, lines.append)], lines


def test_a_tar_file_cut_at_any_place_gives_what_is_whole_and_says_so(tmp_path):
    write_shards(tmp_path, [3])
    whole = (tmp_path / "cc-0000.tar").read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    keys = ["000000", "000001", "000002"]
    assert read(tmp_path / "cc-0000.tar") == (keys, [])
    for size in range(0, end + 1, 128):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        prefix, lines = read(tmp_path / "cut.tar")
        (line,) = lines
        where = f"after {prefix[-1]}" if prefix else "from its start"
        assert line.startswith(f"cut.tar is cut short or damaged {where} ("), size
        assert prefix == keys[: len(prefix)]
        texts = [whole.index(b"%06d.txt" % number) + 512 + len(f" number {number}\n") for number in range(3)]
        assert len(prefix) == sum(size >= text for text in texts), size


def test_a_damaged_header_amid_a_shard_is_no_silent_end(tmp_path):
    write_shards(tmp_path, [29])
    raw = bytearray((tmp_path / "cc-0000.tar").read_bytes())
    raw[raw.index(b"000005.png")] = ord("X")
    (tmp_path / "cc-0000.tar").write_bytes(raw)
    keys, lines = read(tmp_path / "cc-0000.tar")
    assert keys == [f"{number:06d}" for number in range(5)]
    assert lines == ["cc-0000.tar is cut short or damaged after 000004 (bad checksum): the rest of it is left out"]


def test_compressed_shards_are_read_and_a_cut_one_is_named(tmp_path):
    write_shards(tmp_path, [13])
    packed = gzip.compress((tmp_path / "cc-0000.tar").read_bytes())
    (tmp_path / "whole.tar.gz").write_bytes(packed)
    assert read(tmp_path / "whole.tar.gz") == read(tmp_path / "cc-0000.tar")
    (tmp_path / "cut.tar.gz").write_bytes(packed[: len(packed) // 2])
    keys, lines = read(tmp_path / "cut.tar.gz")
    assert len(keys) < 13
    assert len(lines) == 1


def test_bytes_that_are_no_image_are_named_without_their_address(tmp_path):
    write_tar(tmp_path / "a.tar", [*members_of(3), ("000005.webp", b"<html>"), ("000005.txt", b"number 5")])
    (batch,) = run(open_shards(str(tmp_path)), 2)
    assert batch.bad == (
        "cannot read image a.tar/000005.webp (cannot identify image file): repair it, or remove it from the shard",
    )
    assert (numbers_of(batch), batch.size) == ([3], 2)


def test_a_member_that_is_there_twice_is_named(tmp_path):
    members = members_of(3)
    write_tar(tmp_path / "a.tar", [*members[:2], ("000003.png", picture(5)), members[2]])
    assert read(tmp_path / "a.tar") == (["000003"], ["a.tar: 000003.png is in it twice, the first is taken"])


def test_a_key_that_is_no_text_is_still_a_key(tmp_path):
    write_tar(tmp_path / "a.tar", [(f"\udcff{name}", data) for name, data in members_of(3)])
    (batch,) = run(open_shards(str(tmp_path / "a.tar")), 1)
    assert batch.ids.tolist() == [key("shard", "a.tar", "\ufffd000003")]


@needs.curl
def test_shards_are_read_over_http_as_from_the_disk(served):
    folder, url = served
    local = write_shards(folder / "sub", [7, 5, 3])
    remote = local.replace(f"{folder}/", url)
    stream = open_shards(remote, samples=15)
    assert stream.lanes == 2
    assert_equal(run(stream, 4), run(open_shards(local), 4))
    with pytest.raises(UserError, match=r"shards:http.*is remote: give the total .* --samples"):
        open_shards(remote)
    assert stream.fingerprint() != open_shards(local).fingerprint()
    assert stream.fingerprint() == open_shards(remote, samples=15).fingerprint()


@needs.curl
def test_a_shard_that_the_server_does_not_have_is_named(served):
    folder, url = served
    write_shards(folder, [7])
    batches = run(open_shards(f"{url}cc-{{0000..0001}}.tar", samples=7, lanes=1), 7)
    (line,) = [line for batch in batches for line in batch.bad]
    assert "cc-0001.tar is cut short or damaged from its start (the command ended with exit code 22)" in line
    assert sorted(numbers_of(batches[0])) == list(range(7))
    with pytest.raises(UserError, match=r"lane 1 has no usable sample .* cc-0001\.tar; .*exit code 22"):
        run(open_shards(f"{url}cc-{{0000..0001}}.tar", samples=7, lanes=2), 2)


def test_a_command_may_write_the_shard(tmp_path):
    local = write_shards(tmp_path, [7, 5])
    stream = open_shards(f"pipe:cat {local}", samples=12)
    assert [shard.name for shard in stream.shards] == ["cc-0000.tar", "cc-0001.tar"]
    assert_equal(run(stream, 4), run(open_shards(local), 4))


def test_samples_are_those_of_stats_else_counted(tmp_path):
    pattern = write_shards(tmp_path, [3, 5, 7])
    assert open_shards(pattern).samples == 15
    (tmp_path / "cc-0001_stats.json").write_text(json.dumps({"count": 9000, "successes": 9}))
    assert open_shards(pattern).samples == 3 + 9 + 7
    assert open_shards(pattern, samples=13).samples == 13


def test_members_are_counted_once_and_again_when_the_file_changes(tmp_path, monkeypatch):
    pattern = write_shards(tmp_path / "a", [3, 5])
    shards = find_shards(pattern)
    counted = []
    reader = shards_module.read_shard
    monkeypatch.setattr(shards_module, "read_shard", lambda one, *more: counted.append(one.name) or reader(one, *more))
    for _ in range(3):
        assert count_samples("x", shards, tmp_path, progress=False) == 8
    assert counted == ["cc-0000.tar", "cc-0001.tar"]
    write_tar(tmp_path / "a" / "cc-0001.tar", members_of(3))
    assert count_samples("x", shards, tmp_path, progress=False) == 4
    os.utime(shards[0].place, ns=(5, 5))
    assert count_samples("x", shards, tmp_path, progress=False) == 4
    assert counted[2:] == ["cc-0001.tar", "cc-0000.tar"]
    for kept in (tmp_path / "shards").iterdir():
        kept.write_text("{}")
    assert count_samples("x", shards, tmp_path, progress=False) == 4
    assert len(counted) == 6
    (tmp_path / "file").touch()
    assert count_samples("x", shards, tmp_path / "file", progress=False) == 4  # nowhere to keep it


def test_keys_may_have_dots(tmp_path):
    names = ("photo.v1.0001", "photo.v1.0002", "12.5_x")
    members = [
        (f"{name}.{suffix}", picture(number) if suffix == "png" else name.encode())
        for number, name in enumerate(names)
        for suffix in ("json", "png", "txt")
    ]
    compound = [("0003.png", picture(3)), ("0003.seg.png", picture(4)), ("0003.txt", b"plain")]
    write_tar(tmp_path / "set.v2.tar", [*members, *compound])
    stream = open_shards(str(tmp_path / "set.v2.tar"))
    reports = []
    samples = {sample.key: sample.caption for sample in read_shard(stream.shards[0], reports.append)}
    assert samples == {name: name for name in names} | {"0003": "plain"}
    assert (stream.samples, reports) == (4, [])


def test_a_count_is_that_of_the_samples_that_are_read(tmp_path):
    damage_some(tmp_path)
    for path in sorted(tmp_path.glob("*.tar")):
        keys, _ = read(path)
        if keys:
            assert open_shards(str(path), root=tmp_path).samples == len(keys), path


def test_patterns_are_paths_folders_globs_and_lists(tmp_path, monkeypatch):
    pattern = write_shards(tmp_path, [1, 1, 1])
    names = ["cc-0000.tar", "cc-0001.tar", "cc-0002.tar"]
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (pattern, str(tmp_path), f"{tmp_path}/c*.tar", "~/cc-000{0,1,2}.tar"):
        assert [shard.name for shard in find_shards(given)] == names
    first, rest = f"{tmp_path}/cc-0002.tar", f"{tmp_path}/cc-000{{0..1}}.tar"
    assert [shard.name for shard in find_shards(f"{first}::{rest}")] == [names[2], *names[:2]]
    signed = find_shards("https://host/a/{0..1}.tar?sign=a/b.tar")
    assert [shard.name for shard in signed] == ["0.tar", "1.tar"]


def test_shards_of_one_name_in_two_folders_are_told_apart(tmp_path):
    patterns = [write_shards(tmp_path / name, [2]) for name in ("a", "b")]
    stream = open_shards("::".join(patterns))
    assert [shard.name for shard in stream.shards] == ["a/cc-0000.tar", "b/cc-0000.tar"]
    (batch,) = run(stream, 4)
    assert len(set(batch.ids.tolist())) == 4


@pytest.mark.parametrize(("shards", "lanes"), [(1, 1), (2, 2), (3, 2), (5, 4), (7, 4), (11, 8), (17, 8)])
def test_there_are_as_many_lanes_as_shards_allow(tmp_path, shards, lanes):
    assert open_shards(write_shards(tmp_path, [1] * shards)).lanes == lanes


def test_a_fingerprint_is_of_what_decides_the_batches(tmp_path):
    pattern = write_shards(tmp_path, [3, 5])
    made = {
        open_shards(pattern, **given).fingerprint()
        for given in ({}, {"samples": 7}, {"lanes": 1}, {"buffer": 11}, {"samples": 8})
    }
    assert len(made) == 4
    stream = open_shards(pattern)
    before = stream.fingerprint()
    write_tar(tmp_path / "cc-0001.tar", [member for k in range(9) for member in members_of(k)])
    assert stream.fingerprint() != before
    (tmp_path / "cc-0001.tar").unlink()
    with pytest.raises(UserError, match=r"cc-0001\.tar was removed"):
        stream.fingerprint()


def test_a_relative_pattern_is_of_the_working_directory_or_of_the_data_folder(tmp_path, monkeypatch):
    names = ["cc3m/00000.tar", "cc3m/00001.tar"]
    for place, members in (("data", names), ("here", names), ("part", names[:1])):
        for number, name in enumerate(members):
            write_tar(tmp_path / place / name, members_of(number))
    (tmp_path / "empty").mkdir()
    pattern = "cc3m/{00000..00001}.tar"
    for folder, source in (("empty", "data"), ("here", "here")):
        monkeypatch.chdir(tmp_path / folder)
        places = [Path(shard.place).resolve() for shard in open_shards(pattern).shards]
        assert places == [tmp_path / source / name for name in names]
    stream = load_pairs(f"shards:{pattern}", progress=False)
    (batch,) = stream.batches(2, seed=0, epoch=0)
    assert sorted(numbers_of(batch)) == [0, 1]
    assert stream.fingerprint() == open_shards(pattern, root=tmp_path / "data").fingerprint()
    monkeypatch.chdir(tmp_path / "part")  # a part of a set is not completed by another copy's
    with pytest.raises(UserError, match=r"1 of the 2 shards .* the first is cc3m/00001\.tar"):
        open_shards(pattern)


@pytest.mark.parametrize(("source", "columns"), [(CC3M, r"caption\turl"), (CC12M, r"url\tcaption")])
def test_missing_shards_of_the_paper_say_how_to_get_them(tmp_path, monkeypatch, source, columns):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        load_pairs(source, progress=False)
    line, name = str(caught.value), TITLES[source].lower()
    assert line.startswith(f"no shard matches {source.removeprefix('shards:')!r} in {tmp_path} or {tmp_path}/data: ")
    assert f"s/^/{columns}\\n/" in line  # what sed shall read
    words = shlex.split(line.partition("img2dataset")[2])
    assert words[words.index("--output_folder") + 1] == f"{tmp_path}/data/{name}"
    assert words[words.index("--resize_mode") + 1] == "keep_ratio"
    assert "\n" not in line


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("{}/absent-{{0..3}}.tar", r"no shard matches '.*absent-\{0\.\.3\}\.tar' in .*: correct the pattern"),
        ("{}/*.tgz", "no shard matches"),
        ("{}/empty", "no shard matches"),
        ("{}/cc-000{{0..5}}.tar", r"4 of the 6 shards .* are missing, the first is .*/cc-0002\.tar: correct"),
        ("{}/cc-0000.tar::{}/cc-0000.tar", r"duplicate .*cc-0000\.tar"),
        ("{}/cc-000{{0..", r"shards '.*/cc-000\{0\.\.': .*: correct the pattern"),
        ("${{ABSENT}}/cc.tar", "ABSENT: correct the pattern"),
        ("s3://box/0.tar", "s3: URLs are not supported: use 'pipe:COMMAND'"),
        ("-", "no shard matches '-'"),
        ("", "no shard matches ''"),
    ],
)
def test_a_pattern_that_cannot_be_served_is_one_line(tmp_path, monkeypatch, pattern, line):
    write_shards(tmp_path, [1, 1])
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UserError, match=line) as caught:
        open_shards(pattern.format(tmp_path, tmp_path), samples=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"lanes": 0}, "lanes 0: expected 1 to 6, its shards"),
        ({"lanes": 7}, "lanes 7: expected 1 to 6, its shards"),
        ({"buffer": 0}, "buffer 0: expected an integer of at least 1"),
        ({"samples": 0}, "samples 0: expected an integer of at least 1"),
    ],
)
def test_a_stream_of_impossible_numbers_is_one_line(six, given, line):
    with pytest.raises(UserError, match=line):
        open_shards(six, **given)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"size": 43}, "batch size 43: expected 1 to 42, the samples of shards:"),
        ({"size": 0}, "batch size 0: expected 1 to 42"),
        ({"size": 10}, r"batch size 10: expected a multiple of 4, see --lanes"),
        ({"size": 8, "world": 3}, "lanes 4: expected a multiple of the 3 processes: use --lanes"),
    ],
)
def test_numbers_that_do_not_divide_are_one_line_before_anything_is_read(six, given, line):
    with pytest.raises(UserError, match=line):
        open_shards(six).batches(given.pop("size"), seed=0, epoch=0, **given)


def test_a_lane_without_a_usable_sample_is_an_error_and_not_an_endless_loop(tmp_path):
    pattern = write_shards(tmp_path, [3, 3])
    write_tar(tmp_path / "cc-0001.tar", members_of(4)[:2])
    line = r"lane 1 has no usable sample in its 1 shards, first cc-0001\.tar; .*000004 has no cap"
    with pytest.raises(UserError, match=line):
        run(open_shards(pattern, samples=4), 2)
    with pytest.raises(UserError, match=line):
        run(open_shards(pattern, samples=400), 2, first=150)


@pytest.mark.parametrize("text", ["{}", '{"successes": "3"}', '{"successes"'])
def test_damaged_statistics_are_one_line(tmp_path, text):
    pattern = write_shards(tmp_path, [3])
    (tmp_path / "cc-0000_stats.json").write_text(text)
    with pytest.raises(UserError, match=r"cc-0000_stats\.json: .*expected a") as caught:
        open_shards(pattern)
    assert "\n" not in str(caught.value)


def test_shards_without_samples_are_one_line(tmp_path):
    write_tar(tmp_path / "a.tar", [("notes.md", b"x")])
    with pytest.raises(UserError, match="no samples in its 1 shards"):
        open_shards(str(tmp_path / "a.tar"))


def test_a_stream_that_is_left_half_way_leaves_no_thread_and_no_open_file(six):
    before = threading.active_count()
    batches = open_shards(six, lanes=2, buffer=2).batches(2, seed=0, epoch=0)
    next(batches)
    assert threading.active_count() > before
    batches.close()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before


# an interrupt between opening a file and the block that closes it leaves it to Python, which says so
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_that_is_interrupted_on_its_way_to_the_first_step_ends_soon(six):
    stream = ShardStream("x", find_shards(six), samples=10**8, lanes=1, buffer=3)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2, 2)  # again, since Python drops what is raised in a __del__
        with pytest.raises(KeyboardInterrupt):
            next(stream.batches(1, seed=0, epoch=0, first=10**6))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 20  # the way takes minutes
