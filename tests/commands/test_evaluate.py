"""The evaluation suite by the command: rows, tables, a page, and a second run that measures nothing."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from antiphase.commands.evaluate.result import headline
from antiphase.commands.evaluate.run import requested
from antiphase.data import image_sets, load_data, load_pairs
from antiphase.data.sources import IMAGENET_SETS, PROBE_SETS, RETRIEVAL_SETS
from antiphase.evaluation import probe
from antiphase.evaluation.few_shot import draw_episodes, few_shot_accuracies
from antiphase.evaluation.metrics import ROW_SCHEMA
from antiphase.models import clip, diffclip, load_model, write_model
from tests.data.idx_files import write_split
from tests.evaluation.test_mmvp import write_mmvp
from tests.processes import together
from tests.training.tiny_pairs import TINY

SMALL = {
    "vision": {"dim": 24, "depth": 1, "num_heads": 2, "patch_size": 16},
    "text": {"dim": 16, "depth": 1, "num_heads": 2},
    "embed_dim": 12,
}
QUICK = ("--config", Path(__file__).with_name("quick.toml"), "-q")  # options of several tasks


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A CLIP and a DiffCLIP as files."""
    folder = tmp_path_factory.mktemp("models")
    for kind, build in (("clip", clip), ("diffclip", diffclip)):
        write_model(build(seed=0, **SMALL), folder / kind)
    return {kind: str(folder / kind) for kind in ("clip", "diffclip")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.thorough
def test_the_whole_suite_of_a_model_against_its_twin(run_cli, models, cache, tmp_path, monkeypatch):
    mmvp = write_mmvp(tmp_path / "mmvp", 2)
    arguments = (
        "evaluate",
        models["diffclip"],
        "--against",
        models["clip"],
        "--data",
        f"openmoji,mmvp:{mmvp}",
        "--objective",
        "norm,squared",
        "--templates",
        "own,1",
        "--out",
        tmp_path / "out",
        "--cache",
        cache,
        *QUICK,
    )
    code, out, err = run_cli(*arguments)
    assert code == 0, err
    for words in ("image R@10", "own prompts, per class", "top-1, squared penalty", "5-way 5-shot", "mean of 7", "p"):
        assert words in out
    long = [line for line in out.splitlines() if len(line) > 80 and not line.startswith(("report: ", "warning: "))]
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(long) <= {f"{headline(told).line}."}  # which stays on one line where there is no terminal
    rows = pl.read_parquet(tmp_path / "out" / "rows.parquet")
    assert list(rows.columns) == ["model", "attention", "task", "data", *ROW_SCHEMA]
    counts = dict(
        rows.filter(model="clip")
        .group_by("task", "setting")
        .len()
        .select(pl.concat_str("task", "setting", separator=" "), "len")
        .iter_rows()
    )
    captions = sum(map(len, load_pairs("openmoji", split="test", progress=False).subset(150, 0).captions))
    assert counts == {
        "retrieval image": captions,
        "retrieval text": 150,
        "zero-shot own": 150,
        "zero-shot 1": 150,
        "probe norm": 300,
        "probe squared": 300,
        "few-shot 5-way 5-shot": 80,
        "mmvp ": 18,
    }
    assert rows.filter(task="probe")["cost"].null_count() == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {r["task"] for r in summary["results"]} == {"retrieval", "zero-shot", "probe", "few-shot", "mmvp"}
    assert len(summary["results"]) == 2 * len(summary["differences"])
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["data"], run["n"], run["against"]) == (["openmoji", f"mmvp:{mmvp}"], [150, 18], ["clip"])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"<title>{headline(summary).title}" in page
    levels = {
        (r["task"], r["metric"]): (r["chance"], r["constant"]) for r in summary["results"] if r["data"] == "openmoji"
    }
    assert levels["zero-shot", "per class"] == (1 / 9, 1 / 9)
    assert 0.2 < levels["zero-shot", "top-1"][1] < 0.5
    assert "always the largest class" in page
    assert "answers at random" in page
    assert (tmp_path / "out" / "mmvp.png").stat().st_size > 10_000

    monkeypatch.setattr(probe, "train_probe", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr("antiphase.evaluation.features.FeatureStore.image_features", lambda *_: pytest.fail("again"))
    assert run_cli(*arguments)[0] == 0
    assert rows.equals(pl.read_parquet(tmp_path / "out" / "rows.parquet"))


def test_few_shot_rows_are_those_of_the_models_features(run_cli, models, cache, tmp_path):
    code, _, err = run_cli(
        "evaluate", models["clip"], "--tasks", "few-shot", "--out", tmp_path, "--cache", cache, *QUICK
    )
    assert code == 0, err
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    test = load_pairs("openmoji", split="test", progress=False).subset(150, 0)
    train = load_pairs("openmoji", split="train", progress=False).subset(900, 0)
    model = load_model(models["clip"])
    with torch.no_grad():
        support, queries = (model.visual(pairs.array / 255) for pairs in (train, test))
    episodes = draw_episodes(train.labels, test.labels, episodes=40, seed=1)
    expected = few_shot_accuracies(support, queries, episodes)
    assert rows.filter(seed=1)["score"].to_list() == pytest.approx(expected.tolist())


def test_a_classifier_is_probed_and_asked_for_no_text(run_cli, cache, tmp_path, monkeypatch):
    specimens = load_data("specimen-fashion-mnist", seed=0, limit=1000)  # in random order
    images, labels = (specimens.images(range(1000))[:, 0] * 255).round().numpy(), specimens.labels.numpy()
    write_split(tmp_path / "set", "t10k", images[:150], labels[:150])
    write_split(tmp_path / "set", "train", images[150:550], labels[150:550])
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path / "set")
    arguments = ("evaluate", "specimen:vit-0", "--data", "fashion-mnist", "--cache", cache, *QUICK)
    code, out, err = run_cli(*arguments, "--out", tmp_path / "out")
    assert code == 0, err
    assert "top-1, norm penalty" in out
    results = json.loads((tmp_path / "out" / "summary.json").read_text())["results"]
    assert {r["task"] for r in results} == {"probe", "few-shot"}
    top = next(r["value"] for r in results if r["metric"] == "top-1")
    assert top > 0.6  # a trained model's features tell clothes apart
    code, _, err = run_cli(*arguments, "--tasks", "retrieval", "--out", tmp_path / "other")
    assert (code, err.count("\n")) == (2, 1)
    assert "task retrieval" in err
    assert "fashion-mnist cannot serve it" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tasks", "prob"), "task 'prob': expected some of retrieval, zero-shot, probe"),
        (("--tasks", "mmvp", "--data", "openmoji"), "task mmvp"),
        (("--tasks", "probe:digits", "--data", "openmoji"), "task for digits: it is not among the data, openmoji"),
        (("--objective", ","), "objective ',': expected at least one"),
        (("--prompt", "a {}", "--prompt", "an emoji"), "template 2, 'an emoji'"),
        (("--tasks", "mmvp:openmoji"), "task mmvp"),
        (("--captions", "some"), "captions 'some': expected all or first"),
        (("--features", "cooked"), "features 'cooked': expected raw"),
        (("--objective", "cubed"), "objective 'cubed': expected norm or squared"),
        (("--precision", "fp8"), "precision 'fp8'"),
        (("--templates", "82"), "templates '82'"),
        (("--data", "openmojo"), "openmojo"),
        (("--data", "mmvp:nowhere"), "Questions.csv"),
        (("--train-limit", "20", "--tasks", "few-shot"), "few-shot on openmoji: class"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(run_cli, models, cache, tmp_path, options, words):
    code, _, err = run_cli(
        "evaluate", models["clip"], "--limit", 30, "-q", "--out", tmp_path / "out", "--cache", cache, *options
    )
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not (tmp_path / "out" / "summary.json").exists()


def write_table(folder):
    """Write four images with captions, and return the table's name as data."""
    write_mmvp(folder, 2, ("a",))  # some images
    rows = [f"MLLM_VLM Images/a/{number}.jpg,words {number}" for number in range(1, 5)]
    (folder / "table.csv").write_text("\n".join(["image,caption", *rows]))
    return f"csv:{folder / 'table.csv'}"


def test_a_task_may_be_for_one_data_set_alone(run_cli, models, cache, tmp_path):
    table = write_table(tmp_path / "set")
    code, _, err = run_cli(
        "evaluate",
        models["clip"],
        "--tasks",
        "retrieval,zero-shot:openmoji",
        "--data",
        f"openmoji,{table}",
        "--limit",
        11,
        "-q",
        "--out",
        tmp_path / "out",
        "--cache",
        cache,
    )
    assert code == 0, err
    pairs = set(pl.read_parquet(tmp_path / "out" / "rows.parquet").select("task", "data").unique().rows())
    assert pairs == {("retrieval", table), ("retrieval", "openmoji"), ("zero-shot", "openmoji")}


def test_images_are_squashed_if_asked_for(run_cli, models, cache, tmp_path):
    table = write_table(tmp_path / "set")
    for path in (tmp_path / "set").rglob("*.jpg"):  # wider than high
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 60, 3), np.uint8)).save(path)
    words = ("evaluate", models["clip"], "--tasks", "retrieval", "--data", table, "-q")
    words += ("--cache", tmp_path / "cache", "--out")
    for how in ((), ("--resize", "squash")):
        code, _, err = run_cli(*words, tmp_path / str(len(how)), *how)
        assert code == 0, err
    records = [json.loads((tmp_path / str(place) / "run.json").read_text()) for place in (0, 2)]
    assert [record["settings"].get("resize") for record in records] == [None, "squash"]
    assert len(list((tmp_path / "cache").iterdir())) == 3  # images twice, texts once
    code, _, err = run_cli(*words[:3], "probe", "--data", "digits", "--resize", "crop", "-q")
    assert code == 2
    assert "resize crop: digits: no image files to resize" in err


