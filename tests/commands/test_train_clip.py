"""CLIPs in every command: bound to the data's classes, they are classifiers like all others."""

import json

import polars as pl
import pytest
import torch
from PIL import Image

from antiphase.data import load_data
from antiphase.models import clip, diffclip, load_model, write_model, zero_shot_classifier

SMALL = {
    "vision": {"dim": 24, "depth": 2, "num_heads": 2, "patch_size": 16},
    "text": {"dim": 16, "depth": 1, "num_heads": 2},
    "embed_dim": 12,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two families of two seeds each, as files."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for seed in (0, 1):
        for kind, build in (("clip", clip), ("diffclip", diffclip)):
            model = build(seed=seed, **SMALL)
            path = folder / f"{kind}-s{seed}"
            write_model(model, path)
            recipe = json.loads((path / "recipe.json").read_text())
            (path / "recipe.json").write_text(json.dumps(recipe | {"seed": seed}))
            paths[kind, seed] = str(path)
    return paths


@pytest.fixture(scope="module")
def every(models):
    return ",".join(models[key] for key in sorted(models))


@pytest.mark.long
def test_an_audit_attacks_the_cosine_to_the_images_own_prompt(run_cli, models, tmp_path):
    code, out, err = run_cli(
        "audit",
        models["diffclip", 0],
        "--against",
        models["clip", 0],
        "--data",
        "openmoji",
        "--limit",
        "5",
        "--objective",
        "cosine",
        "--steps",
        "3",
        "--eps",
        "4/255,16/255",
        "--sense-limit",
        "2",
        "--out",
        tmp_path,
        "-q",
    )
    assert code == 0, err
    assert "diffclip-s0" in out
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == 2 * 2 * 5
    images = load_data("openmoji", limit=5, seed=0)
    model = load_model(models["clip", 0])
    classifier = zero_shot_classifier(model, images.class_names, prompts=images.prompts)
    with torch.no_grad():
        expected = classifier(images.images(range(5))).argmax(1).tolist()
    mine = rows.filter(pl.col("model") == "clip-s0", pl.col("eps") < 0.02)
    assert mine["clean_prediction"].to_list() == expected
    assert "objective cosine" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "diffclip-s0" in pl.read_parquet(tmp_path / "alignment.parquet")["model"].to_list()


def test_a_prompt_of_ones_own_takes_the_place_of_the_datas(run_cli, models, tmp_path):
    code, _, err = run_cli(
        "attack",
        models["clip", 0],
        "--data",
        "openmoji",
        "--limit",
        "3",
        "--attack",
        "patch",
        "--width",
        "13",
        "--steps",
        "2",
        "--eps",
        "1",
        "--prompt",
        "an emoji of {}",
        "--out",
        tmp_path,
        "-q",
    )
    assert code == 0, err
    code, _, err = run_cli(
        "attack",
        models["clip", 0],
        "--data",
        "openmoji",
        "--prompt",
        "an emoji",
        "--limit",
        "3",
        "--out",
        tmp_path,
        "-q",
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "as a placeholder for the class name" in err


@pytest.mark.long
def test_sense_looks_at_the_image_tower(run_cli, models, tmp_path):
    code, _, err = run_cli(
        "sense",
        models["diffclip", 0],
        "--data",
        "openmoji",
        "--limit",
        "2",
        "--parts",
        "alignment",
        "--probes",
        "2",
        "--out",
        tmp_path,
        "-q",
    )
    assert code == 0, err
    assert set(pl.read_parquet(tmp_path / "alignment.parquet")["layer"]) == {0, 1}


def test_evaluate_writes_rows_and_a_table_and_goes_on(run_cli, every, tmp_path):
    arguments = (
        "evaluate",
        every,
        "--data",
        "openmoji",
        "--limit",
        "23",
        "--captions",
        "first",
        "--tasks",
        "retrieval,zero-shot",
        "--out",
        tmp_path,
        "--cache",
        tmp_path / "features",
        "-q",
    )
    code, out, err = run_cli(*arguments)
    assert code == 0, err
    assert "R@1" in out
    assert "clip-s0" in out
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    assert rows.group_by("model").len()["len"].to_list() == [3 * 23] * 4  # both ways and the class
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert len(times) == 8
    assert run_cli(*arguments)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == times
    assert rows.equals(pl.read_parquet(tmp_path / "rows.parquet"))


def test_export_writes_both_layouts_and_says_where(run_cli, models, tmp_path):
    code, out, _ = run_cli("export", models["diffclip", 1], "--out", tmp_path / "ours")
    assert code == 0
    assert out.strip().endswith("model.safetensors")
    one, two = load_model(models["diffclip", 1]), load_model(str(tmp_path / "ours"))
    assert torch.equal(one.encode_text(["a mug"]), two.encode_text(["a mug"]))
    assert two.card.seed == 1
    sizes = {"dim": 128, "num_heads": 2, "depth": 1}  # the released layout's heads are 64 wide
    write_model(diffclip(vision=sizes, text=sizes), tmp_path / "wide")
    code, out, _ = run_cli("export", tmp_path / "wide", "--layout", "released", "--out", tmp_path / "theirs")
    assert (code, out.strip().endswith("released.safetensors")) == (0, True)
    for arguments, words in (
        ((models["diffclip", 1],), "nowhere to write to"),
        ((models["diffclip", 1], "--out", "x", "--layout", "theirs"), "layout 'theirs'"),
        ((models["diffclip", 1], "--out", tmp_path / "ours" / "recipe.json"), "recipe.json"),
        (("timm:vit_tiny_patch16_224", "--out", "x"), "timm:vit_tiny_patch16_224"),
    ):
        code, _, err = run_cli("export", *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


def test_sizes_are_those_of_both_towers_and_heads_keep_their_width(run_cli, tmp_path):
    for number in range(4):
        Image.new("RGB", (9, 9), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = ["image,caption", *(f"{number}.png,number {number}" for number in range(4))]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    words = [*["train-clip", "--model", "diffclip", "--preset", "openmoji", "--data"], f"csv:{tmp_path / 'pairs.csv'}"]
    words += ["--held-out", "none", "--batch-size", "2", "--epochs", "1", "-q", "--out", tmp_path / "run"]
    for sizes, line in (
        (("--dim", "96"), "dim 96: expected a multiple of 64, two heads of 32"),
        (("--image-size", "20"), "patch_size 8 does not divide image_size 20"),
    ):
        code, _, err = run_cli(*words, *sizes)
        assert (code, err) == (2, f"antiphase: {line}\n")
    code, _, err = run_cli(*words, "--dim", "64", "--depth", "1", "--image-size", "16")
    assert code == 0, err
    model = load_model(str(tmp_path / "run"))
    assert (model.image_shape, len(model.visual.blocks), len(model.text.blocks)) == ((3, 16, 16), 1, 1)
    assert (model.image_projection.shape[0], model.text_projection.shape[0]) == (64, 64)
    assert (model.config.vision.num_heads, model.config.text.num_heads) == (2, 2)
