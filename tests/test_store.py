"""The cells of every run: a killed run that is resumed leaves what an uninterrupted run leaves."""

import json
import time

import polars as pl
import pytest

from antiphase import store
from antiphase.commands.audit.run import measure
from antiphase.commands.certify import CertifyOptions
from antiphase.commands.certify import run as certify
from antiphase.commands.evaluate import EvaluateOptions
from antiphase.commands.evaluate.run import Source, evaluate
from antiphase.commands.lineup import Lineup
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.data import load_data
from antiphase.models import clip, load_model, vit, write_model
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from antiphase.store import Journal
from tests.commands.audits import attack_options
from tests.threads import in_threads
from tests.training.tiny_pairs import TINY, tiny_pairs

IMAGES = load_data("digits", limit=7, seed=0)


def _attack(model, out):
    plan = attack_options((2 / 255, 9 / 255), settings={"steps": 3}, batch_size=2)
    return measure("m", model, IMAGES, plan, out, process=Process())[0]


def _sense(model, out):
    parts = ("alignment", "depth")
    options = SenseOptions(model=("m",), parts=parts, probes=2, steps=1, eps=(0.1,), batch_size=2, quiet=True)
    return pl.concat(sense("m", model, IMAGES, options, out).values(), how="diagonal")


def _certify(model, out):
    few = {"sigma": 0.2, "select": 5, "samples": 20, "alpha": 0.05}
    options = CertifyOptions(model="m", batch_size=16, out=out, quiet=True, **few)
    return certify.run(options, lineup=Lineup([model], [], IMAGES))[0]


def _evaluate(model, out):
    options = EvaluateOptions(models="m", cache=out / "features", batch_size=2, out=out, quiet=True)
    summary = evaluate([model], [], [Source(tiny_pairs(7, side=16))], options)
    return pl.DataFrame({"summary": [json.dumps(summary)]})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    small = vit(8, patch_size=4, dim=20, depth=1, num_heads=2)
    save(small, {"model": small.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, folder / "vit")
    write_model(clip(**TINY), folder / "clip")
    return {name: load_model(str(folder / name)) for name in ("vit", "clip")}


class _Calls:
    """Counts the calls of a module's ``forward``, and interrupts one of them."""

    def __init__(self, monkeypatch, kind):
        self.count, self.last = 0, None
        forward = kind.forward

        def counted(module, *args, **more):
            self.count += 1
            if self.count == self.last:
                raise KeyboardInterrupt
            return forward(module, *args, **more)

        monkeypatch.setattr(kind, "forward", counted)


def _left(out):
    """Return what a run left: the rows of each cell in an order of their own, and the bytes of its tables."""
    cells = {}
    for path in (out / "cells").rglob("*.parquet"):
        cells.setdefault(path.relative_to(out).parts[1], []).append(pl.read_parquet(path))
    sorted_rows = {name: pl.concat(frames).sort(pl.all()).rows() for name, frames in cells.items()}
    tables = ("rows.parquet", "summary.json")
    return sorted_rows | {name: (out / name).read_bytes() for name in tables if (out / name).exists()}


@pytest.mark.parametrize("run", [_attack, _sense, _certify, _evaluate])
def test_a_killed_run_leaves_the_same_bytes(tmp_path, models, monkeypatch, run):
    model = models["clip" if run is _evaluate else "vit"]
    block = model.visual.blocks[0] if run is _evaluate else model.blocks[0]
    calls = _Calls(monkeypatch, type(block))
    expected = run(model, tmp_path / "whole")
    calls.last = calls.count + round(0.7 * calls.count)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path / "killed")
    assert list((tmp_path / "killed").rglob("*.*")), "nothing was kept"
    calls.last = None
    assert run(model, tmp_path / "killed").equals(expected)
    assert _left(tmp_path / "killed") == _left(tmp_path / "whole")
    before = calls.count
    run(model, tmp_path / "killed")
    assert calls.count - before <= 2  # an attack checks the model, whatever is on disk


class _Slow(Journal):
    """A journal on which the second process reads and writes slowly, and the first one tidies up slowly."""

    def _files(self):
        files = super()._files()
        time.sleep(0.1 * self.writer)
        return files

    def flush(self):
        time.sleep(0.1 * self.writer)
        super().flush()

    def compact(self, rows):
        time.sleep(0.02)
        super().compact(rows)


def test_processes_wait_where_one_would_disturb_another(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "Journal", _Slow)
    schema, made = {"sample": pl.Int64, "by": pl.Int64}, []

    def run(process):
        for samples in (range(5), range(9)):  # the second time, some are stored
            cache = store.Cache(tmp_path, {"of": "a"}, schema, samples, process)
            with cache.filling(2) as parts:
                for part in parts:
                    rows = {"sample": part, "by": [process.rank] * len(part)}
                    cache.journal.append(pl.DataFrame(rows, schema=schema))
                    made.extend(part)
            rows = cache.collect()
            assert len(list(tmp_path.glob("cells/*/*.parquet"))) == 1
        return sorted(rows.rows())

    first, second = in_threads(2, run)
    assert first == second == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 0), (6, 1), (7, 0), (8, 1)]
    assert sorted(made) == list(range(9))  # each by one process