def test_a_table_that_is_one_split_is_not_trained_on(run_cli, models, cache, tmp_path):
    table = write_table(tmp_path / "set")
    code, _, err = run_cli(
        "evaluate", models["clip"], "--data", table, "-q", "--out", tmp_path / "out", "--cache", cache
    )
    assert code == 0, err
    assert set(pl.read_parquet(tmp_path / "out" / "rows.parquet")["task"]) == {"retrieval"}


def test_zero_shot_accuracy_at_chance_is_warned_of(run_cli, models, cache, tmp_path):
    for number in range(4):
        path = tmp_path / "set" / ("even", "odd")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(path)
    code, out, err = run_cli(
        "evaluate",
        models["clip"],
        "--data",
        f"folder:{tmp_path / 'set'}",
        "--tasks",
        "zero-shot",
        "--templates",
        "1",
        "-q",
        "--out",
        tmp_path / "out",
        "--cache",
        cache,
    )
    assert code == 0, err
    (warning,) = json.loads((tmp_path / "out" / "run.json").read_text())["warnings"]
    assert warning.startswith("clip, zero-shot on folder:")
    assert "on 4 images is not above chance, 50 %" in warning
    assert f"warning: {warning}" in out


def test_images_to_learn_from_that_are_not_to_be_had_are_said_and_left(run_cli, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))
    for number in range(12):
        path = tmp_path / "data" / "imagenet" / "val" / ("n01440764", "n01443537")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9, 3), number, np.uint8)).save(path)
    write_model(clip(**TINY), tmp_path / "model")
    arguments = ("evaluate", tmp_path / "model", "--data", "imagenet", "-q", "--cache", cache)
    code, _, err = run_cli(*arguments, "--templates", "1", "--out", tmp_path / "out")
    assert code == 0, err
    assert "no probe and no few-shot on imagenet: imagenet has no class folders in" in err
    assert set(pl.read_parquet(tmp_path / "out" / "rows.parquet")["task"]) == {"zero-shot"}
    code, _, err = run_cli(*arguments, "--tasks", "probe", "--out", tmp_path / "other")
    assert (code, err.count("\n")) == (2, 1)
    assert "sign up at https://image-net.org" in err


