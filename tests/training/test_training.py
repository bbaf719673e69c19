"""Training: exact resume after a kill, shares over processes, recipes and their errors."""

import itertools
import json
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.files import write_json
from antiphase.models import checkpoints, load_model
from antiphase.training import Recipe, loop, make_recipe, train_classifier
from antiphase.training.recipe import half_cosine, learning_rate, pixel_statistics
from tests.processes import KILLS_ITSELF, Python, together

COMMAND = ["-m", "antiphase", "train", "--model", "diffvit", "--data", "digits", "--quiet"]


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", split="train"), load_data("digits", split="test")


def recipe(digits, **fields):
    return make_recipe("diffvit", digits[0].subset(200), {"dim": 16, "num_heads": 2}, data="digits", **fields)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, run_cli):
    options = "--epochs 2 --limit 160 --batch-size 16 --dim 16 --heads 2 --precision float32"
    options += " --adversarial 8/255 --adversarial-steps 2 --defend map-jacobian=1,ema=0.9,awp=0.01"
    settings = [*COMMAND[2:], *options.split(), "--out"]
    with Python(KILLS_ITSELF, *settings, tmp_path / "killed") as process:
        assert process.wait() == -signal.SIGKILL
    state = tmp_path / "killed" / "state.safetensors"
    assert state.exists()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    for name in ("killed", "whole"):
        code, out, _ = run_cli(*settings, tmp_path / name)
        assert code == 0
        assert "robust accuracy" in out
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())
    logs = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("killed", "whole")]
    kept = [[{k: v for k, v in json.loads(line).items() if k not in loop.TIMES} for line in log] for log in logs]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2
    assert not state.exists()


def test_two_processes_train_the_weights_of_one(tmp_path, run_cli):
    settings = ["--epochs", "2", "--limit", "150", "--batch-size", "31", "--dim", "16", "--precision", "float32"]
    assert run_cli(*COMMAND[2:], *settings, "--out", tmp_path / "one")[0] == 0
    together(2, *COMMAND, *settings, "--out", tmp_path / "two")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in first:
        one, two = first[name], second[name]
        if name.endswith("qkv.bias"):  # a bias of the keys changes no map: Adam makes whole steps of its rounding
            one, two = (torch.cat([part.chunk(3)[0], part.chunk(3)[2]]) for part in (one, two))
        torch.testing.assert_close(one, two, rtol=1e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.long
def test_the_log_holds_accuracy_and_lambda_and_the_model_learns(tmp_path, digits):
    some = digits[0].subset(800)
    plan = make_recipe("diffvit", some, {}, data="digits", epochs=20, learning_rate=3e-3, batch_size=32)
    few = digits[1].subset(100)
    log = train_classifier(plan, some, few, tmp_path, progress=False)
    assert log[-1]["accuracy"] > 0.7
    assert len(log[-1]["lambda"]) == 1
    assert log[-1]["lambda"] != log[0]["lambda"]
    model = load_model(str(tmp_path))
    assert model.card.attention == "differential"
    assert model.card.seed == 0
    assert json.loads((tmp_path / "recipe.json").read_text())["data_fingerprint"] == some.fingerprint()
    began = time.monotonic()
    assert train_classifier(plan, some, digits[1], tmp_path, progress=False) == log  # finished: nothing is done again
    assert time.monotonic() - began < 1


def test_half_precision_storage_rounds_the_weights_and_loads(tmp_path, digits):
    small = (digits[0].subset(200), digits[1])
    for store in ("float32", "float16"):
        train_classifier(recipe(digits, epochs=1, store=store), *small, tmp_path / store, progress=False)
    whole, half = (load_model(str(tmp_path / store)).state_dict() for store in ("float32", "float16"))
    assert all(torch.equal(whole[name].half().float(), half[name]) for name in whole)
    sizes = [(tmp_path / store / "model.safetensors").stat().st_size for store in ("float32", "float16")]
    assert sizes[1] < 0.7 * sizes[0]


def test_another_recipe_does_not_go_on_in_the_same_directory(tmp_path, digits):
    small = (digits[0].subset(200), digits[1])
    train_classifier(recipe(digits, epochs=1), *small, tmp_path, progress=False)
    with pytest.raises(UserError, match="differs in seed, epochs"):
        train_classifier(recipe(digits, epochs=2, seed=1), *small, tmp_path, progress=False)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, digits):
    small = (digits[0].subset(200), digits[1])
    with pytest.raises(UserError, match="learning-rate"):
        train_classifier(recipe(digits, epochs=3, learning_rate=1e20), *small, tmp_path, progress=False)
    assert not (tmp_path / "model.safetensors").exists()


