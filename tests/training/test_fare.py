"""FARE: the loss and its gradient against the definition, what stays as it was, resume, refusals."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import antiphase as ap
from antiphase.attacks.threat import random_point
from antiphase.data.images import ArrayImages
from antiphase.models.card import card_of
from antiphase.models.clip import build_clip
from antiphase.models.zoo import fingerprint
from antiphase.training import loop
from antiphase.training.adversarial import ascend, start_keys
from antiphase.training.fare import ADVERSARY, FareRecipe, fine_tune
from tests.training.tiny_pairs import tiny_recipe

EPS = 8 / 255


def images(count=12):
    draw = torch.Generator().manual_seed(3)
    return ArrayImages(
        name="noise",
        split="train",
        ids=torch.arange(count),
        labels=torch.zeros(count, dtype=torch.int64),
        class_names=("one",),
        pixels=torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=draw),
    )


def start(**fields):
    model = build_clip(tiny_recipe().model, 1)
    about = {"data": "noise", "data_fingerprint": "", "start": fingerprint(model), "batch_size": 4}
    fare = ADVERSARY | {"eps": EPS, "steps": 3}
    return model, FareRecipe(model=model.config, fare=fare, **about | {"learning_rate": 1e-3} | fields)


def test_a_step_follows_the_gradient_of_the_largest_distance_that_pgd_finds(tmp_path, monkeypatch):
    model, recipe = start(epochs=1, batch_size=12)
    original, data = copy.deepcopy(model), images()
    seen = {}

    def look(task, step, gradients):
        loss, _ = next(gradients)
        seen["loss"] = float(loss)
        seen["gradient"] = task.model.image_projection.grad.clone()
        return loss, 12

    monkeypatch.setattr(loop, "_step", look)
    fine_tune(recipe, model, data, tmp_path, progress=False)
    clean = data.images(range(12))

    def distance(network, x):
        return (network.encode_image(x) - original.encode_image(clean).detach()).square().sum(1)

    # by hand, from the same point: three steps of 1/255 along the sign of the gradient
    x = random_point(clean, torch.full((12,), EPS), "linf", (0.0, 1.0), start_keys(0, 0, data.ids))
    for _ in range(3):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(distance(original, x).sum(), x)
        x = (x.detach() + slope.sign() / 255).clamp(clean - EPS, clean + EPS).clamp(0, 1)
    mean = distance(original, x).mean()
    (expected,) = torch.autograd.grad(mean, original.image_projection)
    assert seen["loss"] == pytest.approx(float(mean.detach()), rel=1e-4)
    torch.testing.assert_close(seen["gradient"], expected, rtol=1e-3, atol=1e-5)


def test_perturbed_images_move_less_afterwards_and_the_text_tower_is_as_before(tmp_path):
    model, recipe = start(epochs=30)
    original, data = copy.deepcopy(model), images()
    log = fine_tune(recipe, model, data, tmp_path, progress=False)
    assert log[-1]["loss"] < log[0]["loss"] / 2
    clean = data.images(range(12))
    still, keys = original.encode_image(clean).detach(), start_keys(5, 0, data.ids)

    def farthest(network):
        def slope(x):
            return torch.autograd.grad((network.encode_image(x) - still).square().sum(), x)[0]

        x = ascend(clean, recipe.fare, EPS, keys, slope, 20)
        return (network.encode_image(x) - still).square().sum(1).mean()

    assert farthest(model) < farthest(original) / 2
    assert torch.equal(model.encode_text(["a dog"]), original.encode_text(["a dog"]))


def test_a_run_that_stops_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    model, recipe = start(epochs=3)
    fine_tune(recipe, model, images(), tmp_path / "whole", progress=False)
    step, taken, clock = loop._step, [], itertools.count(step=10)

    def stops(*given):
        if len(taken) == 6:
            raise KeyboardInterrupt
        taken.append(1)
        return step(*given)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # each step is saved
    monkeypatch.setattr(loop, "_step", stops)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(start(epochs=3)[1], start()[0], images(), tmp_path / "stopped", progress=False)
    assert (tmp_path / "stopped/state.safetensors").exists()
    taken.clear()
    fine_tune(start(epochs=3)[1], start()[0], images(), tmp_path / "stopped", progress=False)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert 0 < len(taken) < 9


def test_the_command_writes_a_model_that_loads_and_attacks_like_any_other(tmp_path, run_cli):
    base = build_clip(tiny_recipe().model, 1)
    ap.models.write_model(base, tmp_path / "clip")
    data = images()
    np.savez(
        tmp_path / "own.npz",
        x_train=data.pixels.permute(0, 2, 3, 1).numpy(),
        y_train=np.zeros(12, int),
        x_test=data.pixels.permute(0, 2, 3, 1).numpy(),
        y_test=np.zeros(12, int),
    )
    out = tmp_path / "fare"
    words = ("finetune", tmp_path / "clip", "--fare", "2/255", "--data", f"npz:{tmp_path / 'own.npz'}", "--out", out)
    code, _, err = run_cli(*map(str, words), "--batch-size", "6", "--steps", "2")
    assert code == 0, err
    model = ap.load_model(str(out))
    x = data.images(range(3))
    assert not torch.equal(model.encode_image(x), base.encode_image(x))
    assert card_of(model).recipe["fare"]["eps"] == pytest.approx(2 / 255)
    code, _, err = run_cli(*map(str, words), "--batch-size", "6", "--steps", "2", "--epochs", "3")
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["specimen:vit-0", "--fare", "2/255"], "expected a CLIP of antiphase"),
        (["specimen:vit-0", "--fare", "2"], "expected"),
        (["specimen:vit-0", "--fare", "nan"], "expected"),
    ],
)
def test_what_cannot_be_fine_tuned_is_refused_in_one_line(words, message, tmp_path, run_cli):
    code, _, err = run_cli("finetune", *words, "--data", "digits", "--out", str(tmp_path / "no"))
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "no").exists()
