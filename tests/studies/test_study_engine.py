"""The engine on cells that take no time: each once, whatever is killed, changed, damaged or shared."""

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from safetensors import SafetensorError

from antiphase.errors import UserError
from antiphase.files import room
from antiphase.studies.plan import expected, make_plan
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab
from antiphase.studies.store import ROWS_FILE, Store, identity
from tests.processes import Python, together
from tests.studies.toy_cells import Measure, Train, cells

TOYS = Path(__file__).with_name("toy_cells.py")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def run(which, store, say=lambda line: None):
    return run_cells(which, Lab(store, progress=False), say)


def log(store, event="begin"):
    lines = [json.loads(line) for line in (store.root / "log.jsonl").read_text().splitlines()]
    return Counter(line["label"] for line in lines if line["event"] == event)


def test_every_cell_runs_once_and_what_is_needed_comes_first(store):
    messages = []
    plan = make_plan(cells(3), store)
    assert [cell.table for cell in plan.missing] == ["train", "measure"] * 3
    again = run(cells(3), store, messages.append)
    assert not again.missing
    assert len(messages) == 6
    assert messages[0].startswith("[1/6] training 0: ")
    assert set(log(store).values()) == {1}
    rows = store.rows(cells(3)[2])
    assert rows["value"].to_list() == [2.0, 3.0, 4.0]
    run(cells(3), store)
    assert set(log(store).values()) == {1}


def test_a_cell_is_expected_to_take_as_long_as_the_same_of_other_seeds():
    took = {"small, seed 0": 1.0, "small, seed 1": 3.0, "large seed 0, late": 20.0}
    finished = [SimpleNamespace(table="train", label=label) for label in took]
    records = SimpleNamespace(record=lambda cell: {"whole": True, "seconds": took[cell.label]})
    seconds = {"small, seed 12": 2.0, "large seed 3, late": 20.0, "another, seed 0": 8.0}
    for label, expectation in seconds.items():
        assert expected([SimpleNamespace(table="train", label=label)], finished, records) == expectation


def test_what_is_finished_says_what_it_is_and_how_it_was_made(store):
    run(cells(1), store)
    record = store.record(cells(1)[0])
    assert record["what"]["fields"] == {"model": {"identity": identity(Train(number=0))}}
    assert record["whole"]
    assert {"seconds", "hardware", "versions", "finished", "warnings"} <= set(record)


def test_a_field_that_affects_results_runs_exactly_the_cells_that_depend_on_it(store):
    run(cells(3), store)
    run([*cells(2), Measure(model=Train(number=2, rate=0.75))], store)
    assert log(store) == Counter(
        {"training 2": 2, "measuring training 2, ×2": 2}
        | {f"{task} {n}{x}": 1 for n in range(2) for task, x in (("training", ""), ("measuring training", ", ×2"))}
    )
    run([Measure(model=Train(number=2, rate=0.75), factor=3.0)], store)
    assert log(store)["training 2"] == 2


def test_device_and_batch_size_run_nothing(store):
    run(cells(2), store)
    lab = Lab(store, batch_size=7, progress=True)
    assert not run_cells(cells(2), lab).missing
    assert set(log(store).values()) == {1}


def test_a_failing_cell_stops_neither_the_others_nor_hides(store):
    bad = [Measure(model=Train(number=number), factor=factor) for number in (-1, -2) for factor in (2.0, 3.0)]
    messages = []
    with pytest.raises(UserError) as caught:
        run_cells([*bad, *cells(2)], Lab(store, progress=False), messages.append)
    assert str(caught.value).splitlines() == [
        "6 cells failed",
        "training -1 and 1 more: the number is below 0",
        "measuring training -1, ×2 and 3 more: needs a cell that failed",
    ]
    assert messages[:2] == ["failed: training -1: the number is below 0", "failed: training -2: for the same reason"]
    assert store.done(cells(2)[1])
    assert log(store, "failed") == Counter({"training -1": 1, "training -2": 1})


def test_after_a_kill_the_same_command_finishes_and_no_finished_cell_runs_again(store):
    with Python(TOYS, store.root, "6", "0.4") as process:
        while process.runs and "[4/12]" not in process.printed:
            time.sleep(0.02)
        time.sleep(0.6)  # into the next measurement
        process.kill()
    finished = log(store, "done")
    assert 4 <= len(finished) < 12
    run(cells(6, 0.4), store)
    begun = log(store)
    assert len(begun) == 12
    assert all(begun[label] == 1 for label in finished)


def test_two_processes_share_a_store_and_do_no_cell_twice(store):
    store.root.mkdir(exist_ok=True)
    (store.root / "wait").touch()
    with Python(TOYS, store.root, "8", "0.2") as one, Python(TOYS, store.root, "8", "0.2") as other:
        while not all("ready" in process.printed or not process.runs for process in (one, other)):
            time.sleep(0.02)
        (store.root / "wait").unlink()
        assert [one.wait(), other.wait()] == [0, 0]
    assert log(store) == log(store, "done")
    assert set(log(store).values()) == {1}
    lines = [json.loads(line) for line in (store.root / "log.jsonl").read_text().splitlines()]
    assert len({line["process"] for line in lines}) == 2


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "record"])
def test_a_damaged_row_file_is_found_named_and_made_again(store, harm):
    run(cells(2), store)
    path = store.folder(cells(2)[1]) / ROWS_FILE
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:50])
    elif harm == "flip":
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif harm == "gone":
        path.unlink()
    else:
        path = path.parent / "done.json"
        path.write_text("{")
    fresh, messages = Store(store.root), []
    assert str(path) in next(iter(make_plan(cells(2), fresh).damaged.values()))
    run(cells(2), fresh, messages.append)
    assert any(str(path) in line and "repeating" in line for line in messages)
    assert log(store)["measuring training 1, ×2"] == 2
    assert log(store)["training 1"] == 1
    assert fresh.rows(cells(2)[1])["value"].to_list() == [1.0, 2.0, 3.0]


