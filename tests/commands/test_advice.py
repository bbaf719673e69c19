"""The advice at the end of an audit: what it takes from the study's numbers, and when it says nothing."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from antiphase.commands.audit import advice as module

ROOT = Path(__file__).parents[2]
MODEL = {"name": "mine", "attention": "differential", "lambda": [0.5, 0.25]}


def _measured(monkeypatch, *rows):
    usual = {"strength": 1.0, "verdict": "holds", "command": "antiphase train", "seeds": 8}
    usual |= {"asr": [-0.1, -0.12, -0.08], "accuracy": [-0.005, -0.01, 0.0], "times": 1.2}
    text = json.dumps([usual | row for row in rows])
    monkeypatch.setattr(module, "files", lambda _: type("Folder", (), {"joinpath": lambda *_: _File(text)})())


class _File:
    def __init__(self, text):
        self.text = text

    def read_text(self, encoding):
        return self.text


def test_the_strongest_of_those_that_cost_little_is_named(monkeypatch):
    strongest = {"defence": "costly", "asr": [-0.4, -0.5, -0.3], "accuracy": [-0.03, -0.04, -0.02]}
    slow = {"defence": "slow", "asr": [-0.3, -0.4, -0.2], "times": 2.8}
    none = {"defence": "nothing", "verdict": "absent", "asr": [0.0, -0.01, 0.01]}
    _measured(
        monkeypatch, strongest, slow, {"defence": "good"}, {"defence": "less", "asr": [-0.05, -0.06, -0.04]}, none
    )
    text = module.advice([{"name": "vit", "attention": "softmax", "lambda": []}, MODEL])
    assert "good helped DiffViTs most" in text
    assert "−10.0 points [−12.0, −8.0]" in text
    assert "Too little to matter: nothing." in text
    assert "mine has 2 layers with λ 0.50, 0.25" in text


def test_nothing_is_said_where_the_study_is_undecided_or_no_model_is_differential(monkeypatch):
    _measured(monkeypatch, {"defence": "unsure", "verdict": "undecided"})
    assert module.advice([MODEL]) == ""
    _measured(monkeypatch, {"defence": "good"})
    assert module.advice([{"name": "vit", "attention": "softmax", "lambda": []}]) == ""
    assert module.advice([MODEL | {"defended": True}]) == ""
    assert module.advice([MODEL | {"defended": True}, MODEL | {"name": "plain"}]).count("plain has 2 layers") == 1


@pytest.mark.thorough
def test_the_numbers_are_those_of_the_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("advice_script", ROOT / "benchmarks/advice.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "advice_script", script)
    spec.loader.exec_module(script)
    assert script.advice() == json.loads(script.FILE.read_text(encoding="utf-8"))
