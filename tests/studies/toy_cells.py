"""Cells that take no time: a training writes a number, a measurement doubles it. Run as a script by tests."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import polars as pl

from antiphase.errors import UserError
from antiphase.processes import this_process
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Cell, Lab
from antiphase.studies.store import Store


@dataclass(frozen=True, kw_only=True)
class Train(Cell):
    version: ClassVar[int] = 1
    number: int
    rate: float = 0.5
    seconds: float = 0.0

    @property
    def table(self):
        return "train"

    @property
    def label(self):
        return f"training {self.number}"

    def needs(self):
        return ()

    def factors(self):
        return {"training_seed": self.number}

    def run(self, lab, folder):
        time.sleep(self.seconds)
        if self.number < 0:
            raise UserError("the number is below 0")
        if lab.process.first:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "weights.txt").write_text(str(self.number * self.rate))
        return None


@dataclass(frozen=True, kw_only=True)
class Measure(Cell):
    version: ClassVar[int] = 1
    model: Train
    factor: float = 2.0
    seconds: float = 0.0

    @property
    def table(self):
        return "measure"

    @property
    def label(self):
        return f"measuring {self.model.label}, ×{self.factor:g}"

    def needs(self):
        return (self.model,)

    def factors(self):
        return self.model.factors()

    def run(self, lab, folder):
        time.sleep(self.seconds)
        value = float((lab.store.folder(self.model) / "weights.txt").read_text()) * self.factor
        return pl.DataFrame({"sample": [0, 1, 2], "value": [value, value + 1, value + 2]})


def cells(count: int, seconds: float = 0.0, **fields: float) -> list[Cell]:
    return [Measure(model=Train(number=n, **fields), seconds=seconds) for n in range(count)]


if __name__ == "__main__":
    root, count, pause = sys.argv[1:]
    print("ready", flush=True)
    while (Path(root) / "wait").exists():
        time.sleep(0.01)
    run_cells(cells(int(count), float(pause)), Lab(Store(Path(root)), progress=False, process=this_process()), print)