def folder_of(path, colours, size=8):
    """Write 12 bitmaps of each class in each split of a folder; bitmaps of one size have files of one size."""
    for split, label, number in itertools.product(("train", "test"), range(len(colours)), range(12)):
        file = path / split / "abcdefg"[label] / f"{number}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng([number, label, split == "train"]).integers(0, 99, (size, size, 3))
        Image.fromarray((pixels + colours[label]).astype(np.uint8)).save(file)
    return f"folder:{path}"


def test_a_changed_copy_of_a_folder_is_other_data(run_cli, models, cache, tmp_path):
    clean = folder_of(tmp_path / "clean", (0, 150))
    other = folder_of(tmp_path / "other", (150, 0))
    for data in (clean, other):
        code, _, err = run_cli(
            "evaluate",
            models["clip"],
            "--data",
            data,
            "--tasks",
            "zero-shot",
            "--templates",
            "1",
            "-q",
            "--out",
            tmp_path / "out",
            "--cache",
            cache,
        )
        assert code == 0, err
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 2


def test_other_templates_under_the_same_name_are_measured_again(run_cli, models, cache, tmp_path):
    file = tmp_path / "mine.txt"
    for text in ("a {}", "no {} here"):
        file.write_text(text)
        code, _, err = run_cli(
            "evaluate",
            models["clip"],
            "--tasks",
            "zero-shot",
            "--templates",
            file,
            "--limit",
            9,
            "-q",
            "--out",
            tmp_path / "out",
            "--cache",
            cache,
        )
        assert code == 0, err
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 2


