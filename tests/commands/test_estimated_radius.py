"""Margins and Lipschitz constants as rows: against the whole Jacobian, a linear model, an interruption, the command."""

import json
import math

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import nn
from torch.testing import assert_close

from antiphase.commands.certify.run import RADIUS_SCHEMA, margin_slopes, measure_radii
from antiphase.data import load_data
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from tests.counting import Counting


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    specs = []
    for factory in (diffvit, vit):
        model, directory = (
            factory(8, dim=16, depth=2, num_heads=2),
            tmp_path_factory.mktemp("pair") / factory.__name__,
        )
        recipe = {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}
        save(model, recipe, directory)
        specs.append(str(directory))
    return specs


def measure(model, data, out, batch_size=3, process=Process(), **more):  # noqa: B008 (frozen)
    options = {"steps": 200, "seed": 0, "process": process, "batch_size": batch_size, "progress": False}
    return measure_radii("m", model.eval(), data, out, **(options | more))


def test_rows_are_those_of_the_whole_jacobian(tmp_path, pair):
    model, data = load_model(pair[0]).eval(), load_data("digits", limit=5, seed=0)
    rows = measure(model, data, tmp_path).sort("sample")
    assert dict(rows.schema) == RADIUS_SCHEMA
    double = load_model(pair[0]).double().eval().requires_grad_(False)
    order = data.ids.argsort()
    for at, position in enumerate(order.tolist()):
        x = data.images([position]).double()
        jacobian = torch.autograd.functional.jacobian(lambda x: double(x)[0], x).flatten(1)
        logits = double(x)[0]
        first, second = logits.topk(2).indices.tolist()
        row = rows.row(at, named=True)
        assert (row["prediction"], row["label"]) == (first, int(data.labels[position]))
        assert row["margin"] == pytest.approx(float(logits[first] - logits[second]), rel=1e-3)
        assert row["slope"] == pytest.approx(float((jacobian[first] - jacobian[second]).norm()), rel=1e-3)
        assert row["lipschitz"] == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-3)
        assert row["slope"] <= 2**0.5 * row["lipschitz"] * 1.001  # why the radius has √2


def test_the_radius_of_a_linear_model_is_the_distance_to_its_boundary():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False)).double()
    x = torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prediction, margin, slope = margin_slopes(model, x)
    weights = model[1].weight.detach()
    difference = weights[0] - weights[1]
    signed = x.flatten(1) @ difference
    assert prediction.tolist() == (signed < 0).long().tolist()
    distance = signed.abs() / difference.norm()
    assert_close(margin / slope, distance)


def test_an_interrupted_run_goes_on_and_more_images_cost_only_those(tmp_path, pair):
    data, model = load_data("digits", limit=4, seed=0), Counting(load_model(pair[0]))
    whole = measure(model, data, tmp_path / "whole", batch_size=1)
    price = model.rows
    with pytest.raises(KeyboardInterrupt):
        measure(Counting(model.model, until=price // 2), data, tmp_path / "cut", batch_size=1)
    again = Counting(model.model)
    assert_frame_equal(measure(again, data, tmp_path / "cut", batch_size=1), whole)
    assert 0 < again.rows < price
    assert measure(again, data, tmp_path / "cut", limit=2)["sample"].to_list() == sorted(data.ids.tolist()[:2])
    assert_frame_equal(measure(model, data, tmp_path / "other", batch_size=3), whole, rel_tol=1e-4)


QUICK = ("--sigma", 0.2, "--select", 5, "--samples", 30, "--alpha", 0.05, "--quiet", "--limit", 6)


def test_certify_estimates_radii_and_compares_them_with_equation_6(tmp_path, run_cli, pair):
    arguments = ["certify", pair[0], "--against", pair[1], *QUICK, "--estimated", 4, "--out", tmp_path]
    code, out, err = run_cli(*arguments)
    assert code == 0, err
    assert "not certified, mean of 4 images" in out
    assert "(6) corrected" in out
    assert "depth 1" in out
    estimated = json.loads((tmp_path / "summary.json").read_text())["estimated"]
    rows = pl.read_parquet(tmp_path / "estimated.parquet")
    assert len(rows) == 8
    for model in estimated["models"]:
        own = rows.filter(model=model["name"])
        radius = (own["prediction"] == own["label"]).cast(pl.Float64) * own["margin"] / own["lipschitz"]
        assert model["printed"]["value"] == pytest.approx(radius.mean())
        assert model["radius"]["value"] == pytest.approx(radius.mean() / 2**0.5)  # type: ignore[operator]
    ratios = {(row["layer"], row["metric"]): row["value"] for row in estimated["ratios"]}
    first, second = (rows.filter(model=model["name"]) for model in estimated["models"])
    logs = [(one["margin"] / one["lipschitz"]).log().mean() for one in (first, second)]
    assert ratios[0, "measured"] == ratios[1, "measured"] == pytest.approx(math.exp(logs[0] - logs[1]))
    assert {layer for layer, metric in ratios if metric == "printed"} == {0, 1}
    code, again, err = run_cli(*arguments)
    assert again.splitlines()[:-1] == out.splitlines()[:-1]


def test_twins_that_equation_6_is_not_about_are_named(tmp_path, run_cli, pair):
    code, out, err = run_cli("certify", pair[1], "--against", pair[0], *QUICK, "--out", tmp_path)
    assert code == 0, err
    assert "Note: equation (6) is about a differential model against standard attention" in out
    assert "(6) corrected" not in out
    assert "whole models" in out
    estimated = json.loads((tmp_path / "summary.json").read_text())["estimated"]
    assert {row["metric"] for row in estimated["ratios"]} == {"margin", "constant", "measured"}
    code, out, err = run_cli("certify", pair[0], *QUICK, "--estimated", 0, "--out", tmp_path / "none")
    assert (code, "not certified" in out) == (0, False), err
