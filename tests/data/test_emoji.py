"""The emoji sets: names, splits, pictures."""

import io
import json
import shutil
import tarfile

import pytest
import torch

from antiphase.data import load_data
from antiphase.data.emoji import GROUPS, ICON_SETS, concept_of, concepts_of, emoji_pairs, held_out, without_tone
from antiphase.data.folders import data_root
from antiphase.errors import UserError
from tests import needs


@pytest.fixture(scope="module")
def splits():
    return {split: emoji_pairs("openmoji", split, progress=False) for split in ("train", "test")}


def test_no_test_concept_was_seen_in_training(splits):
    concepts = {name: {concept_of(c[0]) for c in pairs.captions} for name, pairs in splits.items()}
    assert not concepts["train"] & concepts["test"]
    assert 0.12 < len(concepts["test"]) / sum(map(len, concepts.values())) < 0.18
    captions = {name: {text for c in pairs.captions for text in c} for name, pairs in splits.items()}
    assert not captions["train"] & captions["test"]


@pytest.mark.parametrize(
    "names",
    [
        "merperson, mermaid, merman, mermaid dark skin tone",
        "woman walking facing right light skin tone, person walking, man walking medium skin tone",
        "person, man, woman, boy, old man, man red hair, woman dark skin tone white hair, person blond hair, man beard",
        "Santa Claus, Mrs. Claus, Mx Claus",
        "prince, princess, person with crown",
        "red heart, blue heart, light blue heart, broken heart, two hearts, heart on fire",
        "one o’clock, seven-thirty",
        "cat, cat face, black cat, grinning cat, cat with tears of joy",
        "polar bear, bear",
        "new moon, waxing crescent moon, full moon face",
        "left arrow, up-down arrow, right arrow curving left",
        "umbrella, closed umbrella, umbrella with rain drops",
        "man in manual wheelchair facing right, manual wheelchair",
        "family man woman boy, family adult child, family",
        "kiss woman man dark skin tone light skin tone, kiss man man",
        "closed book, green book, books",
    ],
)
def test_variants_and_near_synonyms_are_one_concept(names):
    assert len(set(map(concept_of, names.split(", ")))) == 1


def test_different_things_are_different_concepts():
    names = "farmer, cook, walking, running, dog face, wolf, red heart, red circle, flag: Fiji, flag: Libya, white flag"
    names = names.replace("walking, running", "person walking, person running").split(", ")
    assert len(set(map(concept_of, names))) == len(names)


def test_concepts_are_transitive_and_prefixes_count_in_a_group_only():
    captions = [["bell"], ["bell pepper"], ["bellhop bell"], ["chime", "bellhop bell"], ["bell jar"]]
    assert concepts_of(captions, ["thing", "food", "thing", "thing", "thing"]) == ["bell", "bell pepper", *["bell"] * 3]


def test_of_the_skin_tones_one_is_kept_by_every_artist_alike(splits):
    every = emoji_pairs("openmoji", "test", progress=False, tones=True)
    names, kept = ([c[0] for c in pairs.captions] for pairs in (every, splits["test"]))
    toned = [name for name in kept if without_tone(name) != name]
    assert sorted(map(without_tone, toned)) == sorted({without_tone(n) for n in names if without_tone(n) != n})
    assert [name for name in names if without_tone(name) == name] == [n for n in kept if n not in toned]
    shares = splits["train"].labels.bincount(minlength=9) / len(splits["train"])
    assert float(shares.max()) < 0.4


RED, BLUE = (f'<rect width="4" height="4" fill="{color}"/>' for color in ("red", "blue"))


def _archive(root, package, **members):
    folder = root / "openmoji"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"iconify-json-{package}-1.0.0.tgz", "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}.json")
            entry.size = len(text := json.dumps(content).encode())
            tar.addfile(entry, io.BytesIO(text))


