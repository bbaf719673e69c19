"""The audit as a user runs it: files, resume after a kill, and one line for each mistake."""

import importlib
import json
import time

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from safetensors.torch import save_file

from antiphase.attacks import Threat, pgd
from antiphase.attacks.engine.run import run_search
from antiphase.data import load_data
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.report.gallery import read_gallery
from tests.commands.audits import attack_options, audit
from tests.processes import Python, python


def make_run(directory, factory, **sizes):
    model = factory(8, **sizes)
    save(model, {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, directory)
    return directory


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return make_run(root / "diffvit", diffvit), make_run(root / "vit", vit)


def test_a_damaged_cell_of_sensitivity_ends_an_audit_and_leaves_its_results(tmp_path, pair, run_cli):
    command = ("audit", pair[0], "--limit", 4, "--eps", "4/255", "--steps", 2, "--sense-limit", 1, "--out", tmp_path)
    assert run_cli(*command)[0] == 0
    before = (tmp_path / "summary.json").read_bytes()
    cell = next(file for file in tmp_path.glob("cells/*/*.parquet") if "cross" in pl.read_parquet_schema(file))
    content = bytearray(cell.read_bytes())
    content[len(content) // 2] ^= 1
    cell.write_bytes(content)
    code, _, err = run_cli(*command)
    assert code == 2
    assert "it is damaged" in err
    assert ((tmp_path / "summary.json").read_bytes(), (tmp_path / "alignment.parquet").exists()) == (before, True)


def test_an_audit_writes_what_it_promises(tmp_path, pair, run_cli):
    code, out, _ = run_cli(
        *("audit", pair[0], "--against", pair[1], "--limit", 23, "--eps", "4/255,16/255", "--steps", 5),
        *("--sense-limit", 1, "--out", tmp_path),
    )
    assert code == 0
    assert "report.html" in out
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == 2 * 2 * 23
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["version"] == 1
    assert [m["name"] for m in summary["models"]] == ["diffvit", "vit"]
    assert summary["models"][0]["lambda"] == pytest.approx([0.8], abs=0.3)
    assert summary["models"][1]["lambda"] == []
    assert set(summary["results"][0]) == {"model", "attack", "norm", "eps", "metric", "value", "low", "high", "n"}
    assert {"model", "against", "attack", "eps", "difference", "low", "high", "p_value"} <= set(
        summary["comparisons"][0]
    )
    asr = {(r["model"], r["eps"]): r["value"] for r in summary["results"] if r["metric"] == "asr"}
    # the same attack by the library gives the same rate
    data = load_data("digits", limit=23, seed=0)
    result = pgd(load_model(str(pair[0])), data.images(range(23)), None, Threat(eps=16 / 255), steps=5)
    assert asr["diffvit", 16 / 255] == pytest.approx(result.asr)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_killed_audit_goes_on_to_the_same_rows(tmp_path, pair):
    arguments = [str(pair[0]), "--against", str(pair[1]), "--eps", "1/255,8/255", "--steps", "40", "--quiet"]
    command = ["-m", "antiphase", "audit", *arguments, "--batch-size", "32", "--limit", "160"]
    with Python(*command, "--out", tmp_path / "killed") as process:
        while process.runs and not list((tmp_path / "killed").glob("cells/*/*.parquet")):
            time.sleep(0.02)
        process.kill()
    kept = [pl.read_parquet(path) for path in (tmp_path / "killed").glob("cells/*/*.parquet")]
    assert kept, "the audit ended or hung before it could be killed"
    assert not (tmp_path / "killed" / "summary.json").exists()
    for name in ("killed", "whole"):
        python(*command, "--out", tmp_path / name)
    first, second = (pl.read_parquet(tmp_path / name / "rows.parquet") for name in ("killed", "whole"))
    assert_frame_equal(first, second)
    first, second = ((tmp_path / name / "summary.json").read_bytes() for name in ("killed", "whole"))
    assert first == second


def test_finished_cells_are_not_attacked_again(tmp_path, pair, monkeypatch):
    models = [load_model(str(pair[0]))]
    data = load_data("digits", limit=11)
    first = audit(models, [], data, attack_options((0.01, 0.02)), tmp_path)
    calls = []

    def counted(*given):
        if len(given[1]):  # with none, norm and settings are only checked
            calls.append((given[3].eps, len(given[1])))
        return run_search(*given)

    monkeypatch.setattr(importlib.import_module("antiphase.attacks.pgd"), "run_search", counted)
    again = audit(models, [], data, attack_options((0.01, 0.02), batch_size=3), tmp_path)
    assert again == first
    assert calls == []
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    standing = len(rows.filter(eps=0.02)) - rows.filter(eps=0.02)["success"].sum()
    audit(models, [], data, attack_options((0.01, 0.02, 0.03)), tmp_path)
    assert calls == [(0.03, standing)]
    calls.clear()
    fallen = rows.filter(eps=0.01)["success"].sum()
    audit(models, [], data, attack_options((0.02,), nested="off"), tmp_path)
    assert calls == ([(0.02, fallen)] if fallen else [])  # the others are on disk
    calls.clear()
    audit(models, [], load_data("digits", limit=13), attack_options((0.01,)), tmp_path)
    assert calls == [(0.01, 13)]  # other images: another cell


def test_the_gallery_shows_broken_images_that_all_models_get_right_under_the_same_attack(tmp_path):
    models = [load_model("specimen:diffvit-0"), load_model("specimen:vit-0")]
    data = load_data("specimen-fashion-mnist", limit=40, seed=1)
    plan = attack_options((1 / 255, 4 / 255, 8 / 255), settings={"steps": 3})
    audit(models[:1], models[1:], data, plan, tmp_path)
    gallery = read_gallery((tmp_path / "gallery.safetensors").read_bytes())
    assert gallery.eps == 4 / 255
    assert len(gallery.label) == 6
    assert gallery.label[0] != gallery.label[1]
    broken = np.any([one != gallery.label for one in gallery.prediction], axis=0)
    assert broken.tolist() == sorted(broken, reverse=True)
    assert broken.any()
    rows = pl.read_parquet(tmp_path / "rows.parquet").filter(eps=4 / 255)
    for name, before, after in zip(gallery.models, gallery.clean_prediction, gallery.prediction, strict=True):
        assert (before == gallery.label).all()
        part = rows.filter(model=name)
        stored = dict(zip(part["sample"], part["prediction"], strict=True))
        assert [stored[int(sample)] for sample in gallery.sample] == after.tolist()
    for model, adversarial, after in zip(models, gallery.adversarial, gallery.prediction, strict=True):
        assert model(torch.from_numpy(adversarial)).argmax(1).tolist() == after.tolist()
        assert np.abs(adversarial - gallery.clean).max() <= 4 / 255 + 1e-6
        assert np.abs(adversarial - gallery.clean).max((1, 2, 3)).min() > 0


def test_a_skipped_image_is_named_and_counted(tmp_path, run_cli):
    from PIL import Image

    run = make_run(tmp_path / "m", vit, num_classes=2)
    for index, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (9, 12), 40 * i + 10 * index).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "cat" / "9.png").write_bytes(b"no image")
    arguments = (
        "audit",
        run,
        "--data",
        f"folder:{tmp_path / 'photos'}",
        "--eps",
        "4/255",
        "--steps",
        1,
        "--sense-limit",
        0,
        "--out",
        tmp_path / "o",
    )
    code, _, err = run_cli(*arguments)
    assert code == 2
    assert "9.png" in err
    assert "--skip-bad" in err
    code, out, _ = run_cli(*arguments, "--skip-bad")
    assert code == 0
    assert "1 left out" in out
    assert "9.png" in json.loads((tmp_path / "o" / "run.json").read_text())["warnings"][0]


