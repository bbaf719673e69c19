"""One task of the evaluation suite on one model and one data set."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import polars as pl

from antiphase.commands.evaluate.run import protocol_with, warm
from antiphase.commands.evaluate.sources import left_out, load_source
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.mmvp import MmvpSet
from antiphase.evaluation.tasks import find_task
from antiphase.models.image_towers import image_tower
from antiphase.processes import Process
from antiphase.studies.cells.models import Measurement
from antiphase.studies.context import Lab

FEATURES_FOLDER = "features"
"""Below the store's root: what several tasks of a model need of a data set."""

_BATCH_SIZE = 256
_PROJECTED = "features are taken after the projection: this model gives no access to those before it"


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate(Measurement):
    """Evaluate one task, with one row per image, caption, episode or pair.

    Attributes:
        task: a name of :data:`~antiphase.registry.TASKS`.
        data: data set, as for ``antiphase evaluate``.
        protocol: settings that differ from the defaults of ``antiphase evaluate``, by the names that the tasks use.
    """

    kind = "evaluate"
    task: str
    protocol: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    train_limit: int | None = None

    @property
    def label(self) -> str:
        return f"{self.task} on {self.data} of {self.model.label}"

    def content(self) -> dict[str, str]:
        if ":" not in self.data:
            return {}
        source = load_source(self.data, self.split, None, None, find_task(self.task).learns, False, False)
        parts = (source.test, source.train, source.validation)
        return {"data": " ".join(part.fingerprint()[:16] for part in parts if part is not None)}

    def factors(self) -> dict[str, Any]:
        return self.model.factors() | {"task": self.task, "data": self.data}

    def facts(self) -> Iterator[tuple[str, Any]]:
        protocol = protocol_with(self.protocol)
        yield from super().facts()
        names = find_task(self.task).fields
        yield self.task, {name: getattr(protocol, name) for name in names} | {"data": self.data}
        if self.task == "zero-shot" and not protocol.templates:
            yield self.task, {"templates": "the data's own, else 80 and 7"}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Measure; features that are in the store already are read."""
        task, protocol = find_task(self.task), protocol_with(self.protocol)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source = load_source(
                self.data, self.split, self.limit, self.train_limit, task.learns, False, lab.progress
            )
        lab.warnings += [str(one.message) for one in caught if one.category is UserWarning] + left_out(source)
        if self.task not in source.tasks():
            able = ", ".join(source.tasks()) or "another set"
            raise UserError(
                f"{self.task} on {self.data}: not possible with these data; expected one of {able}"
            )
        if why := task.too_small(source, protocol):
            raise UserError(why)
        model = lab.model(self.model)
        if task.learns and protocol.space == "raw" and not image_tower(model).raw:
            lab.warnings.append(_PROJECTED)
        store = FeatureStore(
            lab.store.root / FEATURES_FOLDER,
            batch_size=lab.batch_size or _BATCH_SIZE,
            progress=lab.progress,
            process=lab.process,
        )
        warm(task, model, source, protocol, store)  # each process its part
        alone = replace(store, process=Process(), progress=lab.progress and lab.process.first)
        rows = task.measure(model, source, protocol, alone)
        if isinstance(source.test, MmvpSet):
            names = dict(enumerate(source.test.pattern_names))
            rows = rows.with_columns(pattern=pl.col("group").replace_strict(names, return_dtype=pl.String))
        return rows.with_columns(task=pl.lit(self.task), data=pl.lit(self.data))
