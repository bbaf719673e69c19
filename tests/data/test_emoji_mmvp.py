"""MMVP's format from held-out emoji."""

import csv
import shutil

import pytest

from antiphase.data import load_pairs
from antiphase.data.decoding import decode_whole
from antiphase.data.folders import data_root
from antiphase.evaluation.mmvp import emoji_mmvp, load_mmvp


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the data sets, and the set that was made in it."""
    root = tmp_path_factory.mktemp("data")
    load_pairs("openmoji", split="test", progress=False)  # drawn once for all tests
    shutil.copytree(data_root() / "openmoji", root / "openmoji", ignore=shutil.ignore_patterns("mmvp-*"))
    return root, emoji_mmvp(root, progress=False)


def test_pairs_differ_in_one_thing_and_none_was_trained_on(made):
    _, pairs = made
    assert pairs.pattern_names == ("Facing right", "Skin tone", "Woman or man")
    assert [pairs.patterns.count(number) for number in range(3)] == [15, 15, 15]
    trained = {name for several in load_pairs("openmoji", split="train", progress=False).captions for name in several}
    changes = {
        0: lambda one: " ".join([*one.split()[:2], "facing right", *one.split()[2:]]),  # "woman walking …"
        1: lambda one: one.replace("light skin tone", "dark skin tone"),
        2: lambda one: one.replace("woman", "man"),
    }
    for pattern, (one, two) in zip(pairs.patterns, pairs.statements, strict=True):
        assert changes[pattern](one) == two != one
        assert not {one, two} & trained
    assert len({statement for two in pairs.statements[:15] for statement in two}) == 30
    assert decode_whole(pairs.root / pairs.files[0][1]).shape == (3, 64, 64)


def test_the_set_is_in_mmvps_own_format_and_made_once(made):
    root, pairs = made
    with (pairs.root / "Questions.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["Question ID", "Type", "Statement"]
    assert [row[0] for row in rows[1:]] == [str(number) for number in range(1, 91)]
    assert load_mmvp(pairs.root).fingerprint() == pairs.fingerprint()
    times = {path: path.stat().st_mtime_ns for path in pairs.root.rglob("*.jpg")}
    assert len(times) == 90
    assert emoji_mmvp(root, progress=False).fingerprint() == pairs.fingerprint()
    assert {path: path.stat().st_mtime_ns for path in pairs.root.rglob("*.jpg")} == times
