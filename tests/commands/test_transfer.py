"""``antiphase transfer``: the matrix against attacks and predictions made one by one, and what is said of it."""

import json

import polars as pl
import pytest
import torch

import antiphase as ap
from antiphase.attacks import Threat, pgd
from antiphase.commands.result import open_result
from antiphase.commands.transfer import run

NAMES, COUNT, EPS, STEPS = ("vit-0", "diffvit-0", "vit-1"), 24, 16 / 255, 5
SIZE = ("--limit", COUNT, "--steps", STEPS, "--device", "cpu", "-q")
MODELS = ",".join(f"specimen:{name}" for name in NAMES)


@pytest.fixture(scope="module")
def by_hand():
    """Whether the image made on the first of two models changes the prediction of the second."""
    models = {name: ap.load_model(f"specimen:{name}") for name in NAMES}
    images = ap.load_data("specimen-fashion-mnist", limit=COUNT, seed=0)
    ids, pixels = images.ids, images.images(range(COUNT))
    broken = {}
    with torch.no_grad():
        for made_on, surrogate in models.items():
            made = pgd(surrogate, pixels, None, Threat(eps=EPS), steps=STEPS, ids=ids, early_stop=False)
            for name, model in models.items():
                changed = model(made.adversarial).argmax(1) != model(pixels).argmax(1)
                broken[made_on, name] = dict(zip(ids.tolist(), changed.tolist(), strict=True))
    return broken


def test_matrix_and_differences_are_those_of_attacks_one_by_one(tmp_path, run_cli, by_hand):
    out = tmp_path / "out"
    code, printed, error = run_cli("transfer", MODELS, *SIZE, "--eps", "16/255", "--out", out, "--json")
    assert code == 0, error
    summary = json.loads(printed)
    rows = open_result(out).frame()
    assert len(rows) == 9 * COUNT
    for (made_on, name), broken in by_hand.items():
        cell = rows.filter(surrogate=made_on, model=name)
        assert dict(cell.select("sample", "success").iter_rows()) == broken
        (rate,) = (
            row["value"]
            for row in summary["results"]
            if (row["attack"], row["model"], row["metric"]) == (f"pgd from {made_on}", name, "asr")
        )
        assert rate == pytest.approx(sum(broken.values()) / COUNT)
    (line,) = (row for row in summary["comparisons"] if row["model"] == "diffvit-0 → vit-1")
    there, back = (sum(by_hand[way].values()) for way in (("diffvit-0", "vit-1"), ("vit-1", "diffvit-0")))
    assert line["against"] == "vit-1 → diffvit-0"
    assert line["difference"] == pytest.approx((there - back) / COUNT)
    pairs = [("diffvit-0", "vit-0"), ("diffvit-0", "vit-1")]
    mean = 50 * sum(sum(by_hand[way].values()) for way in pairs) / COUNT
    assert open_result(out).line().startswith(f"differential → standard {mean:.1f} %")
    assert "made on" in (out / "report.html").read_text(encoding="utf-8")
    # the same command finds its rows, and a comparison with itself finds no difference
    cells = sorted(path.name for path in (out / "cells").rglob("*.parquet"))
    assert run_cli("transfer", MODELS, *SIZE, "--eps", "16/255", "--out", out)[0] == 0
    assert sorted(path.name for path in (out / "cells").rglob("*.parquet")) == cells
    same = open_result(out).compare(open_result(out))
    assert same["difference"].to_list() == [0.0] * len(same)
    assert set(same["model"]) == set(NAMES)
    assert same.schema["n"] == pl.Int64


def test_function_of_modules_gives_the_rows_of_the_command(tmp_path, by_hand):
    models = {name: ap.load_model(f"specimen:{name}") for name in NAMES[:2]}
    data = ap.load_data("specimen-fashion-mnist", limit=COUNT, seed=0)
    result = ap.transfer(models, data=data, eps=EPS, steps=STEPS, device="cpu", quiet=True)
    for way, broken in by_hand.items():
        cell = result.frame().filter(surrogate=way[0], model=way[1])
        assert dict(cell.select("sample", "success").iter_rows()) == (broken if {*way} <= {*models} else {})
    assert "transfer-0" in result.table_names
    with pytest.raises(ap.UserError, match="expected two or more"):
        ap.transfer(models["vit-0"], data=data, quiet=True)


def test_rows_of_a_search_in_bf16_are_its_own(tmp_path, run_cli):
    words = ("transfer", MODELS, "--limit", 2, "--steps", 1, "--device", "cpu", "-q", "--out", tmp_path)
    counts = []
    for precision in ("float32", "auto", "bf16"):
        assert run_cli(*words, "--precision", precision)[0] == 0
        counts.append(len([*(tmp_path / "cells").glob("*")]))
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["specimen:vit-0"], "model vit-0: expected two or more, separated by commas"),
        ([MODELS, "--attack", "fab"], "attack fab: stops at the nearest adversarial image; expected one such as pgd"),
        ([MODELS, "--attack", "pgd,square"], "attack pgd,square: are several attacks; expected one"),
        ([MODELS, "--data", "pope"], "data pope: are questions; expected images with classes"),
    ],
)
def test_what_cannot_transfer_is_refused(tmp_path, run_cli, words, message):
    code, _, error = run_cli("transfer", *words, "--out", tmp_path / "out", "-q")
    assert code == 2
    assert message in error
    assert not (tmp_path / "out").exists()


def test_rows_of_a_compiled_search_are_its_own(tmp_path, monkeypatch):
    kept = []

    def stopped(out, identity, *rest):
        kept.append(identity)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "Cache", stopped)
    monkeypatch.setenv("CXX", "true")  # is there, and not called
    for compiled in (False, True):
        with pytest.raises(KeyboardInterrupt):
            ap.transfer("specimen:vit-0,specimen:vit-1", limit=2, steps=1, compile=compiled, out=tmp_path, quiet=True)
    assert kept[1] == kept[0] | {"compile": True}
