"""One model under one attack at several ε: rows on disk as they come, shared among processes.

What is stored is a cell: one stage of the attack at one ε, known by the hash of what affects its rows. How
samples carry over from one ε to the next is worked out from the cells, so that a nested run and one with
independent ε share them.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import polars as pl
import torch
from torch import Tensor, nn

from antiphase.attacks.catalogue import find_attack
from antiphase.attacks.engine.checks import black_box_wins, falling_asr
from antiphase.attacks.ensemble import Ensemble, Stage
from antiphase.attacks.threat import Norm, Threat
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.rates import ROW_SCHEMA
from antiphase.files import digest, write_json
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.precision import Precision
from antiphase.runs.journal import Journal
from antiphase.runs.processes import Shard
from antiphase.streams import check_seed

CELL_VERSION = 2  # raise it when the same settings come to mean another measurement
AGAIN = ", what is near in float32"  # each time more of it: cells of another meaning have another name
_SLICE_BYTES = 2**28  # of images in memory at once
_CELL_SCHEMA = {
    "sample": pl.Int64, "clean_prediction": pl.Int64, "prediction": pl.Int64, "success": pl.Boolean,
    "distance": pl.Float64, "forwards": pl.Int64, "backwards": pl.Int64,
}  # fmt: skip

_NOTHING_SPENT = {"forwards": pl.lit(0, pl.Int64), "backwards": pl.lit(0, pl.Int64)}


@dataclass(frozen=True)
class AttackPlan:
    """An attack and its budgets; the defaults are those the papers leave open, declared.

    Attributes:
        eps: budgets, in units of the [0, 1] pixel.
        norm: of the budgets.
        attack: a name of the catalogue.
        settings: its keyword arguments.
        nested: whether a sample that falls at ε counts as fallen at every larger one.
        seed: of the attack's random draws.
        precision: of the search; verdicts are float32.
        batch_size: rows through the model at once; affects no result.
        compile: whether the search asks a ``torch.compile``-d model.

    Raises:
        UserError: for a budget that is not positive or given twice, a seed out of range, or an unknown attack.
    """

    eps: tuple[float, ...]
    norm: Norm = "linf"
    attack: str = "pgd"
    settings: dict[str, Any] = field(default_factory=dict)
    nested: bool = True
    seed: int = 0
    precision: Precision = "float32"
    batch_size: int | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        if not self.eps or len(set(self.eps)) < len(self.eps):
            raise UserError(f"eps {self.eps}: expected at least one budget, and none twice")
        for eps in self.eps:
            Threat(self.norm, eps)
            if not 0 < eps < math.inf:
                raise UserError(f"eps {eps}: expected a positive number, in units of the [0, 1] pixel")
        if self.precision not in get_args(Precision):
            raise UserError(f"precision {self.precision!r}: expected float32 or bf16")
        check_seed(self.seed)
        find_attack(self.attack, **self.settings)

    @property
    def ensemble(self) -> Ensemble:
        """The attack's stages."""
        return find_attack(self.attack, **self.settings)

    @property
    def minimal(self) -> bool:
        """Whether it only looks for the nearest adversarial example, so that ε plays no part in the search."""
        return self.nested and self.ensemble.minimal


