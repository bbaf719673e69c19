"""Names, training seeds and preprocessing of models as the command line and Python give them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import antiphase as ap
from antiphase.commands.audit import AuditOptions
from antiphase.commands.audit.run import attack_settings
from antiphase.commands.lineup import seeded
from antiphase.commands.options import read_models
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.models.card import mean_lambdas
from antiphase.report.figure import chance

QUICK = {"eps": "1/255", "limit": 4, "sense_limit": 0, "steps": 1, "quiet": True}


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("typed", "models"),
    [
        ("a=runs/x,b=runs/y", ("a=runs/x", "b=runs/y")),
        ("python:n.py:f?a=1,b=2", ("python:n.py:f?a=1,b=2",)),
        ("m=python:n.py:f?a=1,b=python:n.py:f", ("m=python:n.py:f?a=1", "b=python:n.py:f")),
    ],
)
def test_a_name_before_a_scheme_begins_a_model_and_one_before_a_value_a_setting(typed, models):
    assert read_models(typed) == models


def test_a_name_and_a_seed_are_on_the_card():
    card = load_model("mine=specimen:vit-0").card
    assert (card.name, card.spec, card.seed) == ("mine", "specimen:vit-0", 0)
    with pytest.raises(UserError, match="specimen:vit-0@seed=4: was trained with seed 0"):
        load_model("specimen:vit-0@seed=4")


def test_seeds_expand_one_name_or_number_several():
    assert seeded(["a={seed}"], [3, 4]) == ["a=3@seed=3", "a=4@seed=4"]
    assert seeded(["a", "b@seed=9"], [3, 4]) == ["a@seed=3", "b@seed=9"]
    with pytest.raises(UserError, match="seeds: 3 for 2 models"):
        seeded(["a", "b"], [1, 2, 3])


def test_a_dictionary_names_modules_and_seeds_average_over_them():
    models, twins = ([linear() for _ in range(2)] for _ in range(2))
    data = ap.load_data("digits", limit=4)
    result = ap.audit({"mine": models}, against={"twin": twins}, seeds=[0, 1], data=data, **QUICK)
    assert [model["name"] for model in result.summary["models"]] == ["mine-0", "mine-1", "twin-0", "twin-1"]
    assert [family.name for family in result.families] == ["mine", "twin"]
    assert not any(hasattr(model, "card") for model in models + twins)


def test_one_model_under_two_names_and_data_by_name():
    net = linear()
    result = ap.audit({"a": net}, against={"b": net}, data="digits", **QUICK)
    assert result.pairs == [("a", "b")]
    assert result.comparisons["difference"].to_list() == [0.0]


def test_a_training_stands_for_its_directory(tmp_path):
    data = ap.load_data("digits", limit=8)
    trained = ap.train(linear(), data, epochs=1, quiet=True, out=tmp_path / "run")
    seen = {name: ap.load_model(name, module=linear()).card.spec for name in (trained, tmp_path / "run")}
    assert set(seen.values()) == {str((tmp_path / "run").resolve())}
    how = {"dim": 16, "heads": 2, "depth": 1, "epochs": 1, "quiet": True}
    pair = [ap.train("vit", data, seed=seed, out=tmp_path / f"{seed}", **how) for seed in (0, 1)]
    result = ap.audit({"mine": pair[0]}, against={"twin": pair[1]}, data=data, **QUICK)
    assert result.pairs == [("mine", "twin")]
    many = {"many": [pair[0], pair[1]]}
    alone = ap.certify({"mine": pair[0]}, data=data, samples=20, limit=2, quiet=True)
    assert alone.summary["models"][0]["name"] == "mine"
    with pytest.raises(UserError, match="2 models; expected one"):
        ap.certify(many, data=data)
    with pytest.raises(UserError, match="not on disk: give it out=, or save it"):
        ap.audit(ap.train("vit", data, **how), data=data, **QUICK)


def test_seeds_of_one_model_without_random_weights_are_refused():
    with pytest.raises(UserError, match=r"seeds: of .*two have the same weights"):
        ap.audit({"mine": linear()}, seeds=[0, 1], data="digits", **QUICK)


@pytest.fixture
def photos(tmp_path):
    for number, label in enumerate("abc"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for photo in range(3):
            pixels = np.full((20, 40, 3), 40 * number + photo, np.uint8)
            pixels[:, :10] = 255  # only squashing shows the left edge
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{photo}.png")
    (tmp_path / "photos" / "a" / "0.png").write_bytes(b"broken")
    return f"folder:{tmp_path / 'photos'}"


def test_resize_and_size_change_the_pixels_and_are_recorded(photos, tmp_path):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))
    prints, told = set(), {}
    for resize in ("squash", "crop"):
        how = {"image_size": 16, "resize": resize, "skip_bad": True, "out": tmp_path / resize}
        result = ap.audit(net, data=photos, **QUICK | how)
        told[resize] = result.record["images"]
        prints.add(result.record["data_fingerprint"])
        card = json.loads((tmp_path / resize / "card.json").read_text())
        assert card["data"]["images"] == told[resize]
        assert told[resize] in (tmp_path / resize / "report.html").read_text()
    assert len(prints) == 2
    assert told["squash"].startswith("16×16 pixels, 3 channels, both sides 16")
    assert told["crop"].startswith("16×16 pixels, 3 channels, shorter side 16")
    with pytest.raises(UserError, match="resize crop: digits has no image files to resize"):
        ap.audit(linear(), data="digits", resize="crop", **QUICK)


def test_lambda_that_depends_on_the_tokens_is_in_the_summary(tmp_path):
    data = ap.load_data("digits", limit=8)
    sizes = {"depth": 2, "dim": 16, "heads": 2, "parameterisation": "gate", "epochs": 1}
    ap.train("diffvit", data, out=tmp_path / "gate", quiet=True, **sizes)
    model = load_model(str(tmp_path / "gate"))
    assert mean_lambdas(model) == []  # without images
    (about,) = ap.audit({"gate": model}, data=data, **QUICK).summary["models"]
    assert about["lambda"] == pytest.approx(mean_lambdas(model, data.subset(4, 0).images(range(4))), abs=1e-5)


def test_settings_name_no_more_targets_than_other_classes():
    options = AuditOptions(model=("m",), attack="autoattack")
    assert attack_settings(options, classes=4)["apgd-t"]["targets"] == 3
    assert attack_settings(options, classes=10)["fab-t"]["targets"] == 9


def test_a_limit_counts_readable_images(photos):
    images = ap.load_data(photos, limit=5, skip_bad=True, progress=False)
    assert (len(images), images.skipped) == (5, ("a/0.png",))
    order = np.random.default_rng(0).permutation(9).tolist()
    drawn = ap.load_data(photos, limit=5, seed=0, skip_bad=True, progress=False)
    assert drawn.ids.tolist() == sorted([row for row in order if row != 0][:5])


def test_a_path_without_its_kind_is_told_the_kind(photos, tmp_path):
    path = photos.partition(":")[2]
    with pytest.raises(UserError, match=f"did you mean folder:{path}"):
        ap.load_data(path)
    with pytest.raises(UserError, match=r"did you mean python:net.py:build"):
        load_model("net.py:build")


def test_a_single_logit_tells_two_classes(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).requires_grad_(False)
    model[1].weight.fill_(1.0)
    model[1].bias.fill_(-2.0)
    pixels = torch.rand(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = (model(pixels)[:, 0] > 0).long()
    assert 0 < labels.sum() < 40
    data = ArrayImages(
        name="two", split="test", class_names=("a", "b"), ids=torch.arange(40), labels=labels, pixels=pixels
    )
    result = ap.attack(model, data=data, attack="apgd-t", steps=3, eps="0.5", quiet=True, out=tmp_path)
    assert result.frame()["clean_prediction"].to_list() == labels.tolist()
    assert result.record["settings"]["apgd-t"]["targets"] == 1
    assert result.frame()["success"].any()
    assert not any("chance" in warning for warning in result.warnings)
    assert chance(result.summary["models"]) == 0.5
