"""LLaVA's JSON files, against the records written here."""

import json

import pytest
import torch
from PIL import Image

from antiphase.data.conversations import CONVERSATION_SOURCES, load_conversations
from antiphase.errors import UserError


def said(*texts, first="human"):
    order = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": order[index % 2], "value": text} for index, text in enumerate(texts)]


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
    conversations = load_conversations("llava:mix.json?images=pictures", stage=2, root=folder)
    first, second, third = conversations
    assert (first.id, first.turns) == ("1", (("A cat?", "Yes"), ("A dog?", "No")))
    torch.testing.assert_close(first.image, torch.tensor([1.0, 0.0, 0.2])[:, None, None].expand(3, 3, 5))
    assert second.turns == (("Name it.", "A cat."),)
    assert (third.id, third.image, third.turns) == ("3", None, (("Good day!", "And now?"), ("More.", "Bye")))
    part = load_conversations("llava:mix.json?images=pictures", stage=2, root=folder, limit=2, seed=1)
    assert {one.id for one in part} < {"1", "2", "3"}
    assert len(part) == 2
    assert part.fingerprint() != conversations.fingerprint()
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
            {"id": 1, "images": ["0.png"], "conversations": said("a", "b")},
            "it has images or a video; expected one image",
        ),
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
    (folder / "pictures/coco/2.jpg").touch()
    (folder / "x.json").write_text(json.dumps([one, one | {"image": "coco/1.png"}]))
    with pytest.raises(UserError, match=r"1 of the images are empty files, the first is coco/2\.jpg"):
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
