"""POPE's questions: the three samplings against hand-made lists, the published format, and the emoji scenes."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from antiphase.data.emoji import OBJECTS
from antiphase.errors import UserError
from antiphase.vlm.pope import emoji_pope, load_pope, pope_questions

LABELLED = {
    "1.jpg": ["dog", "cup", "table"],
    "2.jpg": ["cup", "table", "cat", "owl"],
    "3.jpg": ["dog", "cat", "car"],
    "4.jpg": ["owl", "cup", "table"],
    "5.jpg": ["car", "car park"],
    "6.jpg": ["pen", "cup", "cat"],
}


def _thing(question):
    return question.text.removeprefix("Is there a").removeprefix("n").removesuffix(" in the image?").strip()


def _check(questions, labelled, sampling):
    """Compare every absent object with all that POPE could have chosen in its place, counted afresh."""
    for image, group in itertools.groupby(questions, lambda one: one.image):
        pairs = _pairs(list(group))
        assert [_thing(one) for one, _ in pairs] == list(labelled[image][: len(pairs)])
        used = set(labelled[image])
        for present, absent in pairs:
            assert (present.yes, absent.yes) == (True, False)
            scenes = {
                "random": [],
                "popular": labelled.values(),
                "adversarial": [objects for objects in labelled.values() if _thing(present) in objects],
            }[sampling]
            count = dict.fromkeys(itertools.chain(*labelled.values()), 0)
            count |= Counter(itertools.chain(*scenes))
            assert _thing(absent) in count.keys() - used
            assert count[_thing(absent)] == max(count[name] for name in count.keys() - used)
            used.add(_thing(absent))


def _pairs(several):
    return list(zip(several[::2], several[1::2], strict=True))


def test_the_three_samplings_follow_popes_rules():
    samplings = pope_questions(LABELLED, images=5)
    assert list(samplings) == ["random", "popular", "adversarial"]
    labelled = {name: objects for name, objects in LABELLED.items() if name != "5.jpg"}  # it has two objects
    for sampling, questions in samplings.items():
        assert (len(questions), {one.image for one in questions}) == (30, set(labelled))
        _check(questions, labelled, sampling)
    absent = [_thing(one) for one in samplings["popular"] if one.image == "3.jpg" and not one.yes]
    assert absent == ["cup", "table", "owl"]  # by hand: of dog, cat and car none is absent
    assert any(one.text == "Is there an owl in the image?" for one in samplings["random"])
    assert pope_questions(LABELLED, images=5) == samplings
    assert pope_questions(LABELLED, images=5, seed=1) != samplings
    with pytest.raises(UserError, match="POPE of 6 images: 5 have 3 objects or more"):
        pope_questions(LABELLED, images=6)


@pytest.fixture(scope="module")
def emoji():
    return emoji_pope(progress=False)


def test_scenes_show_what_their_labels_say(emoji):
    scenes = emoji.pictures
    names = [[one.name for one in objects] for objects in scenes.objects]
    assert all(len(set(scene)) == len(scene) in (3, 4) and set(scene) <= set(OBJECTS) for scene in names)
    for row in range(20):
        masks = [one.mask() for one in scenes.objects[row]]
        drawn = (scenes.pixels(row) < 255).any(0).numpy()
        assert not (drawn & ~np.any(masks, 0)).any()  # nothing else is drawn
        assert all(100 < mask.sum() <= 32 * 32 for mask in masks)
        assert not any((one & two).any() for one, two in itertools.combinations(masks, 2))
        words = scenes.captions[row][0].replace(" and ", ", ").split(", ")
        assert [word.split(" ", 1)[1] for word in words] == names[row]


def test_objects_of_a_theme_occur_together_and_some_are_frequent(emoji):
    seen = [frozenset(one.name for one in objects) for objects in emoji.pictures.objects]
    count = Counter(name for names in seen for name in names)
    together = sum({"cow", "horse"} <= names for names in seen)
    assert together > 3 * count["cow"] * count["horse"] / len(seen)  # chance: independent of each other
    assert min(count["fish"], count["tree"]) > 1.5 * max(count["pineapple"], count["mushroom"])


def test_emoji_pope_is_popes_size_and_asks_by_its_rules(emoji):
    assert (len(emoji), len(emoji.names)) == (9000, 500)
    labelled = {
        name: [one.name for one in objects] for name, objects in zip(emoji.names, emoji.pictures.objects, strict=True)
    }
    for sampling in ("random", "popular", "adversarial"):
        some = [one for one in emoji.questions if one.sampling == sampling and one.image in emoji.names[:25]]
        _check(some, labelled, sampling)
    few = emoji.subset(7)
    assert (len(few), few.names, len(few.pictures)) == (126, emoji.names[:7], 7)
    assert few.fingerprint() != emoji.fingerprint()


def _lines(*rows):
    keys = ("question_id", "image", "text", "label")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


def test_published_files_are_read_as_they_are(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        Image.new("RGB", (5, 3), "red").save(tmp_path / name)
    dog, cat = "Is there a dog in the image?", "Is there a cat in the imange?"
    rows = [(1, "b.jpg", dog, "yes"), (2, "b.jpg", cat, "no"), (3, "a.jpg", dog, "no")]
    (tmp_path / "coco_pope_random.json").write_text(_lines(*rows))
    (tmp_path / "coco_pope_popular.json").write_text(_lines(*rows[::-1]))
    data = load_pope(tmp_path)
    assert data.names == ("b.jpg", "a.jpg")
    assert data.pictures.pixels(1).shape == (3, 3, 5)
    assert [(one.sampling, one.number, one.yes) for one in data.questions[2:4]] == [
        ("random", 3, False),
        ("popular", 3, False),
    ]
    assert data.asked() == [("b.jpg", dog), ("b.jpg", cat), ("a.jpg", dog)]
    (tmp_path / "b.jpg").unlink()
    with pytest.raises(UserError, match=r"/b.jpg is missing; missing images: 1 of 2: put them into"):
        load_pope(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "random.json: content .*: expected an object"),
        (
            _lines((2, "a.jpg", "Is it?", "maybe")),
            "line 2 of .*: expected question_id, image, text, and the label yes or no",
        ),
        (_lines((1, "a.jpg", "Is that?", "no")), "line 2 of .*: duplicate question_id 1"),
        (_lines((2, "a.jpg", "Is it?", "no")), "'Is it\\?' of a.jpg is answered both yes and no"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    (tmp_path / "coco_pope_random.json").write_text(_lines((1, "a.jpg", "Is it?", "yes")) + line)
    with pytest.raises(UserError, match=message):
        load_pope(tmp_path)


def test_files_have_to_belong_together(tmp_path):
    (tmp_path / "coco_pope_random.json").write_text(_lines((1, "a.jpg", "Is it?", "yes")))
    (tmp_path / "coco_pope_popular.json").write_text(_lines((1, "a.jpg", "Is it?", "no")))
    with pytest.raises(UserError, match=r"line 1 of .*: 'Is it\?' of a.jpg is answered both yes and no"):
        load_pope(tmp_path)
    (tmp_path / "gqa_pope_random.json").write_text(_lines((1, "a.jpg", "Is it?", "yes")))
    with pytest.raises(UserError, match=r"has files of several sets, coco_pope, gqa_pope: give a folder"):
        load_pope(tmp_path)


def test_missing_files_are_said_with_their_address(tmp_path):
    with pytest.raises(UserError, match=r"no .*coco_pope_random.json: download .*RUCAIBox/POPE"):
        load_pope(tmp_path)
