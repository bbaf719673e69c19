"""Smoothing as a user runs it: rows, curve, an interruption, two processes, the command and its mistakes."""

import json
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from antiphase.commands.certify import CertifyOptions
from antiphase.commands.certify.run import _decided, curve, curve_figure, run, smoothed_rows, summarise_certificates
from antiphase.commands.lineup import Lineup
from antiphase.data import load_data
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from antiphase.sensitivity.smoothing import Smoothing, smooth
from antiphase.statistics.intervals import proportion
from tests.counting import Counting
from tests.threads import in_threads

QUICK = Smoothing(0.2, select=5, samples=30, alpha=0.05)
QUICK_OPTIONS = ("--sigma", 0.2, "--select", 5, "--samples", 30, "--alpha", 0.05, "--quiet")


def chosen(out, batch_size=None, **settings):
    return CertifyOptions(model="m", out=out, batch_size=batch_size, quiet=True, **settings)


def certified(model, data, out, smoothing=QUICK, batch_size=None):
    return run(chosen(out, batch_size, **asdict(smoothing)), lineup=Lineup([model], [], data))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    specs = []
    for factory in (diffvit, vit):
        model, directory = factory(8), tmp_path_factory.mktemp("pair") / factory.__name__
        recipe = {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}
        save(model, recipe, directory)
        specs.append(str(directory))
    return specs


def test_rows_are_the_verdicts_of_the_library(tmp_path, pair):
    model, data = load_model(pair[0]), load_data("digits", limit=7, seed=0)
    rows, summary = certified(model, data, tmp_path)
    images = data.images(range(7))
    result = smooth(model, images, **asdict(QUICK), ids=data.ids)
    assert rows["sample"].to_list() == data.ids.tolist()
    assert rows["label"].to_list() == data.labels.tolist()
    assert rows["clean_prediction"].to_list() == model(images).argmax(1).tolist()
    for name in ("prediction", "radius", "top", "count"):
        assert rows[name].to_list() == getattr(result, name).tolist(), name
    assert_frame_equal(rows, pl.read_parquet(tmp_path / "rows.parquet"))
    assert summary == json.loads((tmp_path / "summary.json").read_text())


def test_an_interrupted_run_goes_on_and_does_nothing_twice(tmp_path, pair):
    data = load_data("digits", limit=11)
    whole, _ = certified(load_model(pair[0]), data, tmp_path / "whole")
    first, again = Counting(load_model(pair[0]), until=16 + 5 * 48), Counting(load_model(pair[0]))
    with pytest.raises(KeyboardInterrupt):
        certified(first, data, tmp_path / "cut", batch_size=35)
    assert not (tmp_path / "cut" / "summary.json").exists()
    rows, _ = certified(again, data, tmp_path / "cut", batch_size=35)
    assert_frame_equal(rows, whole)
    assert again.rows == 16 + (11 - 5) * 48  # copies padded to the oracle's quantum, and the clean images
    certified(last := Counting(load_model(pair[0])), data, tmp_path / "cut")
    assert last.rows == 0


def test_what_affects_the_rows_names_the_cell_and_nothing_else_does(tmp_path, pair):
    models, data = [load_model(spec) for spec in pair], load_data("digits", limit=2)

    def cells(model=models[0], data=data, smoothing=QUICK, **options):
        certified(model, data, tmp_path, smoothing, **options)
        return len(list((tmp_path / "cells").iterdir()))

    assert cells() == 1
    assert cells(batch_size=3) == 1
    changes = ({"sigma": 0.3}, {"samples": 31}, {"select": 6}, {"alpha": 0.06}, {"seed": 1}, {"precision": "bf16"})
    for count, change in enumerate(changes, start=2):
        assert cells(smoothing=replace(QUICK, **change)) == count, change
    assert cells(model=models[1]) == count + 1  # pyright: ignore[reportPossiblyUnboundVariable]
    assert cells(data=load_data("digits", limit=3)) == count + 2  # pyright: ignore[reportPossiblyUnboundVariable]


def test_two_processes_share_the_images(tmp_path, pair):
    data, models = load_data("digits", limit=9), [Counting(load_model(pair[0])) for _ in range(2)]

    def share(process):
        return smoothed_rows("m", models[process.rank], data, QUICK, chosen(tmp_path, 35), process)

    assert_frame_equal(*in_threads(2, share))
    assert [model.rows for model in models] == [16 + images * 48 for images in (5, 4)]
    alone, _ = certified(load_model(pair[0]), data, tmp_path / "one")
    assert_frame_equal(
        smoothed_rows("m", models[0].model, data, QUICK, chosen(tmp_path), Process()).drop("model"), alone.drop("model")
    )


def test_the_curve_by_hand():
    radius, correct = np.array([0.0, 0.1, 0.2, 0.3, 0.0]), np.array([True, True, False, True, False])
    points = curve(radius, correct, [0.0, 0.1, 0.15, 0.3, 0.31])
    assert points["value"].to_list() == [0.6, 0.4, 0.2, 0.2, 0.0]
    assert (points["low"][1], points["high"][1]) == (proportion(2, 5).low, proportion(2, 5).high)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_the_curve_falls_and_its_area_is_the_mean_radius(images):
    radius, correct = (np.array(column) for column in zip(*images, strict=True))
    grid = np.linspace(0, 1, 1001)
    values = curve(radius, correct, grid)["value"].to_numpy()
    assert (np.diff(values) <= 0).all()
    assert values[0] == correct.mean()
    assert abs(float(np.trapezoid(values, grid)) - np.where(correct, radius, 0.0).mean()) <= 1e-3


