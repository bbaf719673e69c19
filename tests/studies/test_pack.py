"""Rows that ship: what is kept, that nothing is repeated or lost, and that the same cells give the same bytes."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from antiphase.commands.run_folder import locked
from antiphase.errors import UserError
from antiphase.studies.cells import Accuracy, Attack, Margin, Sense
from antiphase.studies.pack import CELLS_FILE, README, Pack, add_to_pack
from antiphase.studies.plan import make_plan
from antiphase.studies.results import _of_before, study_rows
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab
from antiphase.studies.store import RENEWED, Store, identity
from tests.studies.test_stored_before import FINISHED, SENSED, STORED
from tests.studies.toy_cells import Measure, Train, cells

STORE = Store(STORED / "study")
MEASURED = [FINISHED, SENSED]


def files(pack):
    return {path.name: path.read_bytes() for path in pack.root.iterdir()}


def add(pack, *measured, source=STORE, study="mine"):
    return add_to_pack(pack, study, f"antiphase study run {study}", measured, source)


def test_rows_come_back_without_what_is_left_out(tmp_path):
    pack = Pack(tmp_path)
    assert add(pack, *MEASURED) == 3  # and the training, for its cost
    assert set(files(pack)) == {CELLS_FILE, README, "alignment.parquet", "attack-pgd.parquet"}
    for cell in MEASURED:
        before, after = STORE.rows(cell), pack.rows(cell)
        assert before is not None
        assert after is not None
        before = cell.shipped(before.drop("forwards", "backwards", strict=False))
        keys = [name for name in ("eps", "layer", "head", "sample") if name in before.columns]
        assert_frame_equal(
            after.select(before.columns).sort(keys),
            before.sort(keys),
            rel_tol=2.0**-cell.shipped_bits,
            abs_tol=0,
            check_dtypes=True,
        )
        assert pack.done(cell)
        assert {name: pack.record(cell)[name] for name in ("seconds", "hardware", "versions")} == {
            name: STORE.record(cell)[name] for name in ("seconds", "hardware", "versions")
        }
    training = FINISHED.needs()[0]
    assert pack.record(training)["seconds"] == 13.72
    assert not pack.done(training)
    assert pack.rows(training) is None
    exact = pack.rows(FINISHED)["eps"].unique().to_list()
    assert sorted(exact) == [4 / 255, 16 / 255]


def test_the_same_cells_give_the_same_bytes_in_any_order_and_are_added_once(tmp_path):
    one, two, merged = (Pack(tmp_path / name) for name in ("one", "two", "merged"))
    add(one, *MEASURED)
    add(two, SENSED)
    assert add(two, FINISHED) == 1
    assert add(two, *MEASURED) == 0
    assert files(one) == files(two)
    first, second = Pack(tmp_path / "first"), Pack(tmp_path / "second")
    add(first, FINISHED)
    add(second, SENSED)
    add(merged, *MEASURED, source=first)
    add(merged, *MEASURED, source=second, study="another")  # the study of the record stays
    assert files(merged) == files(one)


def test_rows_stay_when_their_store_is_gone(tmp_path):
    stores = [Store(tmp_path / name) for name in ("here", "there")]
    pack = Pack(tmp_path / "results")
    for store, measured in zip(stores, (cells(2), cells(4)[2:]), strict=True):
        run_cells(measured, Lab(store, progress=False))
        assert add(pack, *measured, source=store) == 4
    again = Pack(pack.root)
    assert sorted(study_rows(cells(5), again)["measure"]["training_seed"].unique()) == [0, 1, 2, 3]
    assert again.cells["rows"].sum() == 4 * 3
    assert "| mine | measure | 4 | 12 |" in (pack.root / README).read_text(encoding="utf-8")


def test_a_measurement_whose_rows_ship_is_not_run_again_nor_its_training(tmp_path):
    source = Store(tmp_path / "source")
    run_cells(cells(1), Lab(source, progress=False))
    pack = Pack(tmp_path / "results")
    add(pack, *cells(1), source=source)
    elsewhere = Store(tmp_path / "elsewhere", pack)
    plan = make_plan(cells(2), elsewhere)
    assert plan.missing == [Train(number=1), Measure(model=Train(number=1))]
    assert plan.seconds < 10  # those whose rows ship took no longer
    assert make_plan(cells(1), pack).missing == []
    other = Measure(model=Train(number=0), factor=3.0)  # needs the weights, which do not ship
    assert make_plan([other], elsewhere).missing == [Train(number=0), other]


def test_numbers_are_kept_to_float32_and_types_to_64_bits(tmp_path):
    store, pack = Store(tmp_path / "store"), Pack(tmp_path / "results")
    cell = Measure(model=Train(number=0))
    exact = pl.DataFrame({"sample": [3, 1], "value": [1 / 3, None], "eps": [1 / 255, 0.1], "name": ["b", "a"]})
    run_cells([Train(number=0)], Lab(store, progress=False))
    about = {
        "seconds": 1.0,
        "whole": True,
        "work": 1.0,
        "warnings": [],
        "finished": "",
        "hardware": "x, 2 threads",
        "versions": {},
        "commit": "abc",
    }
    store.finish(cell, exact, about)
    add(pack, cell, source=store)
    rows = pack.rows(cell)
    assert rows.schema == dict(sorted(exact.schema.items()))
    assert rows["value"].to_list() == [None, pytest.approx(1 / 3, rel=1e-7)]
    assert rows["value"][1] != 1 / 3
    assert rows["eps"].to_list() == [0.1, 1 / 255]
    assert pack.cells.filter(cell=identity(cell))["commit"].item() == "abc"


def test_a_folder_that_is_not_there_is_empty_and_a_broken_file_is_named(tmp_path):
    pack = Pack(tmp_path / "nowhere")
    assert not pack.done(FINISHED)
    assert pack.rows(FINISHED) is None
    broken = Pack(tmp_path)
    add(broken, *MEASURED)
    (tmp_path / "attack-pgd.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"attack-pgd\.parquet: cannot be read"):
        Pack(tmp_path).rows(FINISHED)


def test_attacks_have_a_file_each(tmp_path):
    model = FINISHED.model
    other = Attack(model=model, data="digits", eps=(4 / 255,), limit=3, attack="fgsm")
    clean = Accuracy(model=model, data="digits", limit=3)
    store, pack = Store(tmp_path / "store"), Pack(tmp_path / "results")
    run_cells([other, clean], Lab(store, progress=False))
    add(pack, other, clean, source=store)
    assert {"accuracy.parquet", "attack-fgsm.parquet"} < set(files(pack))


def test_of_training_images_only_the_loss_is_kept(tmp_path):
    cell = Margin(model=FINISHED.model, data="digits", split="train", limit=5, gradients=False)
    store, pack = Store(tmp_path / "store"), Pack(tmp_path / "results")
    run_cells([cell], Lab(store, progress=False))
    add(pack, cell, source=store)
    before, after = store.rows(cell), pack.rows(cell)
    assert before is not None
    assert after is not None
    assert sorted(after.columns) == ["label", "loss", "sample"]
    assert_frame_equal(after.select("sample", "loss"), before.select("sample", "loss"), rel_tol=2.0**-5, abs_tol=0)


def test_rows_of_a_source_before_it_was_renewed_stand_in_and_a_store_does_not_take_them(tmp_path, monkeypatch):
    pack = Pack(tmp_path)
    add(pack, FINISHED)
    rows, before = pack.rows(FINISHED), identity(FINISHED)
    monkeypatch.setitem(RENEWED, FINISHED.data, "another split")
    renewed = replace(FINISHED, model=replace(FINISHED.model))  # identities are found once for each object
    assert identity(renewed) != before == identity(renewed, renewed=False)
    assert not STORE.done(renewed)
    again = Pack(tmp_path)
    assert again.done(renewed)
    assert again.record(renewed) == pack.record(FINISHED)
    assert_frame_equal(again.rows(renewed), rows)
    copied = Pack(tmp_path / "copied")
    add_to_pack(copied, "mine", "antiphase study run mine", [renewed], again)
    assert copied.cells["cell"].to_list() == again.cells["cell"].to_list()  # as what they are, not as renewed
    assert "another split" not in "".join(copied.cells["what"])
    assert _of_before([renewed], again) == [
        f"1 of 1 cells are older than a change of {FINISHED.data}: these are another split now, "
        "and a run makes other rows."
    ]
    assert not _of_before([FINISHED], pack)


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_after_a_kill_the_pack_has_the_bytes_of_an_undisturbed_one(tmp_path, monkeypatch, renames):
    whole, broken = Pack(tmp_path / "whole"), Pack(tmp_path / "broken")
    add(whole, *MEASURED)
    left, replace = [renames], Path.replace

    def killed(path, target):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        add(broken, *MEASURED)
    monkeypatch.undo()
    add(broken, *MEASURED)
    assert files(broken) == files(whole)


def test_rows_that_are_twice_there_and_a_second_writer_are_refused(tmp_path):
    pack = Pack(tmp_path)
    add(pack, *MEASURED)
    path = tmp_path / "attack-pgd.parquet"
    once = pl.read_parquet(path)
    pl.concat([once, once]).write_parquet(path)
    with pytest.raises(UserError, match=rf"attack-pgd.parquet: has {2 * len(once)} rows of cell .*, not {len(once)}"):
        Pack(tmp_path).rows(FINISHED)
    with locked(tmp_path / "new"), pytest.raises(UserError, match="is writing it; wait until it has ended"):
        add(Pack(tmp_path / "new"), *MEASURED)


def test_rows_that_shipped_ship_again(tmp_path):
    parts = ("alignment", "alignment-perturbed", "branches", "depth", "lipschitz")
    model = FINISHED.model
    rows = pl.DataFrame({name: [1.5, -2.5] for name in ("first", "second", "cross", "moved", "high", "low", "eps")})
    rows = rows.with_columns(pl.lit(-1.0).alias(name) for name in ("positive", "negative", "correlation"))
    rows = rows.with_columns(clean_correlation=1.0, change_correlation=1.0, site=pl.Series(["pixels", "tokens"]))
    for part in parts:
        cell = Sense(model=model, data="digits", part=part, limit=2)
        shipped = cell.shipped(rows)
        assert_frame_equal(cell.shipped(shipped), shipped)
    cell = Sense(model=model, data="digits", part="alignment", limit=2)
    shown = cell.shipped(rows).select("first", "cross", "opposed")
    assert shown.rows() == [(1.5, 1.5, False), (None, None, True)]


def test_rows_of_a_result_stay_whole(tmp_path):
    pack = Pack(tmp_path)
    add_to_pack(pack, "mine", "antiphase study run mine", MEASURED, STORE, small=False)
    for cell in MEASURED:
        before = STORE.rows(cell)
        assert before is not None
        assert_frame_equal(pack.rows(cell), before, check_row_order=False, check_column_order=False)
    few = tmp_path / "few"
    few.mkdir()
    for name, content in pack.files_of([SENSED]).items():
        (few / name).write_bytes(content)
    assert_frame_equal(Pack(few).rows(SENSED), pack.rows(SENSED))
    assert not Pack(few).done(FINISHED)
    assert len(Pack(few).cells) == 2  # the measurement and its training
