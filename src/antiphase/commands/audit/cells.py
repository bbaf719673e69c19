"""One model under one attack at several ε: rows on disk as they come, shared among processes.

What is stored is a cell: one stage of the attack at one ε, known by the hash of what affects its rows. How
samples carry over from one ε to the next is for :func:`antiphase.attacks.sweep` to decide: it is given stages that
read their rows from disk and attack only what is missing. So runs that differ in ``nested`` share their cells.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from antiphase.arguments import unchecked
from antiphase.attacks.catalogue import most_passes
from antiphase.attacks.result import AttackResult
from antiphase.attacks.sweep import Ensemble, Stage, sweep
from antiphase.attacks.threat import Threat
from antiphase.commands.audit import WORST, AuditOptions
from antiphase.commands.run_files import described
from antiphase.data import ImageSet
from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.files import replacing
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


@dataclass(frozen=True)
class KeptImages:
    """Adversarial images of a few samples at one ε for a gallery, in ``files`` by model, attack and sample."""

    eps: float
    samples: frozenset[int]
    files: dict[tuple[str, str, int], Path] = field(default_factory=dict)


def measure(
    name: str,
    model: nn.Module,
    data: ImageSet,
    options: AuditOptions,
    out: Path,
    *,
    process: Process | None = None,
    context: Tensor | None = None,
    kept: KeptImages | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Attack every image that is not on disk yet; return one row for each ε and image, and the warnings.

    Every process returns all rows. ``context`` is what the model is given with each image, if anything; the fingerprint
    of ``data`` has to depend on it. The places of the images that are ``kept`` are added to it.
    """
    options.ensemble.check(model, data.images(range(1)), context)
    kept = kept or KeptImages(0.0, frozenset())
    cells = _Cells(name, model, data, options, out, process or this_process(), context, kept)
    results = cells.sweep(cells.attack, options.nested)()
    for at in (result for result in results if result.threat.eps == kept.eps):
        for sample, number in zip(at.ids.tolist(), at.adversarial[:, 0].tolist(), strict=True):
            if number < 0 or sample not in kept.samples:
                continue
            if (file := cells.places[int(number)] / f"{sample}.npy").exists():
                kept.files[name, options.attack, sample] = file
    warnings = [*cells.warnings, *(warning for result in results for warning in result.warnings)]
    how = {"attack": options.attack, "norm": options.norm, "attack_seed": options.seed}
    rows = described(_rows(results), ROW_SCHEMA, name, model, data, **how)
    return rows, list(dict.fromkeys(warnings))


def passes_left(
    name: str, model: nn.Module, data: ImageSet, options: AuditOptions, out: Path, classes: int
) -> tuple[int, int] | None:
    """Return how many forward and backward passes of single images are left at most; None if not known."""
    cells = _Cells(name, model, data, options, out, Process(), None, KeptImages(0.0, frozenset()))
    counts: list[tuple[int, int] | None] = []

    def count(stage: Stage, *given: Any, ids: Tensor, **_: Any) -> AttackResult:
        threat: Threat = given[-1]
        cache = cells.cache(stage, threat.eps, ids)
        each = most_passes(stage, classes)
        counts.append(each and (each[0] * len(cache.missing), each[1] * len(cache.missing)))
        rows = cache.journals[stage.name].rows()
        rows = pl.DataFrame({"sample": ids.numpy()}).join(rows, on="sample", how="left")
        robust = rows.with_columns(pl.col("success").fill_null(value=False)).fill_null(0)
        return cells.result(stage, threat, ids, robust)

    # going down, only what is broken is attacked again: then every ε counts whole
    cells.sweep(count, "off" if options.nested == "down" else options.nested)()
    known = [passes for passes in counts if passes is not None]
    return None if len(known) < len(counts) else (sum(f for f, _ in known), sum(b for _, b in known))


def with_worst_case(rows: pl.DataFrame, attacks: Sequence[str]) -> pl.DataFrame:
    """Put before the rows the worst case: of the first attack that broke an image, else of the first attack."""
    keys, passes = ["model", "eps", "sample"], pl.col("forwards", "backwards")
    parts = rows.filter(pl.col("attack").is_in(attacks)).with_columns(passes.sum().over(keys))
    order = pl.col("attack").cast(pl.Enum(attacks))
    first = parts.sort(~pl.col("success"), order, maintain_order=True).unique(keys, keep="first")
    first = first.with_columns(pl.when("success").then("attack").alias("felled_by"))
    places = parts.filter(attack=attacks[0]).select(keys)
    worst = places.join(first, on=keys, maintain_order="left").with_columns(
        attack=pl.lit(f"{WORST}{', '.join(attacks)}")
    )
    return pl.concat([worst.select(rows.columns), rows])


