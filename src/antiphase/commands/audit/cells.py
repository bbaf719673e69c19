"""One model under one attack at several ε: rows on disk as they come, shared among processes.

What is stored is a cell: one stage of the attack at one ε, known by the hash of what affects its rows. How
samples carry over from one ε to the next is for :func:`antiphase.attacks.sweep` to decide: it is given stages that
read their rows from disk and attack only what is missing. So runs that differ in ``nested`` share their cells.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from antiphase.arguments import unchecked
from antiphase.attacks.result import AttackResult
from antiphase.attacks.sweep import Ensemble, Stage, sweep
from antiphase.attacks.threat import Threat
from antiphase.commands.audit.options import AuditOptions
from antiphase.commands.run_files import described
from antiphase.data import ImageSet
from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.store import Cache, Journal, slice_size
from antiphase.terminal import eps_label

CELL_VERSION = 2  # raise it when the same settings come to mean another measurement
AGAIN = ", what is near in float32"  # each time more of it: cells of another meaning have another name
_CELL_SCHEMA: dict[str, Any] = dict.fromkeys(
    ("sample", "clean_prediction", "prediction", "success", "distance", "forwards", "backwards"), pl.Int64
)
_CELL_SCHEMA |= {"success": pl.Boolean, "distance": pl.Float64}


def measure(
    name: str,
    model: nn.Module,
    data: ImageSet,
    options: AuditOptions,
    out: Path,
    *,
    process: Process | None = None,
    context: Tensor | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Attack every image that is not on disk yet; return one row for each ε and image, and the warnings.

    Args:
        name: of the model in the rows.
        model: a loaded model, with its card.
        data: images and labels.
        options: attack, budgets and how they are run; see :class:`AuditOptions`.
        out: run directory; cells lie under ``cells/``.
        process: which share of the images is attacked, this process's where not given; every process returns all rows.
        context: what the model is given with each image, if anything; the fingerprint of ``data`` has to depend on it.
    """
    ensemble = options.ensemble
    ensemble.check(model, data.images(range(1)), context)
    cells = _Cells(name, model, data, options, out, process or this_process(), context)
    stored = Ensemble(ensemble.name, tuple(map(cells.stored, ensemble.stages)))
    no_pixels = torch.empty(len(data), 0)  # the stages load the images that they attack
    threat = Threat(options.norm)
    results = unchecked(sweep)(
        stored, model, no_pixels, None, threat, options.eps, nested=options.nested, ids=data.ids
    )
    warnings = [*cells.warnings, *(warning for result in results for warning in result.warnings)]
    how = {"attack": options.attack, "norm": options.norm, "attack_seed": options.seed}
    rows = described(_rows(results), ROW_SCHEMA, name, model, data, **how)
    return rows, list(dict.fromkeys(warnings))


def _rows(results: list[AttackResult]) -> pl.DataFrame:
    """Return one row for each ε and sample, with the stage that broke it: at this ε, else at a smaller one."""
    broken_by: dict[int, str] = {}
    levels: list[pl.DataFrame] = []
    for result in results:
        for part in result.stages:
            broken_by |= dict.fromkeys(part.ids[part.success].tolist(), part.attack)
        columns = {name: getattr(result, name).numpy() for name in _CELL_SCHEMA if name != "sample"}
        level = pl.DataFrame({"sample": result.ids.numpy(), **columns}, schema=_CELL_SCHEMA)
        by = pl.Series([broken_by.get(sample) for sample in level["sample"]], dtype=pl.String)
        level = level.with_columns(eps=pl.lit(result.threat.eps), felled_by=pl.when("success").then(by))
        levels.append(level.sort("sample"))
    return pl.concat(levels)