def test_an_icon_set_is_read_by_its_characters_or_by_names(tmp_path):
    icons = {
        "icons": {"fox": {"body": RED}, "carrot": {"body": RED}, "owl": {"body": BLUE, "width": 8}},
        "width": 4,
        "height": 4,
    }
    icons["aliases"] = {"lion": {"parent": "fox", "hFlip": True}, "strange": {"parent": "fox", "rotate": 1}}
    chars = {"1f98a": "fox", "1f989": "owl", "1f955": "carrot", "1f981-fe0f": "lion", "1f43a": "strange"}
    _archive(tmp_path, "twemoji", icons=icons, chars=chars)
    _archive(tmp_path, "emojione", icons=icons)
    for artist in ("twemoji", "emojione"):
        drawn = {
            several[0]: pairs.array[row]
            for split in ("train", "test")
            for pairs in [emoji_pairs(artist, split, tmp_path, progress=False)]
            for row, several in enumerate(pairs.captions)
        }
        assert set(drawn) == {"fox", "owl", "lion", "carrot"}
        assert drawn["fox"].double().mean((1, 2)).argmax() == 0
        assert drawn["lion"].double().mean((1, 2)).argmax() == 0
        assert drawn["owl"][:, 32, 8].tolist() == [0, 0, 255]
        assert drawn["owl"][:, 32, 48].tolist() == [255, 255, 255]


def test_several_artists_share_concepts_and_split(tmp_path):
    shutil.copytree(data_root() / "openmoji", tmp_path / "openmoji", ignore=shutil.ignore_patterns("mmvp-*", "*.tgz"))
    names = ["fox", "carrot", "rocket"]
    _archive(tmp_path, "twemoji", icons={"icons": {name: {"body": RED} for name in names}, "width": 4, "height": 4})
    both = emoji_pairs("some", "train", tmp_path, progress=False, artists=("openmoji", "twemoji"))
    one, other = (emoji_pairs(artist, "train", tmp_path, progress=False) for artist in ("openmoji", "twemoji"))
    assert both.captions == one.captions + other.captions
    assert torch.equal(both.array, torch.cat([one.array, other.array]))
    assert both.ids.tolist() == list(range(len(both)))


def test_missing_drawings_are_one_line_with_the_command(tmp_path):
    with pytest.raises(UserError, match=r"npm pack --pack-destination \S+ @iconify-json/twemoji ") as caught:
        emoji_pairs("blobmoji", "test", tmp_path)
    assert "\n" not in str(caught.value)
    assert all(package in str(caught.value) for package in ICON_SETS.values())
    (tmp_path / "openmoji").mkdir()
    (tmp_path / "openmoji" / "iconify-json-twemoji-1.2.5.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="delete it and get it again"):
        emoji_pairs("twemoji", "test", tmp_path)


def test_sizes_groups_and_captions(splits):
    assert 2000 < sum(map(len, splits.values())) < 2500
    for pairs in splits.values():
        assert pairs.array.shape[1:] == (3, 64, 64)
        assert set(pairs.labels.tolist()) == set(range(len(GROUPS)))
        assert all(name and not set(name) & set("_:") - {":"} for several in pairs.captions for name in several)
    named = {
        c[0]: GROUPS[label] for p in splits.values() for c, label in zip(p.captions, p.labels.tolist(), strict=True)
    }
    assert named["grinning face"] == "Smileys & Emotion"
    assert named["woman astronaut"] == "People & Body"
    assert named["flag: Fiji"] == "Flags"
    assert named["hot beverage"] == "Food & Drink"


def test_pictures_are_on_white_and_differ(splits):
    array = splits["test"].array
    assert float((array[:, :, 0, 0] == 255).all(1).double().mean()) > 0.9
    assert len({picture.numpy().tobytes() for picture in array}) > 0.95 * len(array)  # some men are women
    for color, channel in (("red", 0), ("green", 1), ("blue", 2)):
        circles = [p.array[i] for p in splits.values() for i, c in enumerate(p.captions) if c[0] == f"{color} circle"]
        middle = circles[0][:, 28:36, 28:36].double().mean((1, 2))
        assert int(middle.argmax()) == channel


@needs.noto_font
def test_the_other_artist_draws_the_same_test_concepts(splits):
    other = emoji_pairs("noto-emoji", "test", progress=False)
    names = {several[0] for several in splits["test"].captions}
    shared = [several[0] for several in other.captions if several[0] in names]
    assert len(shared) > 0.9 * len(other)
    assert all(held_out(concept_of(several[0])) for several in other.captions)
    index = splits["test"].captions.index(other.captions[0])
    assert not torch.equal(other.array[0], splits["test"].array[index])


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
