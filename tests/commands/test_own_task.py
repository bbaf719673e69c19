"""An evaluation task is one object and one line of the registry: rows, tables, the page and studies follow."""

import json

import polars as pl
import pytest
import torch

from antiphase import registry
from antiphase.commands.evaluate.run import requested
from antiphase.errors import UserError
from antiphase.evaluation.metrics import ROW_SCHEMA, accuracies, classification_rows
from antiphase.evaluation.tasks import EvaluationTask, can_learn, find_task, image_features, labelled
from antiphase.models import clip, write_model
from antiphase.studies.cells import Evaluate, Given
from tests.commands.test_evaluate import folder_of
from tests.training.tiny_pairs import TINY


def _measure(model, source, protocol, store):
    """Classify each image by the mean feature of a class that is nearest."""
    (train, train_labels), (test, labels) = labelled(source.train), labelled(source.test)
    learned, tested = (image_features(model, data, protocol, store) for data in (train, test))
    means = torch.stack([learned[train_labels == label].mean(0) for label in range(len(test.class_names))])
    return classification_rows(-torch.cdist(tested, means), labels, test.ids, "mean")


TASK = EvaluationTask(
    name="nearest-mean",
    title="Nearest mean",
    summary="classification by the nearest mean feature",
    notes="Each class is the mean of its training features.",
    serves=can_learn,
    measure=_measure,
    metrics=lambda setting, rows, groups: accuracies(setting, rows),
    heading=lambda setting, metric: f"{metric} by {setting}",
    stands_for=lambda data, metric: metric == "top-1",
    learns=True,
    dependent_units="nearest means",
    default_data="digits",
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(registry.TASKS, "nearest-mean", f"{__name__}:TASK")


@pytest.mark.usefixtures("registered")
def test_a_task_of_ones_own_is_measured_tabulated_and_drawn(run_cli, tmp_path):
    write_model(clip(**TINY, seed=0), tmp_path / "one")
    write_model(clip(**TINY, seed=1), tmp_path / "two")
    out = tmp_path / "out"
    code, printed, err = run_cli(
        "evaluate",
        tmp_path / "one",
        "--against",
        tmp_path / "two",
        "--tasks",
        "nearest-mean",
        "--data",
        folder_of(tmp_path / "set", (0, 150)),
        "--cache",
        tmp_path / "cache",
        "--out",
        out,
        "-q",
    )
    assert code == 0, err
    assert "top-1 by mean" in printed
    rows = pl.read_parquet(out / "rows.parquet")
    assert list(rows.columns) == ["model", "attention", "task", "data", *ROW_SCHEMA]
    assert (set(rows["task"]), set(rows["setting"]), len(rows)) == ({"nearest-mean"}, {"mean"}, 48)
    results = json.loads((out / "summary.json").read_text())["results"]
    top = next(r for r in results if r["model"] == "one" and r["metric"] == "top-1")
    assert top["value"] == rows.filter(model="one").select((pl.col("rank") < 1).mean()).item() > 0.9
    assert {r["metric"]: r["headline"] for r in results} == {"top-1": True, "per class": False}
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (TASK.title, "Classification by the nearest mean", TASK.notes, "top-1 by mean"):
        assert words in page
    assert (out / "nearest-mean.png").exists()


@pytest.mark.usefixtures("registered")
def test_studies_and_the_command_line_know_it():
    cell = Evaluate(model=Given(spec="specimen:vit-0"), task="nearest-mean", data="digits")
    assert requested(["nearest-mean"], []) == ({"nearest-mean": None}, ["digits"])
    assert cell.label.startswith("nearest-mean on digits")


def test_every_task_is_registered_under_its_own_name():
    assert [find_task(name).name for name in registry.TASKS] == list(registry.TASKS)
    with pytest.raises(UserError, match="task 'nearest-mean': expected one of retrieval, zero-shot, probe"):
        find_task("nearest-mean")
