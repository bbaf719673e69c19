"""The command line beside the audit (tests/studies) and training (tests/training)."""

import json

import polars as pl
import pytest

from antiphase.commands.parse import parse_eps
from antiphase.errors import UserError


def test_quickstart_audits_the_specimens_without_a_download(tmp_path, run_cli):
    code, out, err = run_cli(
        "quickstart", "--eps", "8/255", "--limit", 30, "--out", tmp_path / "run", "--quiet"
    )
    assert code == 0, err
    assert "report.html" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [m["name"] for m in summary["models"]] == [
        f"{kind}-{i}" for kind in ("diffvit", "vit") for i in range(3)
    ]
    assert len(pl.read_parquet(tmp_path / "run" / "rows.parquet")) == 6 * 30
    assert [(c["model"], c["against"]) for c in summary["comparisons"]] == [
        (f"diffvit-{i}", f"vit-{i}") for i in range(3)
    ]
    assert all(m["clean_accuracy"] > 0.8 for m in summary["models"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'src="http' not in page


def test_version_and_help(run_cli):
    assert run_cli("--version")[1].startswith("antiphase 0.")
    commands = "quickstart audit attack train train-clip evaluate export look sense certify findings"
    for command in commands.split():
        code, out, _ = run_cli(command, "--help")
        assert code == 0
        assert "Examples" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["train", "--model", "cnn", "--data", "digits", "--out", "x"], "cnn"),
        (["train", "--model", "vit", "--data", "digitz", "--out", "x"], "digits"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--heads", "3"], "heads"),
        (["train", "--model", "diffvit", "--data", "digits", "--out", "x", "--heads", "1"], "num_heads 1"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--patch-size", "3"], "patch_size 3"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--epochs", "0"], "--epochs"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--precision", "int3"], "int3"),
        (["train", "--model", "vit", "--data", "digits"], "--out"),
        (["quickstart", "--eps", "1/255,abc"], "abc"),
        (["sense", "specimen:diffvit-0", "--parts", "gradients"], "parts gradients"),
        (["sense", "specimen:diffvit-0", "--probes", "1"], "probes 1"),
        (["sense", "specimen:diffvit-0", "--eps", "2"], "eps 2.0"),
        (["sense", "specimen:diffvit-0", "--radius", "1/255,2/255"], "radius 1/255,2/255"),
        (["sense", "specimen:diffvit-0", "--against", "specimen:vit-0,specimen:vit-1"], "1 models against 2"),
        (
            ["sense", "timm:resnet10t", "--random-weights", "--data", "random", "--limit", "1", "-q"],
            "no attention",
        ),
        (["certify", "specimen:diffvit-0", "--sigma", "-1"], "sigma -1.0"),
        (["findings", "--sense", "nowhere", "--audit", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, run_cli, arguments, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["attack", "specimen:vit-0", "--out"],
        ["evaluate", "specimen:vit-0", "--tasks", "accuracy", "--out"],
        ["study", "report", "figure-2a", "--out"],
        ["study", "status", "figure-2a", "--store"],
    ],
)
def test_a_file_where_a_folder_belongs_is_named(tmp_path, run_cli, command):
    (tmp_path / "taken").write_text("mine")
    code, _, err = run_cli(*command, tmp_path / "taken")
    assert code == 2
    assert err.count("\n") == 1
    assert f"{command[-1]}': " in err
    assert f"{tmp_path / 'taken'}' is a file" in err
    assert (tmp_path / "taken").read_text() == "mine"


def test_eps_are_numbers_or_fractions():
    assert parse_eps("1/255, 0.5/255,2e-2") == (1 / 255, 0.5 / 255, 0.02)
    for text in ("", "1//2", "1/0", "one"):
        with pytest.raises(UserError, match="fraction"):
            parse_eps(text)
