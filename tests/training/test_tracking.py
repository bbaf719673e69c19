"""Experiment trackers: what they are sent, and that the run is the same without them."""

import importlib.util

import pytest
from accelerate.tracking import GeneralTracker, on_main_process

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.studies.cells import TrainVit
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab
from antiphase.studies.store import Store
from antiphase.training import loop as tracking
from antiphase.training import make_recipe, train_classifier

SIZES = {"depth": 2, "dim": 16, "num_heads": 2}
EPOCHS = 2


class Fake(GeneralTracker):
    """Keeps what it is sent."""

    name = "fake"
    requires_logging_directory = False

    def __init__(self):
        super().__init__(_blank=True)
        self.config, self.rows = None, []

    @property
    def tracker(self):
        return self

    @on_main_process
    def store_init_configuration(self, values):
        self.config = values

    @on_main_process
    def log(self, values, step, **more):
        self.rows.append((step, values))


def train(out, **more):
    images = load_data("digits", split="train", limit=60)
    recipe = make_recipe("diffvit", images, SIZES, data="digits", epochs=EPOCHS, batch_size=20, precision="float32")
    return train_classifier(recipe, images, load_data("digits", split="test", limit=20), out, progress=False, **more)


def test_a_tracker_gets_what_the_log_has(tmp_path):
    fake = Fake()
    log = train(tmp_path / "tracked", trackers=[fake])
    ends = [values for _, values in fake.rows if "accuracy" in values]
    assert [values["accuracy"] for values in ends] == [row["accuracy"] for row in log]
    assert [[values[f"lambda/{layer}"] for layer in range(2)] for values in ends] == [row["lambda"] for row in log]
    assert {step for step, _ in fake.rows} == {3, 6}
    assert all({"loss", "learning_rate"} <= values.keys() for _, values in fake.rows)
    assert fake.config["batch_size"] == 20
    train(tmp_path / "plain")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("tracked", "plain")]
    assert files[0] == files[1]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard: uv pip install tensorboard"
)
def test_tensorboard_gets_the_training_of_a_study_and_its_cell_is_the_same(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cell = TrainVit(model="diffvit", data="digits", limit=60, sizes=SIZES, recipe={"epochs": EPOCHS})
    stores = [Store(tmp_path / name) for name in ("tracked", "plain")]
    for store, track in zip(stores, (("tensorboard",), ()), strict=True):
        run_cells([cell], Lab(store, progress=False, track=track), lambda line: None)
    folders = [store.folder(cell) for store in stores]
    assert folders[0].name == folders[1].name
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    events = EventAccumulator(str(folders[0] / "antiphase")).Reload()
    assert {"loss", "learning_rate", "accuracy", "lambda/0", "lambda/1"} <= set(events.Tags()["scalars"])
    assert len(events.Scalars("lambda/1")) == EPOCHS


def test_what_is_unknown_or_not_installed_is_one_line(run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    for words in (
        ("train", "--model", "vit", "--data", "digits", "--out", tmp_path / "run"),
        ("train-vlm", "--stage", 1, "--tower", "t", "--data", "emoji-objects", "--out", tmp_path / "run"),
        ("study", "run", "table-1", "--profile", "smoke", "--store", tmp_path / "store"),
    ):
        code, _, err = run_cli(*words, "--track", "wandb")
        assert (code, err) == (2, "antiphase: track 'wandb': is not installed; run pip install wandb\n")
    with pytest.raises(UserError, match=r"track 'paper': expected one of .*tensorboard"):
        tracking.check_trackers(["paper"])
    assert list(tmp_path.iterdir()) == []
