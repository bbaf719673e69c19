"""The study of defences: its models, the strengths it takes, and what counts as robust."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import polars as pl

from antiphase.studies.own import defence, variants
from antiphase.studies.papers.robustness.bench import bench, twins
from antiphase.studies.spec import profile
from antiphase.studies.store import identity

LAPTOP = profile("laptop")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_natural_models_are_those_of_figure_2a():
    sizes, ours = bench(LAPTOP), {identity(cell) for cell in defence.cells(LAPTOP)}
    shared = {identity(sizes.attack(model)) for model in twins(LAPTOP) if model.seed < variants.SEEDS}
    assert len(shared) == 2 * variants.SEEDS
    assert shared <= ours


def test_a_defended_model_differs_from_the_natural_one_in_its_defence_alone():
    sizes = bench(LAPTOP)
    natural = defence.defended(sizes, "DiffViT", "natural", 3, "fashion-mnist", 0.0)
    for name in defence.DEFENCES:
        model = defence.defended(sizes, "DiffViT", name, 3, "fashion-mnist", defence.CHOSEN.get(name, 0.0))
        recipe = {key: value for key, value in model.recipe.items() if key != "defences"}
        sizes_ = {key: value for key, value in model.sizes.items() if key in natural.sizes}
        assert replace(model, called="DiffViT", recipe=recipe, adversary={}, sizes=sizes_) == natural
        assert identity(model) != identity(natural)
        if name in defence.CHOSEN:
            assert defence.CHOSEN[name] in {**model.recipe.get("defences", {}), **model.adversary}.values()


def test_strengths_are_those_that_the_rule_chose(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("defence_strengths", BENCHMARKS / "defence_strengths.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = json.loads((BENCHMARKS / "defence_strengths.json").read_text(encoding="utf-8"))["rows"]
    assert script.chosen(rows) == defence.CHOSEN


def test_robust_accuracy_counts_images_that_are_right_and_not_broken():
    columns = {"series": "DiffViT, fast", "attack": "autoattack", "restarts": None, "eps": 2 / 255, "label": 1}
    cases = ((1, False), (1, True), (0, False), (0, True))
    rows = pl.DataFrame([columns | {"clean_prediction": clean, "success": broken} for clean, broken in cases])
    _, autoattack, _ = defence.evaluated({"attack": rows})
    assert autoattack["robust"].to_list() == [1.0, 0.0, 0.0, 0.0]
    named = defence.split_series(autoattack)
    assert named["model"].to_list() == ["DiffViT"] * 4
    assert named["defence"].to_list() == ["fast"] * 4