def test_weights_that_are_not_finite_after_the_last_step_stop_the_run(tmp_path, run_cli):
    out = tmp_path / "out"
    words = ["--model", "vit", "--data", "digits", "--limit", "16", "--epochs", "1", "--batch-size", "16"]
    code, _, told = run_cli("train", *words, "--learning-rate", "1e39", "--out", out)
    assert code == 2
    assert "weights became NaN or infinite before step 2: training stopped" in told
    assert not out.exists()


@pytest.mark.parametrize("rate", [1e30, 1e37])
def test_no_state_is_saved_whose_weights_are_not_finite(tmp_path, digits, monkeypatch, rate):
    clock = itertools.count(step=10)  # every step is saved
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    plan = recipe(digits, epochs=1, learning_rate=rate)
    with pytest.raises(UserError, match="training stopped"):
        train_classifier(plan, digits[0].subset(200), digits[1], tmp_path, progress=False)
    state = tmp_path / loop.STATE_FILE
    assert not state.exists() or all(t.isfinite().all() for t in load_file(state).values())


def test_a_state_whose_bits_flipped_is_named(tmp_path, digits, monkeypatch):
    small = digits[0].subset(60), digits[1].subset(20)
    monkeypatch.setattr(loop, "write_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))  # after an epoch
    clock = itertools.count(step=10)  # every step is saved
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(KeyboardInterrupt):
        train_classifier(recipe(digits, epochs=1, batch_size=20), *small, tmp_path, progress=False)
    state = tmp_path / loop.STATE_FILE
    content = bytearray(state.read_bytes())
    content[-5] ^= 4
    state.write_bytes(content)
    with pytest.raises(UserError, match=r"state.safetensors: damaged: its digest is another; delete it to restart"):
        train_classifier(recipe(digits, epochs=1, batch_size=20), *small, tmp_path, progress=False)


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl"])
def test_a_finished_run_with_a_damaged_file_is_not_called_finished(tmp_path, digits, name):
    small = digits[0].subset(60), digits[1].subset(20)
    train_classifier(recipe(digits, epochs=1), *small, tmp_path, progress=False)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-9] if name.endswith("safetensors") else b"")
    with pytest.raises(UserError, match=rf"{name}: .*; delete the directory to train again"):
        train_classifier(recipe(digits, epochs=1), *small, tmp_path, progress=False)


def test_weights_that_float16_cannot_hold_are_not_written(tmp_path):
    model = nn.Linear(2, 2)
    model.weight.data.fill_(1e6)
    with pytest.raises(UserError, match="'weight' contains NaN or infinity; retrain with --store float32"):
        checkpoints.save(model, {}, tmp_path, torch.float16)
    assert not (tmp_path / checkpoints.WEIGHTS_FILE).exists()


def test_data_of_another_shape_is_refused(tmp_path, digits):
    wrong = load_data("random", image_size=8, channels=3, num_classes=10, limit=5)
    with pytest.raises(UserError, match="shape"):
        train_classifier(recipe(digits), wrong, wrong, tmp_path, progress=False)
    assert not any(tmp_path.iterdir())


