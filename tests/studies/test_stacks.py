"""Trainings of a study that run together, as on a GPU: which do, and what happens if one fails."""

import pytest

from antiphase.errors import UserError
from antiphase.studies import run
from antiphase.studies.cells import Accuracy, TrainVit
from antiphase.studies.plan import make_plan
from antiphase.studies.spec import Lab
from antiphase.studies.store import Store

SIZES = {"depth": 1, "dim": 8, "num_heads": 2, "patch_size": 4}


def train(model="diffvit", seed=0, adversary=None, **sizes):
    return TrainVit(
        model=model,
        data="digits",
        seed=seed,
        limit=64,
        sizes=SIZES | sizes,
        recipe={"epochs": 1},
        adversary=adversary or {},
    )


@pytest.fixture
def lab(tmp_path):
    return Lab(Store(tmp_path), progress=False)


def stacked(lab, models):
    """Run the stacks of the trainings that measurements of some models need; return what was said."""
    cells, said = [Accuracy(model=model, data="digits", limit=8) for model in models], []
    runner = run._Run(lab, make_plan(cells, lab.store), said.append, list(models))
    runner.train_stacks()
    return cells, said


def test_models_that_differ_in_seed_and_initial_weights_train_together(lab):
    together = [train(seed=0), train(seed=1), train(seed=1, initial_weights="normal")]
    alone = [train("vit"), train(seed=2, adversary={"eps": 0.1}), train(seed=3, dim=16)]
    cells, said = stacked(lab, [*together, *alone])
    assert [lab.store.done(model) for model in (*together, *alone)] == [True] * 3 + [False] * 3
    assert [line.partition(":")[0] for line in said if line.startswith("together")] == ["together"]
    run.run_cells(cells, lab)
    assert all(map(lab.store.done, cells))
    records = [lab.store.record(model) for model in together]
    assert len({record["seconds"] for record in records}) == 1  # each has its share


def test_a_stack_that_fails_is_trained_one_by_one(lab, monkeypatch):
    def diverges(*_, **__):
        raise UserError("the loss became nan")

    monkeypatch.setattr(run, "train_together", diverges)
    models = [train(seed=0), train(seed=1)]
    cells, said = stacked(lab, models)
    assert said[-1] == "not together: the loss became nan"
    assert not any(map(lab.store.done, models))
    run.run_cells(cells, lab)
    assert all(map(lab.store.done, cells))