def measure(
    name: str, model: nn.Module, data: ImageSet, plan: AttackPlan, out: Path, *, shard: Shard, progress: bool
) -> tuple[pl.DataFrame, list[str]]:
    """Attack every image that is not on disk yet; return one row for each ε and image, and the warnings.

    Args:
        name: of the model in the rows.
        model: a loaded model, with its card.
        data: images and labels.
        plan: of the attack.
        out: run directory; cells lie under ``cells/``.
        shard: this process's share of the images. Every process returns all rows.
        progress: whether to show progress bars on stderr.
    """
    print_of_model, print_of_data = fingerprint(model), data.fingerprint()
    ensemble = plan.ensemble
    ensemble.check(model, data.images(range(1)))
    levels: list[pl.DataFrame] = []
    nearest: dict[str, pl.DataFrame] = {}  # what a search for the nearest example found, by stage
    warnings: dict[str, None] = {}
    everyone = pl.DataFrame({"sample": data.ids.numpy()}, schema={"sample": pl.Int64})

    def cell(stage: Stage, eps: float, wanted: pl.Series) -> pl.DataFrame:
        what = {
            "version": CELL_VERSION, "model": print_of_model, "data": print_of_data, "eps": eps,
            "attack": stage.name, "settings": stage.settings, "norm": plan.norm, "seed": plan.seed,
        }  # fmt: skip
        what |= {"precision": plan.precision + AGAIN} if plan.precision != "float32" else {}
        what |= {"compile": True} if plan.compile else {}
        path = out / "cells" / digest(json.dumps(what, sort_keys=True))[:16]
        at = "" if math.isinf(eps) else f" ε={eps * 255:g}/255"
        title = f"{name} {stage.name}{at}" if progress else ""
        rows, said = _cell(path, stage, model, data, wanted, eps, plan, shard, title)
        warnings.update(dict.fromkeys(said))
        return rows

    for eps in sorted(plan.eps):
        parts: list[pl.DataFrame] = []
        if plan.nested and levels:
            parts.append(levels[-1].filter("success").drop("eps").with_columns(**_NOTHING_SPENT))
        for stage in ensemble.stages:
            fallen = [part.filter("success").select("sample") for part in parts]
            standing = everyone.join(pl.concat([everyone.clear(), *fallen]), on="sample", how="anti")[
                "sample"
            ]
            if not (stage.nearest and plan.nested):
                rows = cell(stage, eps, standing)
            elif stage.name in nearest:
                found = nearest[stage.name].filter(pl.col("sample").is_in(standing.implode()))
                rows = found.with_columns(success=_within(eps), **_NOTHING_SPENT)
            else:
                rows = nearest[stage.name] = cell(stage, math.inf if plan.minimal else eps, standing)
                rows = rows.with_columns(success=_within(eps))
            parts.append(rows.with_columns(felled_by=pl.when("success").then(pl.lit(stage.name))))
        levels.append(_verdicts(parts).with_columns(eps=pl.lit(eps)))
    warnings.update(dict.fromkeys(_doubts(levels, plan)))
    return _described(pl.concat(levels), name, model, data, plan), list(warnings)


def _doubts(levels: list[pl.DataFrame], plan: AttackPlan) -> list[str]:
    """Return what the verdicts themselves make doubtful, as the library's ensembles and sweeps do."""
    asr = [level.select(pl.mean("success")).item() for level in levels]
    doubts = falling_asr(sorted(plan.eps), asr)
    if len(plan.ensemble.stages) > 1:
        for level in levels:
            black_box = int((level["felled_by"] == "square").sum())
            doubts += black_box_wins(int(level["success"].sum()) - black_box, black_box, len(level))
    return doubts


def _within(eps: float) -> pl.Expr:
    """Whether the nearest adversarial example that was found lies within ε."""
    return (pl.col("prediction") != pl.col("clean_prediction")) & (
        pl.col("distance") <= eps + Threat().tolerance
    )


