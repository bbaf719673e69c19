import pytest
import torch

from antiphase.data import PAIR_SOURCES, SOURCES, load_data
from antiphase.data.folders import data_root
from antiphase.data.sources import IMAGENET_SETS, MEAN_PER_CLASS, PROBE_SETS, RETRIEVAL_SETS
from antiphase.errors import UserError


def test_every_source_has_a_one_line_description():
    assert all(text and "\n" not in text for text in SOURCES.values())


def test_the_sets_of_the_evaluation_suite_are_sources():
    assert set(PROBE_SETS) | set(IMAGENET_SETS) <= set(SOURCES)
    assert set(RETRIEVAL_SETS) <= set(PAIR_SOURCES)
    assert len(PROBE_SETS) == 9
    assert MEAN_PER_CLASS.issubset(PROBE_SETS)


def test_the_same_request_gives_the_same_images():
    for request in ({}, {"limit": 13}, {"limit": 13, "seed": 7}, {"split": "train", "limit": 5, "seed": 1}):
        first, second = load_data("digits", **request), load_data("digits", **request)
        assert first.fingerprint() == second.fingerprint()
        assert torch.equal(first.ids, second.ids)


def test_limit_and_seed_are_those_of_subset():
    whole = load_data("digits")
    assert load_data("digits", limit=13, seed=7).fingerprint() == whole.subset(13, 7).fingerprint()
    assert load_data("digits", limit=13).ids.tolist() == list(range(13))
    assert len(load_data("digits", limit=10_000)) == len(whole)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fashon-mnist", f"unknown data source 'fashon-mnist': expected one of {', '.join(SOURCES)}"),
        ("", "unknown data source '': expected one of"),
        ("folder:", "unknown data source 'folder:'"),
        ("digits:x", "unknown data source 'digits:x'"),
        (None, "data None: expected the name of a source, such as 'digits'"),
        ("x" * 5000, "xxx': expected one of digits"),
    ],
)
def test_an_unknown_source_is_one_line_with_the_nearest_names(name, line):
    with pytest.raises(UserError) as caught:
        load_data(name)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "split", "choices"),
    [
        ("digits", "val", "train, test"),
        ("cifar10", "Test", "train, test"),
        ("random", "all", "train, test"),
        ("imagenet", "dev", "train, val"),
        ("tiny-imagenet", "", "train, val"),
        ("specimen-fashion-mnist", "train", "test"),
        ("food101", "val", "train, test"),
        ("caltech101", "val", "train, test"),
        ("dtd", "all", "train, val, test"),
        ("imagenet-v2", "train", "test"),
    ],
)
def test_an_unknown_split_is_one_line_with_the_choices(name, split, choices):
    with pytest.raises(UserError, match=f"{name} has no split '{split}': expected one of {choices}$"):
        load_data(name, split=split)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"limit": 0}, "limit 0: expected an integer of at least 1"),
        ({"limit": -5}, "limit -5: expected an integer of at least 1"),
        ({"image_size": 0}, "image_size 0: expected an integer of at least 1"),
        ({"num_classes": 0}, "num_classes 0: expected an integer of at least 1"),
        ({"channels": 2}, "channels 2: expected an integer equal to 1 or 3"),
        ({"channels": 0}, "channels 0: expected an integer equal to 1 or 3"),
        ({"seed": -1}, "seed -1: expected an integer from 0"),
        ({"image_size": 32}, r"digits has images of \(1, 8, 8\), not \(1, 32, 32\), and arrays are not resized"),
        ({"channels": 3}, r"digits has images of \(1, 8, 8\), not \(3, 8, 8\), and arrays"),
        ({"num_classes": 1000}, "digits has 10 classes, not 1000"),
    ],
)
def test_a_number_that_cannot_be_served_is_one_line(wrong, line):
    with pytest.raises(UserError, match=line) as caught:
        load_data("digits", **wrong)
    assert "\n" not in str(caught.value)


def test_an_arrays_own_shape_may_be_spelled_out():
    assert len(load_data("digits", image_size=8, channels=1, num_classes=10)) == 359


def test_the_data_folder_is_the_argument_else_the_environment_else_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANTIPHASE_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "antiphase"
    monkeypatch.setenv("ANTIPHASE_DATA", "~/data")
    assert data_root() == tmp_path / "data"
    assert data_root(tmp_path / "here") == tmp_path / "here"
    with pytest.raises(UserError, match=str(tmp_path / "data" / "imagenet")):
        load_data("imagenet")