def _rows(model, label, prediction, radius):
    count = len(label)
    return pl.DataFrame(
        {
            "model": [model] * count,
            "attention": ["softmax"] * count,
            "seed": [0] * count,
            "sample": range(count),
            "label": label,
            "clean_prediction": label,
            "prediction": prediction,
            "radius": radius,
        }
    )


def test_the_summary_counts_abstentions_and_compares_on_the_same_images():
    smoothing = Smoothing(0.25, samples=1000)
    first = _rows("a", [0, 1, 2, 3], [0, 1, -1, 0], [0.3, 0.1, 0.0, 0.4])
    second = _rows("b", [0, 1, 2, 3], [-1, -1, -1, 3], [0.0, 0.0, 0.0, 0.26]).reverse()
    summary = summarise_certificates(pl.concat([first, second]), smoothing)
    a, b = summary["models"]
    assert (a["clean_accuracy"]["value"], a["smoothed_accuracy"]["value"], a["abstentions"]["value"]) == (1, 0.5, 0.25)
    assert (a["mean_radius"], b["mean_radius"]) == (pytest.approx(0.1), pytest.approx(0.065))
    assert [point["radius"] for point in a["certified_accuracy"]] == [0, 0.125, 0.25, 0.375, 0.5]
    assert [point["value"] for point in a["certified_accuracy"]] == [0.5, 0.25, 0.25, 0, 0]
    assert [point["value"] for point in summary["comparisons"]] == [0.25, 0.0, 0.0, 0.0, 0.0]
    assert all(point["low"] <= point["value"] <= point["high"] for point in summary["comparisons"])


def test_the_figure_draws_the_curve_of_the_rows():
    smoothing = Smoothing(0.25, samples=1000)
    rows = pl.concat([_rows("a", [0, 1], [0, 1], [0.3, 0.1]), _rows("b", [0, 1], [0, -1], [0.2, 0.0])])
    (axes,) = curve_figure(rows, summarise_certificates(rows, smoothing)).axes
    first, second = axes.lines
    x, y = first.get_data()
    assert (x[0], x[-1]) == axes.get_xlim() == (0, pytest.approx(smoothing.reach))
    assert [y[x <= r][-1] for r in (0.0, 0.09, 0.29, 0.6)] == [100, 100, 50, 0]
    assert second.get_ydata()[0] == 50
    assert first.get_color() != second.get_color()
    assert [text.get_text()[:1] for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_the_command_writes_rows_summary_figure_and_page(tmp_path, run_cli, pair):
    arguments = ["certify", pair[0], "--against", pair[1], *QUICK_OPTIONS, "--limit", 5, "--out", tmp_path]
    code, out, err = run_cli(*arguments)
    assert code == 0, err
    assert "Certified accuracy at L2 radius" in out
    assert "− vit" in out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [model["name"] for model in summary["models"]] == ["diffvit", "vit"]
    assert len(pl.read_parquet(tmp_path / "rows.parquet")) == 10
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    figure = (tmp_path / "curve.svg").read_bytes()
    assert b"<svg" in figure
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No difference shown between diffvit and vit" in page  # 5 images show none
    assert "5 images, smoothed with σ" in page
    assert [model["num_classes"] for model in summary["models"]] == [10, 10]
    assert "Difference from the twin" in page
    assert "<svg" in page
    code, again, err = run_cli(*arguments)
    assert code == 0, err
    assert again.splitlines()[:-1] == out.splitlines()[:-1]
    assert (tmp_path / "curve.svg").read_bytes() == figure


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--sigma", 0], "sigma 0"),
        (["--sigma", "nan"], "sigma 'nan': expected a finite number"),
        (["--alpha", 1], "alpha 1"),
        (["--alpha", -0.1], "alpha -0.1"),
        (["--samples", 0], "samples 0"),
        (["--samples", 4], "at least 5"),
        (["--select", 0], "select 0"),
        (["--data", "digitz"], "digitz"),
        (["--data", "specimen-fashion-mnist"], "(1, 28, 28)"),
        (["--precision", "int4"], "int4"),
        (["--against", "specimen:vat-0"], "vat-0"),
        (["--limit", 0], "limit 0: expected an integer of at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, run_cli, pair, arguments, named):
    code, out, err = run_cli("certify", pair[0], *QUICK_OPTIONS, *arguments, "--out", tmp_path / "o")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert named in err
    assert not (tmp_path / "o").exists()


def test_a_difference_of_certified_accuracy_is_decided_with_the_exact_test():
    """5 images of 24 against none: Newcombe's interval lies above 0, McNemar's p is 0.0625."""
    smoothing, certain, never = Smoothing(0.25, samples=10), [1] * 5 + [-1] * 19, [-1] * 24
    rows = pl.concat([_rows("a", [1] * 24, certain, [0.01] * 24), _rows("b", [1] * 24, never, [0.0] * 24)])
    (first, *_) = summarise_certificates(rows, smoothing)["comparisons"]
    assert (first["p"], first["low"] > 0) == (pytest.approx(0.0625), True)
    assert _decided([first]) == [0]