def _verdicts(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return one row a sample: of the stage that felled it, else of the last; passes summed."""
    parts = [part.with_columns(stage=pl.lit(number)) for number, part in enumerate(parts) if len(part)]
    tried = pl.concat([part.select(sorted(part.columns)) for part in parts]).sort("sample", "stage")
    sums = tried.group_by("sample").agg(pl.sum("forwards", "backwards"))
    last = tried.unique("sample", keep="last").drop("stage", "forwards", "backwards")
    return last.join(sums, on="sample").sort("sample").select(*_CELL_SCHEMA, "felled_by")


def _described(
    rows: pl.DataFrame, name: str, model: nn.Module, data: ImageSet, plan: AttackPlan
) -> pl.DataFrame:
    """Add what all rows share, and the true labels."""
    card = card_of(model)
    labels = pl.DataFrame({"sample": data.ids.numpy(), "label": data.labels.numpy()})
    shared = {
        "model": name, "attention": card.attention, "seed": card.seed, "attack": plan.attack,
        "norm": plan.norm, "attack_seed": plan.seed,
    }  # fmt: skip
    columns = [pl.lit(value, ROW_SCHEMA[column]).alias(column) for column, value in shared.items()]
    joined = rows.join(labels, on="sample", maintain_order="left").with_columns(columns)
    return joined.select(*ROW_SCHEMA).cast(dict[Any, Any](ROW_SCHEMA))


def _cell(
    path: Path, stage: Stage, model: nn.Module, data: ImageSet, wanted: pl.Series, eps: float, plan: AttackPlan,
    shard: Shard, title: str,
) -> tuple[pl.DataFrame, list[str]]:  # fmt: skip
    """Return the rows of the wanted samples, attacking those that are missing, and the warnings on file."""
    journal = Journal(path, _CELL_SCHEMA, writer=shard.rank)
    held = set(journal.rows()["sample"])
    want = set(wanted)
    missing = [at for at, sample in enumerate(data.ids.tolist()) if sample in want and sample not in held]
    shard.wait()  # nobody writes before everybody has read
    warnings: dict[str, None] = {}
    for part in slices(torch.tensor(missing[shard.rank :: shard.count], dtype=torch.int64), data.image_shape):
        found = _attack(journal, stage, model, data, part, eps, plan, title if shard.first else "")
        warnings |= dict.fromkeys(found)
    if warnings:
        write_json(path / f"warnings-{shard.rank}.json", list(warnings))
    shard.wait()
    rows = journal.rows()
    said = [line for file in sorted(path.glob("warnings-[0-9]*.json")) for line in _read_warnings(file)]
    shard.wait()  # nobody tidies up before everybody has read
    if missing and shard.first:
        journal.compact(rows)
    return rows.filter(pl.col("sample").is_in(wanted.implode())), said


def _read_warnings(file: Path) -> list[str]:
    """Return the warnings that an attack left with its rows.

    Raises:
        UserError: the file is damaged.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise UserError(
            f"{file}: expected a list of warnings in JSON; delete {file.parent} and its images are attacked again"
        )
    return found


def _attack(
    journal: Journal,
    stage: Stage,
    model: nn.Module,
    data: ImageSet,
    part: Tensor,
    eps: float,
    plan: AttackPlan,
    title: str,
) -> tuple[str, ...]:
    """Attack some images, keep their rows and return the warnings; the images go with the call."""
    images, ids = data.images(part), data.ids[part]

    def keep(positions: Tensor, results: dict[str, Tensor]) -> None:
        columns = {"sample": ids[positions].numpy()}
        columns |= {key: results[key][positions].numpy() for key in _CELL_SCHEMA if key != "sample"}
        journal.append(pl.DataFrame(columns, schema_overrides=_CELL_SCHEMA).select(*_CELL_SCHEMA))

    try:
        return stage.attack(
            model, images, None, Threat(plan.norm, eps), **stage.settings, seed=plan.seed, ids=ids,
            batch_size=plan.batch_size, precision=plan.precision, on_finished=keep, progress=title,
            **({"compile": True} if plan.compile else {}),
        ).warnings  # fmt: skip
    finally:  # whatever stops the attack, finished samples are kept
        journal.flush()


def slices(positions: Tensor, shape: tuple[int, int, int]) -> Iterator[Tensor]:
    """Split positions so that the images of each part fit in memory."""
    size = max(1, _SLICE_BYTES // (4 * math.prod(shape)))
    return iter(positions.split(size)) if len(positions) else iter(())
