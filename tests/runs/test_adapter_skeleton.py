"""``antiphase sense --write-adapter``, and models that are measured without one."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

from antiphase.commands.loading import load_models
from antiphase.models import clip, write_model
from antiphase.sensitivity import attention_maps
from antiphase.sensitivity.attention_adapters import _ADAPTERS
from tests.training.tiny_pairs import TINY

OWN = Path(__file__).parents[1] / "sensitivity" / "own_attention.py"
MODEL = """
import torch
from torch import nn
import their_attention as own

class Net(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, own.DIM, 7, 7), nn.LayerNorm(own.DIM)
        self.positions, self.mix = nn.Parameter(torch.randn(1, 16, own.DIM)), mix
        self.head = nn.Linear(own.DIM, 10)

    def forward(self, images):
        x = self.norm(self.patches(images).flatten(2).mT + self.positions)
        return self.head((x + self.mix(x)).mean(1))

def diffvit():
    return Net(own.Interleaved())

def vit():
    return Net(own.Standard())

def of_query():
    return Net(own.OfQuery())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN, tmp_path / "their_attention.py")
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


def test_a_pair_written_by_hand_is_sensed_without_a_line_of_glue(folder, run_cli):
    words = (
        "--data",
        "specimen-fashion-mnist",
        "--limit",
        2,
        "--probes",
        2,
        "--steps",
        1,
        "--eps",
        "4/255",
        "-q",
    )
    code, _, err = run_cli(
        "sense", "python:net.py:diffvit", "--against", "python:net.py:vit", *words, "--out", "run"
    )
    assert code == 0, err
    rows = pl.read_parquet("run/alignment.parquet")
    kinds = dict(rows.select("model", "attention").unique().iter_rows())
    assert kinds == {"diffvit": "differential", "vit": "softmax"}
    lam = rows.filter(pl.col("model") == "diffvit")["lam"]
    assert lam.to_list() == pytest.approx([0.6] * len(lam), rel=1e-3)
    assert json.loads(Path("run/run.json").read_text())["models"]["vit"] == "python:net.py:vit"


def test_a_skeleton_names_the_parts_and_works_once_it_is_completed(folder, run_cli):
    code, _, err = run_cli("sense", "python:net.py:of_query", "--data", "digits", "--out", "run")
    assert code == 2
    code, out, err = run_cli("sense", "python:net.py:of_query", "--write-adapter", "adapter.py")
    assert (code, out) == (0, "adapter.py: complete it, then import it where the model is built\n"), err
    text = Path("adapter.py").read_text()
    assert "Split their_attention.OfQuery, in the model: mix." in text
    assert "q1 Linear(in_features=12, out_features=12, bias=True)" in text
    Path("adapter.py").write_text(text.replace("lam = module.lam ", "lam = module.lam(x) "))
    (folder / "net.py").write_text("import adapter\n" + MODEL)
    try:
        (model,) = load_models(["python:net.py:of_query"], torch.device("cpu"))
        (maps,) = attention_maps(model, torch.rand(2, 1, 28, 28)).values()
    finally:
        _ADAPTERS.pop("their_attention.OfQuery", None)
    assert maps.lam.shape == (2, 2, 16)
    assert model.card.attention == "differential"
    assert run_cli("sense", "python:net.py:of_query", "--write-adapter", "adapter.py")[0] == 2  # it exists


def test_the_image_tower_of_a_clip_is_looked_at(folder, run_cli):
    write_model(clip(**TINY), folder / "clip")
    code, out, err = run_cli("sense", "clip", "--write-adapter", "adapter.py")
    assert (code, out) == (0, "all attention is recognised; no adapter is needed\n"), err


def test_no_skeleton_is_written_where_none_is_needed(folder, run_cli):
    code, out, _ = run_cli("sense", "python:net.py:diffvit", "--write-adapter", "adapter.py")
    assert (code, out) == (0, "all attention is recognised; no adapter is needed\n")
    assert not Path("adapter.py").exists()
