"""Margins and Lipschitz constants as rows: against the whole Jacobian, a linear model, an interruption, the command."""

import json

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import nn
from torch.testing import assert_close

import antiphase as ap
from antiphase.commands.certify.run import RADIUS, margin_slopes
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.data import load_data
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
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


def measure(model, data, out, batch_size=3, **more):
    options = SenseOptions(model=("m",), steps=200, batch_size=batch_size, quiet=True)
    return sense("m", model.eval(), data, options, out, parts=[RADIUS], **more)["radius"]


def test_rows_are_those_of_the_whole_jacobian(tmp_path, pair):
    model, data = load_model(pair[0]).eval(), load_data("digits", limit=5, seed=0)
    rows = measure(model, data, tmp_path).sort("sample")
    double = load_model(pair[0]).double().eval().requires_grad_(False)
    order = data.ids.argsort()
    for index, position in enumerate(order.tolist()):
        x = data.images([position]).double()
        jacobian = torch.autograd.functional.jacobian(lambda x: double(x)[0], x).flatten(1)
        logits = double(x)[0]
        first, second = logits.topk(2).indices.tolist()
        row = rows.row(index, named=True)
        assert (row["sample"], row["prediction"]) == (int(data.ids[position]), first)
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


@pytest.mark.long
def test_certify_shows_estimated_radii_beside_certified_ones(tmp_path, run_cli, pair):
    words = "--sigma 0.2 --select 5 --samples 30 --alpha 0.05 --quiet --limit 40 --out"
    quick = (*words.split(), tmp_path)
    code, out, err = run_cli("certify", pair[0], "--against", pair[1], *quick, "--estimated", 30)
    assert code == 0, err
    assert "estimated R" in out
    rows = pl.read_parquet(tmp_path / "estimated_radius.parquet")
    radius = rows["margin"] / rows["lipschitz"] / 2**0.5
    assert rows["estimated_radius"].to_list() == pytest.approx(radius.to_list())
    right = (pl.col("prediction") == pl.col("label")).cast(pl.Float64)
    assert 0 < rows.select(right.mean()).item() < 1
    means = rows.group_by("model", maintain_order=True).agg(
        (right * pl.col("estimated_radius")).mean().alias("estimated_radius"), pl.len()
    )
    assert means["len"].to_list() == [30, 30]
    models = json.loads((tmp_path / "summary.json").read_text())["models"]
    assert [model["estimated_radius"] for model in models] == pytest.approx(means["estimated_radius"].to_list())
    code, out, err = run_cli("certify", pair[0], "--against", pair[1], *quick)
    assert (code, "estimated R" in out) == (0, False), err
    assert not (tmp_path / "estimated_radius.parquet").exists()


def test_a_model_without_slope_has_an_infinite_estimate(tmp_path):
    class Flat(nn.Module):
        def forward(self, x):
            return torch.eye(10)[torch.ones(len(x), dtype=int)]  # all digits are a 1

    result = ap.certify(Flat(), data="digits", limit=40, samples=20, estimated=40, quiet=True, out=tmp_path)
    assert result.summary["models"][0]["clean_accuracy"]["value"] > 0
    assert result.summary["models"][0]["estimated_radius"] is None
    assert "∞" in (tmp_path / "report.html").read_text()
