"""Runs that were stored before the modules were moved (November 2026) open, and resume where they were killed."""

import shutil
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal

from antiphase.models import zoo as runs
from antiphase.studies.cells import Attack, Sense, TrainVit
from antiphase.studies.plan import make_plan
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab
from antiphase.studies.store import Store

STORED = Path(__file__).parents[1] / "fixtures" / "stored"
MODEL = TrainVit(
    model="diffvit", data="digits", limit=200, sizes={"depth": 1, "dim": 16, "num_heads": 2}, recipe={"epochs": 2}
)
FINISHED = Attack(model=MODEL, data="digits", eps=(4 / 255, 16 / 255), limit=12, settings={"steps": 4})
SENSED = Sense(model=MODEL, data="digits", part="alignment", limit=3, settings={"probes": 4})
KILLED = Attack(
    model=MODEL, data="digits", eps=(8 / 255,), limit=12, attack="autoattack", settings={"steps": 3, "queries": 20}
)  # before its last stage


def test_a_stored_audit_opens_and_makes_only_the_rows_that_are_missing(tmp_path, run_cli, monkeypatch):
    monkeypatch.setattr(runs, "_specimens", lambda: STORED / "specimens")  # those of the time
    out = tmp_path / "audit"
    shutil.copytree(STORED / "audit", out)
    shutil.rmtree(out / "cells" / "93ccc4c82a5e2320")
    kept = {path: path.read_bytes() for path in (out / "cells").rglob("*.parquet")}
    options = ["--limit", 4, "--eps", "2/255,4/255", "--steps", 3, "--sense-limit", 2, "--quiet"]
    code, _, errors = run_cli("audit", "specimen:diffvit-0", "--against", "specimen:vit-0", *options, "--out", out)
    assert (code, errors) == (0, "")
    assert {path: path.read_bytes() for path in kept} == kept
    for name in ("rows.parquet", "alignment.parquet"):
        assert_frame_equal(pl.read_parquet(out / name), pl.read_parquet(STORED / "audit" / name), abs_tol=1e-6)


def test_a_stored_study_opens_and_goes_on_at_the_stage_where_it_was_killed(tmp_path):
    store = Store(tmp_path / "study")
    shutil.copytree(STORED / "study", store.root)
    assert make_plan([FINISHED, SENSED, KILLED], store).missing == [KILLED]
    assert [len(store.rows(cell)) for cell in (FINISHED, SENSED)] == [24, 9]
    kept = {path: path.read_bytes() for path in (store.folder(KILLED) / "work").rglob("*.parquet")}
    assert len(kept) == 3

    seen = []
    run_cells([FINISHED, SENSED, KILLED], Lab(store, progress=False), seen.append)
    assert len(seen) == 1  # the killed cell alone
    assert_frame_equal(store.rows(KILLED), pl.read_parquet(STORED / "study-expected.parquet"), abs_tol=1e-6)
