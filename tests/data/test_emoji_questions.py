"""Conversations about the emoji scenes: true answers, balanced for each object, keyed by the scene."""

from collections import Counter, defaultdict

import pytest
import torch

from antiphase.data.conversations import ASK_CAPTION, load_conversations
from antiphase.data.emoji import OBJECTS, emoji_objects, theme_of
from antiphase.data.folders import data_root


@pytest.fixture(scope="module")
def told():
    """The scenes, the conversations of stage 2, and the first 1,500."""
    whole = load_conversations("emoji-objects", stage=2)
    scenes = emoji_objects("train", data_root(), progress=False)  # as the conversations do, so drawn once
    return scenes, whole, [whole[index] for index in range(1500)]


def _thing(question):
    return question.removeprefix("Is there a").removeprefix("n").removesuffix(" in the image?").strip()


def test_answers_are_true_and_some_have_the_caption_in_place_of_the_image(told):
    scenes, whole, conversations = told
    kinds = Counter()
    for one, objects, captions in zip(conversations, scenes.objects, scenes.captions, strict=False):
        if one.turns[0][0] == ASK_CAPTION:
            assert one.turns == ((ASK_CAPTION, captions[0]),)
            assert one.image is not None
            kinds["caption"] += 1
            continue
        names = [thing.name for thing in objects]
        (first, answer), *rest = one.turns
        if one.image is None:
            assert first.startswith(f"The image shows {captions[0]}.\nIs there a")
        kinds["image" if one.image is not None else "text"] += 1
        turns = [(first.rpartition("\n")[2], answer), *rest]
        assert len({question for question, _ in turns}) == len(turns)
        assert all((_thing(question) in names) == (answer == "Yes") for question, answer in turns)
    assert [whole.has_image(index) for index in range(1500)] == [one.image is not None for one in conversations]
    assert [kinds[kind] / 1500 for kind in ("caption", "text")] == pytest.approx([0.1, 0.2], abs=0.03)


def test_neither_name_nor_theme_tells_of_an_answer_and_the_first_little_of_the_second(told):
    scenes, whole, _ = told
    conversations = [
        (scene, [(_thing(question.rpartition("\n")[2]), answer == "Yes") for question, answer in turns])
        for scene, turns in ((scene, whole.look(scene)[1]) for scene in range(len(whole)))
        if turns[0][0] != ASK_CAPTION
    ]
    every = [turns for _, turns in conversations]
    assert sum(map(len, every)) / len(every) == pytest.approx(5, abs=0.3)
    by_name, by_theme = defaultdict(list), defaultdict(list)
    for scene, turns in conversations:
        themes = Counter(theme_of(thing.name) for thing in scenes.objects[scene])
        most = min(themes, key=lambda theme: (-themes[theme], theme))
        for name, yes in turns:
            by_name[name].append(yes)
            by_theme[most, theme_of(name) == most].append(yes)
    assert set(by_name) == set(OBJECTS)
    for answers in (*by_name.values(), *by_theme.values()):
        error = 0.5 / len(answers) ** 0.5
        assert sum(answers) / len(answers) == pytest.approx(0.5, abs=4 * error)
    pairs = [(turns[0][1], turns[1][1]) for turns in every if len(turns) > 1]
    after_yes, after_no = ([second for first, second in pairs if first == value] for value in (True, False))
    assert sum(after_yes) / len(after_yes) == pytest.approx(0.47, abs=0.02)
    assert sum(after_no) / len(after_no) == pytest.approx(0.56, abs=0.02)


def test_a_conversation_depends_on_its_scene_and_the_seed_alone(told):
    scenes, whole, conversations = told
    few = load_conversations("emoji-objects", stage=2, limit=3)
    again = {one.id: one for one in (few[index] for index in range(3))}
    same = [one for one in conversations if one.id in again]
    assert all(one.turns == again[one.id].turns for one in same)
    other = load_conversations("emoji-objects", stage=2, seed=1)
    assert [other[index].turns for index in range(9)] != [one.turns for one in conversations[:9]]
    captions = load_conversations("emoji-objects", stage=1)
    assert all(captions.has_image(index) for index in range(50))
    assert captions[0].turns == ((ASK_CAPTION, scenes.captions[0][0]),)
    assert torch.equal(captions[0].image, scenes.pixels(0).float() / 255)
    assert len({one.fingerprint() for one in (whole, other, captions)}) == 3
