"""Training of a model of a user's own code: by specification and as a module, from weights to a directory and back."""

import copy
import json
import os
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import antiphase as ap
from antiphase.errors import UserError
from antiphase.models import checkpoints, load_model, write_model
from antiphase.models.checkpoints import read_recipe

CODE = """
import torch
from torch import nn


class Net(nn.Module):
    image_shape = (1, 8, 8)

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))


def build(width=8):
    return Net(width)
"""
QUICK = {"epochs": 1, "limit": 64, "batch_size": 32, "precision": "float32", "quiet": True}


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    return "python:net.py:build"


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize("variant", [None, "pgd", "fast", "free"])
def test_a_python_model_is_trained_and_loaded_from_its_file_again(code, variant, monkeypatch, tmp_path):
    adversary = {} if variant is None else {"adversarial": "8/255", "adversarial_variant": variant}
    result = ap.train(f"{code}?width=4", "digits", out="run", **QUICK, **adversary)
    assert ("robust_accuracy" in result.summary) == (variant is not None)
    start, trained = load_model(f"{code}?width=4").state_dict(), load_model("run")
    assert not torch.equal(start["head.weight"], trained.state_dict()["head.weight"])
    assert trained.state_dict()["body.1.num_batches_tracked"].dtype == torch.int64
    assert trained.card.recipe["data"] == "digits"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    again = load_model("../run")
    assert torch.equal(again.head.weight, trained.head.weight)


def test_the_same_command_trains_the_same_weights_with_dropout(code):
    for out in ("one", "two"):
        ap.train(code, "digits", out=out, seed=3, **QUICK)
    one, two = (load_model(out).state_dict() for out in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert load_model("one").card.seed == 3


def test_code_that_was_edited_is_said_and_code_that_moved_is_refused(code, tmp_path):
    ap.train(code, "digits", out="run", **QUICK)
    (tmp_path / "net.py").write_text(CODE + "\n# edited\n")
    with pytest.warns(UserWarning, match=r"run: python:.*net.py:build was edited after the training"):
        model = load_model("run")
    assert "was edited" in model.card.doubts[0]
    os.rename("net.py", "moved.py")
    with pytest.raises(UserError, match=r"run: trained from python:net.py:build, and .*net.py is not there"):
        load_model("run")


def test_a_run_that_says_it_was_trained_from_itself_is_refused(code, tmp_path):
    ap.train(code, "digits", out="run", **QUICK)
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    recipe["model"]["spec"] = "run"
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(UserError, match="run: its recipe says that it was trained from itself; train again"):
        load_model("run")


def test_a_run_of_own_code_needs_permission_like_the_code_itself(code):
    from antiphase.commands.audit import AuditOptions
    from antiphase.commands.loading import check_code

    ap.train(code, "digits", out="run", **QUICK)
    ap.train("run", "digits", out="run-2", **QUICK)
    for spec in ("run", "run-2", f"mine={code}", code):
        with pytest.raises(UserError, match="add --run-code"):
            check_code(AuditOptions(model=(spec,)), allowed=False, whose="card")
    check_code(AuditOptions(model=("specimen:vit-0",)), allowed=False, whose="card")


def test_a_module_is_trained_in_place_and_its_weights_are_read_back(tmp_path):
    net, data = module(), ap.load_data("digits", limit=64)
    before = copy.deepcopy(net).state_dict()
    result = ap.train(net, data, held_out=data, out=tmp_path / "run", **QUICK)
    assert 0 <= result.summary["accuracy"] <= 1
    assert not torch.equal(before["1.weight"], net[1].weight)
    assert net.training
    assert not hasattr(net, "card")
    with pytest.raises(UserError, match=r"trained from a Sequential of a Python session; give one"):
        load_model(str(tmp_path / "run"))
    again = load_model(str(tmp_path / "run"), module=module())
    assert torch.equal(again[1].weight, net[1].weight)
    assert again.card.num_classes == 10


def test_images_in_memory_have_no_test_split_of_their_own():
    images = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    summary = ap.train("vit", (images, np.arange(40) % 4), dim=16, heads=2, depth=1, **QUICK).summary
    assert "accuracy" not in summary
    assert summary["loss"] > 0


def test_an_exported_python_model_loads_again(code):
    model = load_model(code)
    write_model(model, "exported")
    again = load_model("exported")
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again(x), model(x))
    assert read_recipe(write_model(again, "twice").parent) == read_recipe(write_model(model, "one").parent)