@dataclass(frozen=True)
class _Cells:
    """The cells of one model under one attack: rows on disk, made where they are missing."""

    name: str
    model: nn.Module
    data: ImageSet
    options: AuditOptions
    out: Path
    process: Process
    context: Tensor | None
    warnings: dict[str, None] = field(default_factory=dict)  # of all cells so far, each once

    @functools.cached_property
    def shared(self) -> dict[str, Any]:
        """What identifies every cell."""
        prints = {"model": fingerprint(self.model), "data": self.data.fingerprint()}
        what = {"version": CELL_VERSION, **prints, "norm": self.options.norm, "seed": self.options.seed}
        # auto shares the rows of float32: verdicts do not depend on the search's precision
        what |= {"precision": f"bf16{AGAIN}"} if self.options.precision == "bf16" else {}
        return what | ({"compile": True} if self.options.compile else {})

    @functools.cached_property
    def position(self) -> dict[int, int]:
        """Where each sample is in the data."""
        return {sample: at for at, sample in enumerate(self.data.ids.tolist())}

    def stored(self, stage: Stage) -> Stage:
        """Return the stage with an attack that takes its rows from disk and attacks only what is missing."""
        # settings are checked with the images that are attacked
        return replace(stage, attack=functools.partial(self.attack, stage), settings={})

    def attack(
        self,
        stage: Stage,
        _: nn.Module,
        images: Tensor,
        labels: Tensor | None,
        threat: Threat,
        *,
        ids: Tensor,
        **run: Any,
    ) -> AttackResult:
        """Attack the samples that are not on disk, and return the rows of all."""
        what = self.shared | {"attack": stage.name, "settings": stage.settings, "eps": float(threat.eps)}
        if stage.name == "square":  # searches in float32 in any case
            what.pop("precision", None)
        asked = [(stage.name, sample) for sample in ids.tolist()]
        cache = Cache(self.out, {stage.name: what}, _CELL_SCHEMA, asked, self.process)
        journal = cache.journals[stage.name]
        with cache.filling(slice_size(self.data.image_shape)) as parts:
            for part in parts:
                at = torch.tensor([self.position[sample] for sample in ids[part].tolist()])
                how = stage.settings | self.keywords(stage, threat.eps, at, ids[part], journal)
                own = Threat(self.options.norm, threat.eps)
                result = stage.attack(self.model, self.data.images(at), None, own, **how)
                if result.warnings:
                    journal.warn(result.warnings)
                del result  # its images leave memory before the next are read
        found = cache.collect()[stage.name]
        self.warnings.update(cache.warnings)
        found = found.unique("sample", keep="first")  # two runs at once may both write a sample
        rows = pl.DataFrame({"sample": ids.numpy()}).join(
            found, on="sample", how="left", maintain_order="left"
        )
        arrays: dict[str, Any] = {name: rows[name].to_torch() for name in _CELL_SCHEMA if name != "sample"}
        about = {"label": arrays["clean_prediction"], "adversarial": images}
        return AttackResult(stage.name, threat, stage.settings, ids, **about, **arrays)

    def keywords(self, stage: Stage, eps: float, at: Tensor, ids: Tensor, journal: Journal) -> dict[str, Any]:
        """Return how to attack some samples so that their rows are kept as they come."""
        options = self.options

        def keep(positions: Tensor, results: dict[str, Tensor]) -> None:
            columns = {"sample": ids[positions].numpy()}
            columns |= {key: results[key][positions].numpy() for key in _CELL_SCHEMA if key != "sample"}
            journal.append(pl.DataFrame(columns, schema_overrides=_CELL_SCHEMA).select(*_CELL_SCHEMA))

        up_to = "" if math.isinf(eps) else f" ε={eps_label(eps)}"
        title = f"{self.name} {stage.name}{up_to}" if not options.quiet and self.process.first else ""
        how = {name: getattr(options, name) for name in ("seed", "batch_size", "precision")}
        how |= {"ids": ids, "on_finished": keep, "progress": title}
        how |= {"compile": True} if options.compile else {}
        return how | ({} if self.context is None else {"context": self.context[at]})