def test_images_of_one_class_are_refused(tmp_path, digits):
    zeros = (digits[0].labels == 0).nonzero().flatten().tolist()
    one = load_data((digits[0].images(zeros), digits[0].labels[zeros]))
    with pytest.raises(UserError, match="has one class, '0'; expected two or more"):
        train_classifier(recipe((one, one), epochs=1), one, None, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", [{"epochs": 0}, {"learning_rate": -1.0}, {"optimizer": "sgd"}, {"colour": 1}])
def test_a_recipe_names_the_field_that_is_wrong(digits, field):
    with pytest.raises(UserError, match=next(iter(field))):
        recipe(digits, **field)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"warmup_epochs": 50}, "warmup_epochs 50: expected at most 2, the number of epochs"),
        ({"warmup_epochs": 2.5}, r"warmup_epochs 2\.5"),
        ({"warmup_epochs": 1e300}, r"warmup_epochs 1e\+300"),
        ({"adversarial": {"eps": 0.1, "warmup_epochs": 3}}, "adversarial_warmup 3: expected at most 2"),
    ],
)
def test_a_warm_up_longer_than_the_training_is_refused(digits, fields, told):
    assert recipe(digits, epochs=2, warmup_epochs=2).warmup_epochs == 2
    with pytest.raises(UserError, match=told):
        recipe(digits, epochs=2, **fields)


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ('"seed": "x"', "seed 'x': expected an integer of at least 0"),
        ('"seed": -1', "seed -1"),
        ('"seed": 18446744073709551616', "seed 18446744073709551616"),
        ('"seed": 1.5', r"seed 1\.5"),
        ('"data": 5', "data 5: expected the name of data"),
        ('"kind": []', r"kind \[\]: expected text"),
        ('"model": {"dim": 1000000000000}', "model"),
        pytest.param(f'"seed": {"1" * 5000}', r"cannot be read \(an integer has 5,000 digits", id="5000 digits"),
    ],
)
def test_a_recipe_file_with_other_types_is_one_line(tmp_path, fact, told):
    (tmp_path / "recipe.json").write_text(f"{{{fact}}}")
    with pytest.raises(UserError, match=rf"recipe\.json: {told}") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_edited_recipe_file_is_refused(tmp_path, digits):
    plan = recipe(digits, epochs=1)
    train_classifier(plan, digits[0].subset(200), digits[1], tmp_path, progress=False)
    fields = json.loads((tmp_path / "recipe.json").read_text())
    fields["model"]["dim"] = 32
    write_json(tmp_path / "recipe.json", fields)
    with pytest.raises(UserError, match="architecture does not match"):
        load_model(str(tmp_path))


def test_learning_rate_warms_up_and_falls_by_a_cosine(digits):
    plan = Recipe.model_validate(
        recipe(digits, epochs=10, schedule="cosine", warmup_epochs=2, learning_rate=1.0).model_dump()
    )
    rates = [learning_rate(plan, step, 5) for step in range(50)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[30] == pytest.approx(0.5)
    assert rates[49] == pytest.approx(0.00154, abs=1e-4)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert learning_rate(recipe(digits, learning_rate=0.3), 10**6, 5) == 0.3


def test_pixel_statistics_are_those_of_all_pixels(digits):
    mean, std = pixel_statistics(digits[0])
    pixels = digits[0].images(range(len(digits[0])))
    assert mean[0] == pytest.approx(float(pixels.mean()), abs=6e-4)
    assert std[0] == pytest.approx(float(pixels.std(correction=0)), abs=6e-4)


@pytest.mark.parametrize("epochs", [0.01, 0.1, 0.7, 1.5])
def test_warm_up_never_exceeds_the_peak(digits, epochs):
    plan = recipe(digits, epochs=3, warmup_epochs=epochs, learning_rate=1.0)
    assert max(learning_rate(plan, step, 12) for step in range(36)) == 1.0
    assert max(half_cosine(step, 20, epochs / 20) for step in range(20)) <= 1.0
