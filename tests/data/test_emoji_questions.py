"""Conversations about the emoji scenes: true answers, balanced whatever was asked before, keyed by the scene."""

import pytest
import torch

from antiphase.data.conversations import load_conversations
from antiphase.data.emoji_objects import theme_of
from antiphase.data.emoji_questions import ASK_CAPTION


@pytest.fixture(scope="module")
def told():
    """The first 1,500 of stage 2, without their images."""
    whole = load_conversations("emoji-objects", stage=2)
    return whole, [whole[at] for at in range(1500)]


def _thing(question):
    return question.removeprefix("Is there a").removeprefix("n").removesuffix(" in the image?").strip()


def test_answers_are_true_and_the_caption_comes_last(told):
    whole, conversations = told
    near = []
    for one, objects, captions in zip(
        conversations, whole.scenes.objects, whole.scenes.captions, strict=False
    ):
        there = [each.name for each in objects]
        *asked, last = one.turns
        assert last == (ASK_CAPTION, captions[0])
        assert len({question for question, _ in asked}) == len(asked) == len(there)
        assert all((_thing(question) in there) == (answer == "Yes") for question, answer in asked)
        absent = [_thing(question) for question, answer in asked if answer == "No"]
        near += [theme_of(name) in {theme_of(each) for each in there} for name in absent]
    assert 0.5 < sum(near) / len(near) < 0.7  # half by rule, others by chance


def test_an_answer_tells_nothing_of_the_next(told):
    _, conversations = told
    answers = [[answer == "Yes" for _, answer in one.turns[:-1]] for one in conversations]
    assert sum(map(sum, answers)) / sum(map(len, answers)) == pytest.approx(0.5, abs=0.025)
    pairs = [(own[0], own[1]) for own in answers]
    after_yes, after_no = ([second for first, second in pairs if first == value] for value in (True, False))
    assert sum(after_yes) / len(after_yes) == pytest.approx(sum(after_no) / len(after_no), abs=0.08)


def test_a_conversation_depends_on_its_scene_and_the_seed_alone(told):
    whole, conversations = told
    few = load_conversations("emoji-objects", stage=2, limit=3)
    again = {one.id: one for one in (few[at] for at in range(3))}
    same = [one for one in conversations if one.id in again]
    assert all(one.turns == again[one.id].turns for one in same)
    other = load_conversations("emoji-objects", stage=2, seed=1)
    assert [other[at].turns for at in range(9)] != [one.turns for one in conversations[:9]]
    captions = load_conversations("emoji-objects", stage=1)
    assert captions[0].turns == conversations[0].turns[-1:]
    assert torch.equal(captions[0].image, whole.scenes.pixels(0).float() / 255)
    assert len({one.fingerprint() for one in (whole, other, captions)}) == 3
