"""Sensitivity as a study: its rows, that they hang on nothing else, an interruption, two processes, mistakes."""

import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from antiphase.attacks import Threat, pgd
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from antiphase.sensitivity import attention_layers, exact_gram
from antiphase.sensitivity.layer_estimates import ALIGNMENT_SCHEMA, DEPTH_SCHEMA, LIPSCHITZ_SCHEMA, prediction_error
from antiphase.streams import key, sample_keys, uniform
from tests.counting import Counting

QUICK = SenseOptions.from_file(
    {"probes": 3, "samples": 4, "steps": 3, "points": 2, "eps": (2 / 255, 5 / 255), "lipschitz_limit": 2},
    model=("m",),
    quiet=True,
)
PARTS = ("alignment", "lipschitz", "depth")
SIZES = {"patch_size": 4, "dim": 20, "depth": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    specs = {}
    for factory in (diffvit, vit):
        directory = tmp_path_factory.mktemp("pair") / factory.__name__
        model: Any = factory(8, **SIZES)
        recipe = {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}
        save(model, recipe, directory)
        specs[factory.__name__] = str(directory)
    return specs


def changed(options=QUICK, **values):
    return options.model_copy(update=values)


def measure(model, data, out, plan=QUICK, parts=PARTS, process=None, batch_size=3):
    options = changed(plan, parts=tuple(parts), batch_size=batch_size)
    return sense("m", model.eval(), data, options, out, process=process)


@pytest.fixture(scope="module")
def measured(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured")
    data = load_data("digits", limit=5, seed=0)
    return data, {kind: measure(load_model(spec), data, out) for kind, spec in pair.items()}


@pytest.mark.parametrize(("kind", "heads"), [("diffvit", 2), ("vit", 4)])
def test_every_part_has_its_rows(measured, kind, heads):
    data, tables = measured
    rows = tables[kind]
    schemas = {"alignment": ALIGNMENT_SCHEMA, "lipschitz": LIPSCHITZ_SCHEMA, "depth": DEPTH_SCHEMA}
    assert {part: dict(rows[part].schema) for part in rows} == schemas
    assert len(rows["alignment"]) == 5 * 2 * heads * 3  # layers, heads, sites
    assert len(rows["lipschitz"]) == 2 * (2 + 1) * 6  # fewer images; maps and logits, estimators
    assert len(rows["depth"]) == 5 * 2 * 2 * 3  # budgets, perturbations, the embedding and two blocks
    for part in PARTS:
        keys = ["sample", *(set(schemas[part]) & {"site", "layer", "head", "of", "estimator"})]
        keys += list(set(schemas[part]) & {"perturbation", "eps", "stage"})
        assert not rows[part].select(keys).is_duplicated().any()
        assert rows[part]["attention"].unique().to_list() == ["softmax" if kind == "vit" else "differential"]
    assert rows["depth"]["sample"].unique().sort().to_list() == data.ids.tolist()
    assert rows["lipschitz"]["sample"].unique().sort().to_list() == data.ids.tolist()[:2]
    assert rows["lipschitz"].filter(of="logits")["layer"].is_null().all()


def test_alignment_at_perturbed_images_is_alignment_measured_on_them(pair, tmp_path):
    model, data = load_model(pair["diffvit"]), load_data("digits", limit=3, seed=0)
    plan = changed(radius=8 / 255)
    perturbed = measure(model, data, tmp_path / "both", plan, ("alignment-perturbed",))["alignment-perturbed"]
    clean = data.images(range(3))
    keys = sample_keys(key(plan.seed, "travel", round(plan.radius * 2**20)), data.ids)
    noise = (clean + plan.radius * (2 * uniform(keys, 64) - 1).view_as(clean)).clamp(0, 1)
    attacked = pgd(model, clean, None, Threat(eps=plan.radius), ids=data.ids, early_stop=False, progress=False)
    labels = model(clean).argmax(1)
    for name, moved in (("noise", noise), ("pgd", attacked.adversarial)):
        assert 0 < (moved - clean).abs().max() <= plan.radius + 1e-6
        alone = replace(data, pixels=moved.detach())
        expected = measure(model, alone, tmp_path / name, plan, ("alignment",))["alignment"]
        part = perturbed.filter(perturbation=name)
        assert set(part["eps"]) == {plan.radius}
        same = model(moved).argmax(1) == labels  # else the loss, of the clean prediction, is another
        kept = (pl.col("site") != "loss") | pl.col("sample").is_in(data.ids[same].tolist())
        frames = (frame.filter(kept).select(*ALIGNMENT_SCHEMA) for frame in (part, expected))
        assert_frame_equal(*frames, rel_tol=1e-4, abs_tol=1e-9)


def test_the_rows_are_those_of_the_library(measured, pair):
    data, tables = measured
    for kind in ("diffvit", "vit"):
        rows = tables[kind]["alignment"].filter(site="tokens")
        layers = attention_layers(load_model(pair[kind]).eval(), data.images(range(5)))
        for index, layer in enumerate(layers):
            here = rows.filter(layer=index).sort("sample", "head")
            assert here["name"].unique().to_list() == [layer.name]
            gram = exact_gram(layer.positive, layer.negative)
            for part in ("first", "second", "cross"):
                assert here[part].to_list() == pytest.approx(getattr(gram, part).flatten().tolist(), rel=1e-4, abs=1e-7)
            assert here["lam"].to_list() == pytest.approx(layer.weight.repeat(5).tolist())
            assert (here["probes"] == 0).all()


def test_theorem_1_predicts_what_is_measured_in_every_row(measured):
    _, tables = measured
    rows = tables["diffvit"]["alignment"]
    assert rows.filter(pl.col("moved").is_not_null())["site"].unique().sort().to_list() == ["loss", "pixels"]
    assert prediction_error(rows) < 1e-3
    assert (rows["low"] <= rows["high"]).all()
    cosine = rows["cross"] / (rows["first"] * rows["second"]).sqrt()
    assert ((rows["low"] - 1e-6 <= cosine) & (cosine <= rows["high"] + 1e-6)).all()


@pytest.mark.parametrize("kind", ["diffvit", "vit"])
def test_the_estimators_of_the_lipschitz_constant_stand_in_order(measured, kind):
    _, tables = measured
    rows = tables[kind]["lipschitz"].pivot("estimator", index=["of", "name", "sample"], values="value")
    assert len(rows) == 2 * 3
    for below, above in (
        ("sampled mean", "sampled maximum"),
        ("sampled maximum", "gradient ascent"),
        ("power iteration", "gradient ascent"),
        ("power iteration", "exact"),
    ):
        assert (rows[below] > 0).all()
        assert (rows[below] <= rows[above] * (1 + 1e-5)).all(), (below, above)


def test_the_depth_follows_from_its_rows(measured):
    _, tables = measured
    for kind in ("diffvit", "vit"):
        rows = tables[kind]["depth"]
        for _, path in rows.group_by("sample", "perturbation", "eps"):
            path = path.sort("stage")
            assert path["name"].to_list() == ["embedding", "blocks.0", "blocks.1"]
            start = path["length"][0] / path["gain"][0]
            assert path["length"].to_list() == pytest.approx((start * path["gain"].cum_prod()).to_list(), rel=1e-5)
            assert (path["alpha"] * path["lipschitz"]).to_list() == pytest.approx(path["gain"].to_list(), rel=1e-5)
            assert path["moved"].is_null().to_list() == [True, False, False]
            assert start <= path["eps"][0] * 8 * (1 + 1e-5)  # 64 pixels within ε


def test_batches_and_the_order_change_nothing(measured, pair, tmp_path):
    data, tables = measured
    turned = data.take([1, 0, 4, 2, 3])  # the first two stay: Lipschitz constants are estimated there
    again = measure(load_model(pair["diffvit"]), turned, tmp_path, batch_size=1)
    for part, rows in tables["diffvit"].items():
        assert_frame_equal(again[part], rows, check_row_order=False, rel_tol=1e-5, abs_tol=1e-6)


def test_an_interrupted_run_goes_on_and_measures_only_what_is_missing(pair, tmp_path):
    data, rows_an_image = load_data("digits", limit=7, seed=0), 2 + QUICK.probes
    first, again = (Counting(load_model(pair["diffvit"]), until=n) for n in (3 * rows_an_image, math.inf))
    with pytest.raises(KeyboardInterrupt):
        measure(first, data, tmp_path / "cut", parts=["alignment"])
    whole = measure(Counting(first.model), data, tmp_path / "whole", parts=["alignment"])
    tables = measure(again, data, tmp_path / "cut", parts=["alignment"])
    assert again.rows == (7 - 3) * rows_an_image
    assert_frame_equal(tables["alignment"], whole["alignment"])


def test_a_second_call_reads_the_same_rows_and_runs_nothing(pair, tmp_path):
    data = load_data("digits", limit=2, seed=0)
    first, second = (Counting(load_model(pair["diffvit"])) for _ in range(2))
    tables = measure(first, data, tmp_path)
    again = measure(second, data, tmp_path, batch_size=2)
    assert (first.rows > 0, second.rows) == (True, 0)
    for part in PARTS:
        assert_frame_equal(again[part], tables[part])
    assert len(list(tmp_path.rglob("*.parquet"))) == len(PARTS)  # one file a part, once it is whole


def test_what_affects_the_rows_names_the_cell_and_nothing_else_does(pair, tmp_path):
    data = load_data("digits", limit=1)

    def cells(plan=QUICK, kind="diffvit", data=data, parts=("alignment",), **options):
        measure(load_model(pair[kind]), data, tmp_path, plan, parts, **options)
        return len(list((tmp_path / "cells").iterdir()))

    assert cells() == 1
    assert cells(batch_size=2) == 1
    assert cells(changed(radius=0.1, samples=6, steps=2, points=3, eps=(0.1,))) == 1
    assert cells(changed(probes=2)) == 2
    assert cells(changed(seed=1)) == 3
    assert cells(kind="vit") == 4
    assert cells(data=load_data("digits", limit=2)) == 5
    assert cells(parts=("depth",)) == 6
    assert cells(changed(probes=2, radius=0.1), parts=("depth",)) == 6


def test_more_images_for_lipschitz_constants_cost_only_those(pair, tmp_path):
    data = load_data("digits", limit=3, seed=0)
    model = Counting(load_model(pair["vit"]))
    few = measure(model, data, tmp_path, changed(lipschitz_limit=1), ["lipschitz"])["lipschitz"]
    price, model.rows = model.rows, 0
    many = measure(model, data, tmp_path, QUICK, ["lipschitz"], batch_size=1)["lipschitz"]
    assert model.rows == price
    assert_frame_equal(many.filter(sample=few["sample"][0]), few)
    model.rows = 0
    again = measure(model, data, tmp_path, changed(lipschitz_limit=1), ["lipschitz"])["lipschitz"]
    assert model.rows == 0
    assert_frame_equal(again, few)


def test_two_processes_share_the_images(pair, tmp_path, monkeypatch):
    data, rows_an_image = load_data("digits", limit=7, seed=0), 2 + QUICK.probes
    models = [Counting(load_model(pair["diffvit"])) for _ in range(2)]
    second = []

    def wait(self):
        if self.rank == 0 and not second:  # once both know what is missing, the other does its whole share
            second.append(None)
            second[0] = measure(models[1], data, tmp_path, parts=["alignment"], process=Process(1, 2))

    monkeypatch.setattr(Process, "wait", wait)
    first = measure(models[0], data, tmp_path, parts=["alignment"], process=Process(0, 2))
    assert [model.rows for model in models] == [4 * rows_an_image, 3 * rows_an_image]
    assert len(second[0]["alignment"]) == 3 * len(first["alignment"]) / 7  # it did not wait here
    alone = measure(models[0], data, tmp_path / "alone", parts=["alignment"])
    assert_frame_equal(first["alignment"], alone["alignment"], rel_tol=1e-4, abs_tol=1e-6)


def test_a_gradient_that_is_nan_is_named_and_what_was_measured_is_kept(pair, tmp_path):
    model, data = load_model(pair["diffvit"]), load_data("digits", limit=2, seed=0)
    kept = measure(model, data, tmp_path, parts=["alignment"])["alignment"]
    broken: Any = load_model(pair["diffvit"])
    broken.blocks[1].attn.qkv.weight.data[:20] = math.inf
    with pytest.raises(UserError) as error:
        measure(broken, data, tmp_path, parts=["alignment"])
    assert "\n" not in str(error.value)
    assert "blocks.1.attn" in str(error.value)
    assert_frame_equal(measure(model, data, tmp_path, parts=["alignment"])["alignment"], kept)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"probes": 1}, "probes 1: expected an integer of at least 2"),
        ({"radius": 0.0}, "radius 0"),
        ({"radius": math.nan}, "radius nan"),
        ({"eps": (1 / 255, 0.0)}, "eps 0: expected numbers above 0"),
        ({"eps": (1.5,)}, "eps 1.5"),
        ({"samples": 0}, "samples 0"),
        ({"steps": 0}, "steps 0"),
        ({"points": 0}, "points 0"),
        ({"lipschitz_limit": 0}, "lipschitz_limit 0"),
    ],
)
def test_sense_options_refuse_what_cannot_be_measured_in_one_line(change, named):
    with pytest.raises(UserError) as error:
        SenseOptions(model=("m",), parts=PARTS, **change)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