def bad_inputs(root):
    make_run(root / "good", vit)
    make_run(root / "corrupt", vit)
    (root / "corrupt" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0garbage!")
    make_run(root / "other", vit)
    weights = diffvit(8, depth=2).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, root / "other" / "model.safetensors")
    (root / "empty").mkdir()
    return {
        "unknown model": (["no-such-model"], "no-such-model"),
        "unknown specimen": (["specimen:vit-9"], "vit-9"),
        "unknown timm model": (["timm:vit_tini_patch16_224"], "vit_tiny_patch16_224"),
        "missing recipe": ([root / "empty"], "recipe.json"),
        "corrupt checkpoint": ([root / "corrupt"], "safetensors"),
        "architecture": ([root / "other"], "architecture does not match"),
        "eps abc": ([root / "good", "--eps", "abc"], "abc"),
        "eps negative": ([root / "good", "--eps", "-1/255"], "eps -1/255: expected a positive number"),
        "eps zero division": ([root / "good", "--eps", "1/0"], "1/0"),
        "eps twice": ([root / "good", "--eps", "0.1,0.1"], "twice"),
        "norm": ([root / "good", "--norm", "l7"], "l7"),
        "folder without images": ([root / "good", "--data", f"folder:{root / 'empty'}"], "empty"),
        "missing folder": ([root / "good", "--data", f"folder:{root / 'gone'}"], "gone"),
        "unknown data": ([root / "good", "--data", "digitz"], "digits"),
        "wrong shape": ([root / "good", "--data", "specimen-fashion-mnist"], "images of (1, 28, 28)"),
        "twins": ([root / "good", "--against", f"{root / 'good'},{root / 'other'}"], "twin"),
        "same twice": ([root / "good", "--against", root / "good"], "twice"),
        "device": ([root / "good", "--device", "abacus"], "abacus"),
        "option": ([root / "good", "--limit", "many"], "limit 'many': expected an integer"),
    }


CASES = (
    "unknown model|unknown specimen|unknown timm model|missing recipe|corrupt checkpoint|architecture|eps abc|"
    "eps negative|eps zero division|eps twice|norm|folder without images|missing folder|unknown data|wrong shape|"
    "twins|same twice|device|option"
)


@pytest.mark.parametrize("case", CASES.split("|"))
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, run_cli, case):
    inputs = bad_inputs(tmp_path)
    assert list(inputs) == CASES.split("|")
    arguments, named = inputs[case]
    code, out, err = run_cli("audit", *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_random_weights_and_random_images_for_smoke_use(tmp_path, run_cli):
    code, _, err = run_cli(
        "audit",
        "timm:vit_tiny_patch16_224",
        "--random-weights",
        "--data",
        "random",
        "--limit",
        2,
        "--eps",
        "1/255",
        "--steps",
        1,
        "--out",
        tmp_path,
    )
    assert code == 0, err
    assert len(pl.read_parquet(tmp_path / "rows.parquet")) == 2


def test_lambdas_of_timm_models_are_found():
    model = load_model("timm:vit_dwee_patch16_reg1_gap_256", random_weights=True)
    assert model.card.attention == "differential"
    assert torch.isfinite(model(torch.rand(1, *model.card.image_shape))).all()