def _rows(results: list[AttackResult]) -> pl.DataFrame:
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
    kept: KeptImages
    places: list[Path] = field(default_factory=list)  # of the cells, in the order in which they are attacked
    warnings: dict[str, None] = field(default_factory=dict)  # of all cells so far, each once

    @functools.cached_property
    def shared(self) -> dict[str, Any]:
        prints = {"model": fingerprint(self.model), "data": self.data.fingerprint()}
        what = {"version": CELL_VERSION, **prints, "norm": self.options.norm, "seed": self.options.seed}
        # auto shares the rows of float32: verdicts do not depend on the search's precision
        what |= {"precision": f"bf16{AGAIN}"} if self.options.precision == "bf16" else {}
        return what | ({"compile": True} if self.options.compile else {})

    @functools.cached_property
    def position(self) -> dict[int, int]:
        return {sample: at for at, sample in enumerate(self.data.ids.tolist())}

    def sweep(self, attack: Callable[..., AttackResult], nested: Any) -> Callable[[], list[AttackResult]]:
        """Return the sweep that calls ``attack`` with each stage and its samples in place of the stage's attack."""
        # settings are checked with the images that are attacked
        ensemble = self.options.ensemble
        stages = [replace(one, attack=functools.partial(attack, one), settings={}) for one in ensemble.stages]
        # the stages load their images; in place of pixels, a sample has the number of the cell that has them
        unknown = torch.full((len(self.data), 1), -1.0, dtype=torch.float64)
        threat = Threat(self.options.norm, self.options.eps[0])
        given = (Ensemble(ensemble.name, tuple(stages)), self.model, unknown, None, threat)
        how = {"nested": nested, "ids": self.data.ids}
        return functools.partial(unchecked(sweep), *given, self.options.eps, **how)

    def cache(self, stage: Stage, eps: float, ids: Tensor) -> Cache[str]:
        what = self.shared | {"attack": stage.name, "settings": stage.settings, "eps": float(eps)}
        if stage.name == "square":  # searches in float32 in any case
            what.pop("precision", None)
        asked = [(stage.name, sample) for sample in ids.tolist()]
        return Cache(self.out, {stage.name: what}, _CELL_SCHEMA, asked, self.process)

    def attack(self, stage: Stage, *given: Any, ids: Tensor, **_: Any) -> AttackResult:
        threat: Threat = given[-1]
        cache = self.cache(stage, threat.eps, ids)
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
        self.places.append(journal.directory)
        return self.result(stage, threat, ids, found)

    def result(self, stage: Stage, threat: Threat, ids: Tensor, found: pl.DataFrame) -> AttackResult:
        found = found.unique("sample", keep="first")  # two runs at once may both write a sample
        wanted = pl.DataFrame({"sample": ids.numpy()})
        rows = wanted.join(found, on="sample", how="left", maintain_order="left")
        arrays: dict[str, Any] = {name: rows[name].to_torch() for name in _CELL_SCHEMA if name != "sample"}
        place = torch.full((len(ids), 1), len(self.places) - 1.0, dtype=torch.float64)
        about = {"label": arrays["clean_prediction"], "adversarial": place}
        return AttackResult(stage.name, threat, stage.settings, ids, **about, **arrays)

    def keywords(self, stage: Stage, eps: float, at: Tensor, ids: Tensor, journal: Journal) -> dict[str, Any]:
        """Return how to attack some samples so that their rows are kept as they come."""
        options, kept = self.options, self.kept
        last = stage.name == options.ensemble.stages[-1].name and eps in (kept.eps, math.inf)

        def keep(positions: Tensor, results: dict[str, Tensor]) -> None:
            columns = {"sample": ids[positions].numpy()}
            columns |= {key: results[key][positions].numpy() for key in _CELL_SCHEMA if key != "sample"}
            for position in positions.tolist():
                # a nearest example that is too far at this ε may serve a larger one
                found = results["prediction"][position] != results["label"][position]
                if int(ids[position]) in kept.samples and (last or found):
                    path = journal.directory / f"{ids[position]}.npy"
                    with replacing(path) as temporary, temporary.open("wb") as file:
                        np.save(file, results["adversarial"][position].numpy())
            journal.append(pl.DataFrame(columns, schema_overrides=_CELL_SCHEMA).select(*_CELL_SCHEMA))

        up_to = "" if math.isinf(eps) else f" ε={eps_label(eps)}"
        title = f"{self.name} {stage.name}{up_to}" if not options.quiet and self.process.first else ""
        how = {name: getattr(options, name) for name in ("seed", "batch_size", "precision")}
        how |= {"ids": ids, "on_finished": keep, "progress": title}
        how |= {"compile": True} if options.compile else {}
        return how | ({} if self.context is None else {"context": self.context[at]})
