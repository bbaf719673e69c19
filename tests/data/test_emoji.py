"""The emoji sets: names, splits, pictures."""

import pytest
import torch

from antiphase.data import load_data
from antiphase.data.emoji import GROUPS, concept_of, emoji_pairs, held_out
from antiphase.errors import UserError
from tests import needs


@pytest.fixture(scope="module")
def splits():
    return {split: emoji_pairs("openmoji", split, progress=False) for split in ("train", "test")}


def test_no_test_concept_was_seen_in_training(splits):
    concepts = {name: {concept_of(c[0]) for c in pairs.captions} for name, pairs in splits.items()}
    assert not concepts["train"] & concepts["test"]
    assert 0.12 < len(concepts["test"]) / sum(map(len, concepts.values())) < 0.18


def test_sizes_groups_and_captions(splits):
    assert 3500 < sum(map(len, splits.values())) < 4500
    for pairs in splits.values():
        assert pairs.array.shape[1:] == (3, 64, 64)
        assert set(pairs.labels.tolist()) == set(range(len(GROUPS)))
        assert all(
            name and not set(name) & set("_:") - {":"} for several in pairs.captions for name in several
        )
    named = {
        c[0]: GROUPS[label]
        for p in splits.values()
        for c, label in zip(p.captions, p.labels.tolist(), strict=True)
    }
    assert named["grinning face"] == "Smileys & Emotion"
    assert named["woman astronaut medium skin tone"] == "People & Body"
    assert named["flag: Fiji"] == "Flags"
    assert named["hot beverage"] == "Food & Drink"


def test_pictures_are_on_white_and_differ(splits):
    array = splits["test"].array
    assert float((array[:, :, 0, 0] == 255).all(1).double().mean()) > 0.9
    assert len({picture.numpy().tobytes() for picture in array}) > 0.95 * len(array)  # some men are women
    for color, channel in (("red", 0), ("green", 1), ("blue", 2)):
        found = [
            p.array[at]
            for p in splits.values()
            for at, c in enumerate(p.captions)
            if c[0] == f"{color} circle"
        ]
        middle = found[0][:, 28:36, 28:36].double().mean((1, 2))
        assert int(middle.argmax()) == channel


@needs.noto_font
def test_the_other_artist_draws_the_same_test_concepts(splits):
    other = emoji_pairs("noto-emoji", "test", progress=False)
    names = {several[0] for several in splits["test"].captions}
    shared = [several[0] for several in other.captions if several[0] in names]
    assert len(shared) > 0.9 * len(other)
    assert all(held_out(concept_of(several[0])) for several in other.captions)
    at, own = other.captions.index(other.captions[0]), splits["test"].captions.index(other.captions[0])
    assert not torch.equal(other.array[at], splits["test"].array[own])


def test_prompts_of_the_groups_are_of_training_concepts(splits):
    prompts = splits["test"].prompts
    assert len(prompts) == len(GROUPS)
    tested = {several[0] for several in splits["test"].captions}
    assert not tested & {text for texts in prompts for text in texts}


def test_the_set_is_a_source_of_labelled_images(splits):
    images = load_data("openmoji", limit=5)
    assert images.image_shape == (3, 64, 64)
    assert images.class_names == GROUPS
    assert images.prompts == splits["test"].prompts
    assert torch.equal(images.images(range(5)), splits["test"].array[:5].float() / 255)


def test_another_split_is_refused():
    with pytest.raises(UserError, match=r"has no split 'val': expected one of train, test$"):
        emoji_pairs("openmoji", "val")