def test_a_damaged_checkpoint_is_found_named_and_trained_again(store):
    run(cells(2), store)
    weights = store.folder(Train(number=1)) / "weights.txt"
    weights.write_text("99")
    fresh, messages = Store(store.root), []
    run(cells(2), fresh, messages.append)
    assert any(str(weights) in line for line in messages)
    assert weights.read_text() == "0.5"
    assert log(store)["training 1"] == 2
    assert log(store)["measuring training 1, ×2"] == 1


def test_a_damaged_checkpoint_is_never_taken_for_a_finished_training(store):
    """A discard that is cut short, or a claim that is missed, leaves no weights to go on from."""
    run(cells(1), store)
    (store.folder(Train(number=0)) / "weights.txt").write_text("99")
    fresh = Store(store.root)
    fresh.discard(Train(number=0))
    assert not fresh.folder(Train(number=0)).exists()
    assert not list((store.root / "cells").iterdir())[1:]


def test_a_checkpoint_that_nothing_needs_any_more_is_not_missed(store):
    import shutil

    run(cells(1), store)
    shutil.rmtree(store.folder(Train(number=0)))
    assert not make_plan(cells(1), Store(store.root)).missing
    plan = make_plan([*cells(1), Measure(model=Train(number=0), factor=5.0)], Store(store.root))
    assert [cell.table for cell in plan.missing] == ["train", "measure"]


def test_a_full_disk_ends_with_a_message_and_an_intact_store(tmp_path):
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600));"
        "sys.argv = ['toy', *sys.argv[1:]];"
        f"import runpy; runpy.run_path({str(TOYS)!r}, run_name='__main__')"
    )
    process = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path / "store"), "2", "0"],  # -B: bytecode would be cut off
        capture_output=True,
        text=True,
    )
    assert process.returncode != 0
    assert "the disk is full" in process.stderr
    assert "run the same command again: rows and checkpoints that it stored are kept" in process.stderr
    store = Store(tmp_path / "store")
    assert not any(store.damage(cell) for cell in make_plan(cells(2), store).cells)
    run(cells(2), store)
    assert store.done(cells(2)[1])


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        pl.exceptions.ComputeError("File too large (os error 27)"),
    ],
)
def test_every_librarys_words_for_a_full_disk_are_understood(tmp_path, error):
    with pytest.raises(UserError, match="the disk is full"), room(tmp_path):
        raise error
    with pytest.raises(OSError, match="Permission"), room(tmp_path):
        raise OSError(13, "Permission denied")


def test_a_plan_expects_the_time_of_the_cells_that_are_finished(store):
    one = [Measure(model=Train(number=0, seconds=0.2), seconds=0.1)]
    run(one, store)
    plan = make_plan([*one, *(Measure(model=Train(number=n, seconds=0.2), seconds=0.1) for n in range(1, 5))], store)
    assert 0.9 < plan.seconds < 2.5


def test_a_cell_that_another_process_works_on_is_waited_for(store):
    (cell,) = cells(1)
    with contextlib.ExitStack() as stack:
        with store.claim(cell.model) as mine:
            assert mine
            assert store.busy(cell.model)
            other = stack.enter_context(Python(TOYS, store.root, "1", "0"))
            time.sleep(0.5)
            assert not (store.root / "cells").exists() or not store.done(cell.model)
        assert other.wait() == 0
    assert store.done(cell)


def test_processes_of_torchrun_share_every_cell(store):
    together(2, TOYS, store.root, "2", "0")
    assert all(store.done(cell) for cell in cells(2))
    assert set(log(store).values()) == {1}


@pytest.mark.parametrize(
    ("field", "value"),
    [("seconds", None), ("versions", []), ("hardware", 1), ("warnings", [1]), ("files", {"a": 1}), ("files", {})],
)
def test_a_record_with_a_wrong_field_is_damage_and_the_cell_runs_again(store, field, value):
    cell = cells(1)[-1]
    run([cell], store)
    path = store.folder(cell) / "done.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: entry for name, entry in record.items() if name != field}))
    assert "cannot be read" in store.damage(cell)
    path.write_text(json.dumps(record | {field: value}))
    assert store.record(cell) is None
    assert make_plan([cell], store).damaged
    run([cell], store)
    assert store.damage(cell) is None


@pytest.mark.parametrize("text", ["[" * 5_000, '{"seconds": ' + "9" * 5_000 + "}", "NaN", "[]"])
def test_a_record_that_is_no_record_is_damage(store, text):
    cell = cells(1)[-1]
    run([cell], store)
    (store.folder(cell) / "done.json").write_text(text)
    assert "cannot be read" in store.damage(cell)
