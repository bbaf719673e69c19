"""Prompt ensembles."""

import pytest

from antiphase.errors import UserError
from antiphase.evaluation.zero_shot import class_prompts

NAMES = ("mug", "lamp")


def test_the_named_ensembles_have_as_many_templates_as_their_name_says():
    for name in ("80", "7", "1"):
        mug, lamp = class_prompts(name, NAMES, None)
        assert len(mug) == len(lamp) == int(name)
        assert all("mug" in text for text in mug)
    eighty, seven = (set(class_prompts(name, ["mug"], None)[0]) for name in ("80", "7"))
    assert "itap of a mug." in seven < eighty
    assert class_prompts("1", ["mug"], None) == (("a photo of a mug.",),)


def test_own_texts_templates_and_files(tmp_path):
    assert class_prompts("own", NAMES, [["a cup", "mug"], ["lamp"]]) == (("a cup", "mug"), ("lamp",))
    path = tmp_path / "mine.txt"
    path.write_text("a {} of {}\n\n  the {}  \n", encoding="utf-8-sig")
    assert class_prompts(str(path), NAMES, None)[1] == ("a lamp of lamp", "the lamp")
    assert class_prompts("a {}\nthe {}", NAMES, None)[0] == ("a mug", "the mug")


def test_refusals_name_what_is_wrong(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("a {}\nno place\n")
    with pytest.raises(UserError, match="template 2, 'no place'"):
        class_prompts(str(path), NAMES, None)
    with pytest.raises(UserError, match="--prompt: template 2, 'an emoji'"):
        class_prompts("a {}\nan emoji", NAMES, None)
    for line in ("'a bad photo of a {}.',", '["a photo of a {}."]', '"a {}"'):  # copied from code, JSON or a table
        path.write_text(line)
        with pytest.raises(UserError, match="expected plain text, without quotes"):
            class_prompts(str(path), NAMES, None)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="or a readable file"):
        class_prompts(str(path), NAMES, None)
    path.write_text("\n")
    with pytest.raises(UserError, match="has no templates"):
        class_prompts(str(path), NAMES, None)
    with pytest.raises(UserError, match="templates '81': expected one of own, 80, 7, 1"):
        class_prompts("81", NAMES, None)
    with pytest.raises(UserError, match="the data set has no texts"):
        class_prompts("own", NAMES, None)
