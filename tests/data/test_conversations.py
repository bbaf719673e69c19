"""LLaVA's JSON files and shards, against the records written here."""

import io
import json
import tarfile

import pytest
import torch
from PIL import Image

from antiphase.data.conversations import CONVERSATION_SOURCES, load_conversations
from antiphase.errors import UserError


def said(*texts, first="human"):
    order = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": order[at % 2], "value": text} for at, text in enumerate(texts)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures/coco").mkdir(parents=True)
    Image.new("RGB", (5, 3), (255, 0, 51)).save(tmp_path / "pictures/coco/1.png")
    records = [
        {"id": "1", "image": "coco/1.png", "conversations": said("<image>\nA cat?", "Yes", "A dog?", "No")},
        {"id": "2", "image": "coco/1.png", "conversations": said("Name it.\n<image>", "A cat.")},
        {"id": 3, "conversations": said("Hello!", "Good day!", "And now?", "More.", "Bye", first="gpt")},
    ]
    (tmp_path / "mix.json").write_text(json.dumps(records))
    return tmp_path


def test_records_in_llava_s_layout(folder):
    found = load_conversations("llava:mix.json?images=pictures", stage=2, root=folder)
    first, second, third = found
    assert (first.id, first.turns) == ("1", (("A cat?", "Yes"), ("A dog?", "No")))
    torch.testing.assert_close(first.image, torch.tensor([1.0, 0.0, 0.2])[:, None, None].expand(3, 3, 5))
    assert second.turns == (("Name it.", "A cat."),)
    assert (third.id, third.image, third.turns) == ("3", None, (("Good day!", "And now?"), ("More.", "Bye")))
    part = load_conversations("llava:mix.json?images=pictures", stage=2, root=folder, limit=2, seed=1)
    assert {one.id for one in part} < {"1", "2", "3"}
    assert len(part) == 2
    assert part.fingerprint() != found.fingerprint()
    only = load_conversations("llava:mix.json?images=pictures&only=coco/", stage=2, root=folder)
    assert [one.id for one in only] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("llava:no.json?images=pictures", None, "no.json: cannot be read"),
        ("llava:mix.json", None, r"expected llava:JSONFILE\?images=DIR"),
        ("llava:mix.json?images=nowhere", None, "nowhere: no such folder"),
        ("llava:mix.json?images=pictures&only=gqa/", None, "no conversation about an image .*'gqa/' in"),
        ("llava:mix.json?image=.", None, "no setting 'image'; expected images"),
        ("lava:mix.json", None, "unknown source of conversations 'lava:mix.json': expected one of emoji"),
        ("llava:x.json?images=pictures", {"id": 1}, "record 0: "),
        ("llava:x.json?images=pictures", {"id": 1, "image": None, "conversations": said("a", "b")}, "image None"),
        ("llava:x.json?images=pictures", {"id": 1, "conversations": said(["a"], ["b"])}, "a message has no text"),
        ("llava:x.json?images=pictures", {"id": 1, "conversations": said("a")}, "no conversation in x.json"),
        (
            "llava:x.json?images=pictures",
            {"id": 1, "conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]},
            "the messages are not from human and gpt in turn",
        ),
        (
            "llava:x.json?images=pictures",
            {"id": 1, "image": "a", "conversations": said("a", "b")},
            "<image> occurs 0 times",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(folder, monkeypatch, name, record, message):
    monkeypatch.chdir(folder)
    (folder / "x.json").write_text(json.dumps([record]))
    with pytest.raises(UserError, match=message) as caught:
        load_conversations(name, stage=1)
    assert "\n" not in str(caught.value)


def test_missing_images_are_counted_before_training(folder):
    (folder / "pictures/coco/2.gif").touch()
    one = {"id": "1", "image": "coco/2.jpg", "conversations": said("<image>\nA cat?", "Yes")}
    (folder / "x.json").write_text(json.dumps([one, one | {"image": "coco/1.png"}, one | {"image": "gqa/1.png"}]))
    with pytest.raises(UserError, match=r"2 of the 3 listed images are missing in .*, the first is coco/2\.jpg"):
        load_conversations("llava:x.json?images=pictures", stage=2, root=folder)


def test_what_llava_trains_on_is_taken_as_it_is(folder, monkeypatch):
    (folder / "a+b").mkdir()
    records = [
        {"id": 1, "conversations": said("What is <image> in HTML?", "No tag of it.")},
        {"id": 2, "conversations": said("Nobody answers.")},
    ]
    (folder / "x.json").write_text(json.dumps(records))
    monkeypatch.chdir(folder)
    (only,) = load_conversations("llava:x.json?images=a+b", stage=2)
    assert (only.id, only.image, only.turns) == ("1", None, (("What is <image> in HTML?", "No tag of it."),))


def test_every_source_is_described():
    assert all(CONVERSATION_SOURCES.values())
    with pytest.raises(UserError, match="stage 3: expected 1"):
        load_conversations("llava:x.json", stage=3)


def shard(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_keys_of_shards_may_have_dots(tmp_path):
    drawn = io.BytesIO()
    Image.new("RGB", (5, 3)).save(drawn, "PNG")
    asked = said("<image>\nA cat?", "Yes")
    shard(tmp_path / "a.tar", ("a.v1.json", asked), ("a.v1.png", drawn.getvalue()), ("b.v1.json", said("?", "!")))
    found = load_conversations(f"shards:{tmp_path}/a.tar", stage=2)
    assert [(one.id, one.image is None) for one in found] == [("a.v1", False), ("b.v1", True)]


@pytest.fixture
def shards(tmp_path):
    """Two shards: messages alone, as Megatron-LM's converter writes them, and whole records."""
    drawn = io.BytesIO()
    Image.new("RGB", (5, 3), (255, 0, 51)).save(drawn, "PNG")
    png = drawn.getvalue()
    shard(
        tmp_path / "pretrain-0.tar",
        ("0001.png", png),
        ("0001.json", said("<image>\nA cat?", "Yes")),
        ("0002.json", said("Name it.\n<image>", "A cat.")),
        ("0002.png", png),
    )
    record = {"id": "named", "image": "coco/elsewhere.jpg", "conversations": said("<image>\nA dog?", "No")}
    shard(
        tmp_path / "pretrain-1.tar",
        ("7.json", record),
        ("7.PNG", png),
        ("8.json", {"id": 8, "conversations": said("Hello!", "Good day!")}),
    )
    return tmp_path


def test_shards_have_the_conversations_of_the_same_records_in_llava_s_layout(shards, folder, monkeypatch):
    found = load_conversations("shards:pretrain-{0..1}.tar", stage=2, root=shards)
    assert [(one.id, one.turns) for one in found] == [
        ("0001", (("A cat?", "Yes"),)),
        ("0002", (("Name it.", "A cat."),)),
        ("named", (("A dog?", "No"),)),
        ("8", (("Hello!", "Good day!"),)),
    ]
    pixels = torch.tensor([1.0, 0.0, 0.2])[:, None, None].expand(3, 3, 5)
    for one in list(found)[:3]:
        torch.testing.assert_close(one.image, pixels)
    assert found[3].image is None
    monkeypatch.chdir(shards)
    again = load_conversations("shards:pretrain-*.tar", stage=2)
    assert again.fingerprint() == found.fingerprint()
    assert load_conversations("shards:pretrain-0.tar", stage=2).fingerprint() != found.fingerprint()


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("shards:none.tar", (), "no shard matches 'none.tar'"),
        ("shards:https://host/0.tar", (), "https://host/0.tar is remote; download it"),
        ("shards:x.tar", (), "no conversations in 1 shards; expected KEY.json"),
        ("shards:x.tar", (("1.png", b"x"),), "1 has no valid JSON file"),
        ("shards:x.tar", (("1.json", b"{"),), "1 has no valid JSON file"),
        ("shards:x.tar", (("1.json", 1),), "record 0: "),
        ("shards:x.tar", (("1.json", said("<image>", "b")),), "<image> occurs 1 times"),
    ],
)
def test_mistakes_in_shards_are_told_in_one_line(tmp_path, monkeypatch, name, members, message):
    monkeypatch.chdir(tmp_path)
    shard(tmp_path / "x.tar", *members)
    with pytest.raises(UserError, match=message) as caught:
        load_conversations(name, stage=1)
    assert "\n" not in str(caught.value)