def test_files_left_out_of_a_training_are_counted(tmp_path):
    for split, label, photo in product(("train", "val"), "ab", range(4)):
        place = tmp_path / "photos" / split / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16)).save(place / f"{photo}.png")
    for split in ("train", "val"):
        (tmp_path / "photos" / split / "a" / "0.png").write_bytes(b"broken")
    how = {"image_size": 16, "dim": 16, "heads": 2, "depth": 1, "patch_size": 8, "skip_bad": True}
    result = ap.train("vit", f"folder:{tmp_path / 'photos'}", **how, **QUICK)
    assert [line.partition(": ")[2].partition(",")[0] for line in result.warnings] == ["1 left out"] * 2
    assert result.warnings[0].endswith("a/0.png")


def test_a_new_head_has_the_classes_of_the_data(code):
    images = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    data = ap.load_data(images, np.arange(40) % 4, class_names=list("abcd"))
    with pytest.raises(UserError, match="has 10 classes, array 4; give it a new last layer with --new-head"):
        ap.train(code, data, **QUICK)
    ap.train(code, data, new_head=True, out="run", **QUICK)
    trained = load_model("run")
    assert trained.head.out_features == trained.card.num_classes == 4
    assert trained.card.class_names == tuple("abcd")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 2}, "depth 2: is of vit, diffvit, vit-norm, not of python:net.py:build"),
        ({"model": "clip"}, "is trained by antiphase train-clip"),
        ({"model": "convnet"}, "expected one of vit, diffvit, vit-norm, or a model such as"),
        ({"adversarial_steps": 2}, "adversarial_steps 2: needs an ε; give --adversarial"),
        ({"model": "vit", "new_head": True}, "new_head: a vit begins with random weights"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(code, options, words, run_cli):
    typed = {"model": code, **options}
    flags = [
        word
        for name, value in typed.items()
        for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
    ]
    status, _, errors = run_cli("train", "--data", "digits", "--out", "run", *flags)
    assert status == 2
    assert words in errors
    assert not os.path.exists("run")


def test_a_module_in_memory_gets_the_new_head_with_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    ap.train(net, "digits", new_head=True, out="run", **QUICK)
    assert net[1].out_features == 10
    assert torch.equal(net[1].weight, load_file("run/model.safetensors")["1.weight"])


def test_a_killed_run_of_a_model_with_a_part_called_module_resumes(tmp_path, monkeypatch):
    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

        def forward(self, x):
            return self.module(x)

    def made():
        torch.manual_seed(0)
        return Wrap()

    whole = made()
    ap.train(whole, "digits", out=tmp_path / "whole", **QUICK | {"epochs": 2})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ap.train(made(), "digits", out=tmp_path / "killed", **QUICK | {"epochs": 2})
    resumed = made()
    ap.train(resumed, "digits", out=tmp_path / "killed", **QUICK | {"epochs": 2})
    assert torch.equal(whole.module[1].weight, resumed.module[1].weight)


def test_held_out_classes_are_matched_by_name(tmp_path):
    shades = np.repeat([0.1, 0.9], 20)[:, None, None, None] * np.ones((1, 1, 8, 8))
    labels = np.repeat([0, 1], 20)
    data = ap.load_data(shades.astype(np.float32), labels, class_names=["dark", "light"])
    held_out = ap.load_data(shades.astype(np.float32), 1 - labels, class_names=["light", "dark"])
    how = {"depth": 1, "dim": 16, "heads": 2, "patch_size": 4, **QUICK, "epochs": 8, "learning_rate": 3e-3}
    alike, turned = (ap.train("vit", data, held_out=other, **how).frame()["accuracy"][-1] for other in (data, held_out))
    assert alike == turned
    others = ap.load_data(shades.astype(np.float32), labels, class_names=["dark", "bright"])
    with pytest.raises(UserError, match="class 'bright' of array: expected one of the classes of array"):
        ap.train("vit", data, held_out=others, **how)
