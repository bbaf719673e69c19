"""An estimator of the local Lipschitz constant is one object and one line of the registry."""

import pytest
from rich.console import Console

from antiphase import registry
from antiphase.commands.lineup import Lineup
from antiphase.commands.result import read_result
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import run
from antiphase.data import load_data
from antiphase.models import diffvit, load_model
from antiphase.models.checkpoints import save
from antiphase.report.table import OnConsole
from antiphase.sensitivity.lipschitz import Estimator, all_estimators

SETTINGS = {"parts": ("lipschitz",), "samples": 2, "steps": 1, "points": 1, "lipschitz_limit": 2, "quiet": True}
BUILT_IN = ["sampled mean", "sampled maximum", "power iteration", "gradient ascent", "local maximum", "exact"]
HALF = Estimator(
    name="half",
    estimates="half of the slope at the image",
    value=lambda near: None if near.f(near.x[:1]).shape[1] > 10 else near.slope.value / 2,  # for the logits only
    console=True,
)


@pytest.fixture
def model(tmp_path):
    made = diffvit(8, patch_size=4, dim=8, depth=1, num_heads=2)
    save(made, {"model": made.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, tmp_path / "model")
    return load_model(str(tmp_path / "model"))


def test_an_estimator_of_ones_own_is_in_rows_tables_and_the_page(model, tmp_path, monkeypatch):
    data, out = load_data("digits", limit=2), tmp_path / "out"
    out.mkdir()

    def measured():
        summary = run(SenseOptions(model=("m",), out=out, **SETTINGS), lineup=Lineup([model], [], data))
        entries = {e["estimator"]: e["value"] for e in summary["lipschitz"] if e["of"] == "logits"}
        maps = {e["estimator"] for e in summary["lipschitz"] if e["of"] == "map"}
        return entries, maps

    before, _ = measured()  # its rows lack the new one, so they are measured again
    monkeypatch.setitem(registry.ESTIMATORS, "half", HALF)
    entries, maps = measured()
    assert list(entries) == [*BUILT_IN, "half"]
    assert entries["half"] == pytest.approx(entries["power iteration"] / 2)
    assert {name: entries[name] for name in before} == before
    assert "half" not in maps
    result = read_result(out, "sense")
    (logits,) = (table for table in result.all_tables() if table.name == "lipschitz-logits")
    console = Console(width=150)
    with console.capture() as printed:
        console.print(OnConsole(logits))
    assert "half" in printed.get()
    page = result.write_report(out).read_text(encoding="utf-8")
    assert "Half: half of the slope at the image." in page
    assert ">half<" in page  # the head of a column
    assert len(list((out / "cells").iterdir())) == 2


def test_every_estimator_is_registered_under_its_own_name():
    assert [estimator.name for estimator in all_estimators()] == list(registry.ESTIMATORS) == BUILT_IN