def test_few_shot_that_is_not_possible_is_left_out_unless_it_was_asked_for(run_cli, models, cache, tmp_path):
    arguments = (
        "evaluate",
        models["clip"],
        "--data",
        folder_of(tmp_path / "two", (0, 150)),
        "--cache",
        cache,
        "--out",
        tmp_path / "out",
        *QUICK,
    )
    code, out, err = run_cli(*arguments, "--templates", "1")
    assert code == 0, err
    assert "left out: few-shot on folder:" in err
    assert "probe" in out
    code, _, err = run_cli(*arguments, "--tasks", "few-shot")
    assert (code, err.count("\n")) == (2, 1)
    assert run_cli(*arguments, "--tasks", "few-shot", "--ways", 2)[0] == 0


def test_a_published_validation_split_leaves_the_seed_nothing_to_draw(run_cli, models, cache, tmp_path):
    data = folder_of(tmp_path / "set", (0, 150))
    shutil.copytree(tmp_path / "set" / "train", tmp_path / "set" / "val")
    code, _, err = run_cli(
        "evaluate",
        models["diffclip"],
        "--against",
        models["clip"],
        "--data",
        data,
        "--tasks",
        "probe",
        "--cache",
        cache,
        "--out",
        tmp_path / "out",
        *QUICK,
    )
    assert code == 0, err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {r["seeds"] for r in summary["results"]} == {1}
    assert all(d["p"] is not None for d in summary["differences"])


def test_images_that_were_left_out_are_said_and_recorded(run_cli, models, cache, tmp_path):
    data = folder_of(tmp_path / "set", (0, 150))
    (tmp_path / "set" / "test" / "a" / "3.bmp").write_bytes(b"no picture")
    arguments = (
        "evaluate",
        models["clip"],
        "--data",
        data,
        "--tasks",
        "zero-shot",
        "--templates",
        "1,1",
        "--cache",
        cache,
    )
    code, _, err = run_cli(*arguments, "--out", tmp_path / "out", "-q")
    assert (code, err.count("\n")) == (2, 1)
    assert "--skip-bad" in err
    code, out, err = run_cli(*arguments, "--out", tmp_path / "out", "-q", "--skip-bad")
    assert code == 0, err
    assert "1 left out, the first: a/3.bmp" in out
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["n"] == [23]
    assert "left out" in run["warnings"][0]
    assert "left out" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_twin_that_encodes_no_text_has_no_place_in_mmvps_figure(run_cli, models, cache, tmp_path):
    mmvp = write_mmvp(tmp_path / "mmvp", 2)
    code, _, err = run_cli(
        "evaluate",
        models["clip"],
        "--against",
        "specimen:vit-0",
        "--tasks",
        "mmvp",
        "--data",
        f"mmvp:{mmvp}",
        "-q",
        "--out",
        tmp_path / "out",
        "--cache",
        cache,
    )
    assert code == 0, err


def test_the_papers_sets_are_for_their_own_tasks():
    tasks, data = requested(["probe", "zero-shot"], ["paper"])
    assert tasks["probe"] == list(PROBE_SETS)
    assert tasks["zero-shot"] == list(IMAGENET_SETS)
    assert data == [*PROBE_SETS, *IMAGENET_SETS]
    tasks, data = requested([], ["paper", "openmoji"])
    assert tasks["retrieval"] == [*RETRIEVAL_SETS, "openmoji"]
    assert requested(["probe:pets"], ["paper"]) == ({"probe": ["pets"]}, ["pets"])
    assert requested(["probe", "probe:digits"], ["digits"]) == requested(["probe:digits", "probe"], ["digits"])
    assert requested([], []) == (None, ["openmoji"])
    assert requested(["mmvp"], [])[1] == ["mmvp"]


@pytest.mark.thorough
def test_two_processes_make_what_one_makes(models, tmp_path):
    arguments = [
        "evaluate",
        models["clip"],
        "--tasks",
        "retrieval,zero-shot,mmvp",
        "--data",
        "openmoji,emoji-mmvp",
        "--limit",
        "300",
        "-q",
    ]
    rows = []
    for count in (1, 2):
        out = tmp_path / str(count)
        more = ("--out", out, "--cache", out / "features", "--device", "cpu")
        together(count, "-m", "antiphase", *arguments, *more)
        rows.append(pl.read_parquet(out / "rows.parquet"))
    assert rows[0].equals(rows[1])
    assert len(list((tmp_path / "2" / "cells").iterdir())) == 3
