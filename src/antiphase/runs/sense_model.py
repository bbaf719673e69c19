"""How sensitive the attention of a model is: rows of alignment, Lipschitz constants and depth, on disk as they come."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphase.attacks.pgd import pgd
from antiphase.attacks.threat import Threat, random_point
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.layers import ALIGNMENT_SCHEMA, BRANCHES_SCHEMA, DEPTH_SCHEMA, LIPSCHITZ_SCHEMA
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.progress import progress_bar
from antiphase.runs.branches import branch_rows
from antiphase.runs.cache import Cache
from antiphase.runs.processes import Process
from antiphase.runs.sense_plan import SensePlan
from antiphase.sensitivity.alignment import Gram, align
from antiphase.sensitivity.depth import propagate, stage_norms
from antiphase.sensitivity.eager import eager_attention
from antiphase.sensitivity.estimators import Neighbourhood, all_estimators
from antiphase.sensitivity.gradients import direction_grams, loss_grams, random_directions, token_grams
from antiphase.sensitivity.layers import Layer
from antiphase.sensitivity.maps import all_maps, attention_layers, map_function
from antiphase.sensitivity.operator_norm import power_iteration
from antiphase.sensitivity.sampling import Sampled, uniform_sampling_of_all
from antiphase.streams import key, sample_keys


@dataclass(frozen=True)
class Part:
    """One of the three measurements: its rows' schema, what it depends on, and how a batch is measured."""

    name: str
    schema: dict[str, Any]
    settings: tuple[str, ...]
    rows: Callable[[nn.Module, Tensor, Tensor, SensePlan], Iterator[dict[str, Any]]]
    version: int  # raise it when the same settings come to mean another measurement
    heavy: bool = False
    registered: Callable[[], dict[str, Any]] = (
        dict  # what else its rows depend on: what users have registered
    )


def alignment_rows(
    model: nn.Module,
    images: Tensor,
    ids: Tensor,
    plan: SensePlan,
    loss: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the inner products of every layer and head: at its tokens, at the pixels, along the loss's gradient.

    Args:
        model: with attention.
        images: x, where the maps are differentiated.
        ids: ids of the samples.
        plan: of the measurement.
        loss: sum over the samples, of the logits; None: the cross-entropy with the predictions at x.
    """
    draws = torch.arange(plan.probes)
    keys = sample_keys(key(plan.seed, "alignment"), ids)[:, None]
    keys = torch.stack([sample_keys(keys[:, 0], torch.full_like(ids, draw)) for draw in draws.tolist()], 1)
    for at, (layer, gram, probes) in enumerate(token_grams(model, images, keys)):
        yield from _gram_rows("tokens", at, layer, gram, probes, ids)
    for at, (layer, gram) in enumerate(loss_grams(model, images, loss or _loss)):
        yield from _gram_rows("loss", at, layer, gram, 0, ids)
    directions = random_directions(images, keys)
    for at, (layer, gram) in enumerate(direction_grams(model, images, directions)):
        yield from _gram_rows("pixels", at, layer, gram, plan.probes, ids)


def _loss(logits: Tensor) -> Tensor:
    """Return the cross-entropy with the clean predictions, what an attack climbs."""
    return functional.cross_entropy(logits.double(), logits.argmax(1), reduction="sum")


def perturbed_alignment_rows(
    model: nn.Module, images: Tensor, ids: Tensor, plan: SensePlan
) -> Iterator[dict[str, Any]]:
    """Yield what :func:`alignment_rows` does, at x + ξ with ‖ξ‖∞ ≤ ε instead of x, for uniform noise and PGD's ξ.

    The gradients at x + ξ by x and by ξ are the same. Directions and cotangents are those drawn for x, and the loss is
    the cross-entropy with the predictions at x, which PGD increases.
    """
    with eager_attention(), torch.no_grad():
        clean = model(images.clone()).argmax(1)

    def loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits.double(), clean, reduction="sum")

    for kind, moved in _perturbed(model, images, ids, plan.eps, plan.seed).items():
        for row in alignment_rows(model, moved, ids, plan, loss):
            yield row | {"perturbation": kind, "eps": plan.eps}


def _gram_rows(
    site: str, at: int, layer: Layer, gram: Gram, probes: int, ids: Tensor
) -> Iterator[dict[str, Any]]:
    mean = gram.mean() if probes else gram
    if not mean.first.isfinite().all():
        raise UserError(f"{layer.name}: the gradient of its map is NaN or infinite; what is measured is kept")
    found = None if layer.negative is None else align(gram, probes=bool(probes))
    for row, sample in enumerate(ids.tolist()):
        for head in range(layer.heads):
            here = (row, head)
            yield {
                "sample": sample,
                "layer": at,
                "name": layer.name,
                "head": head,
                "site": site,
                "probes": probes,
                "lam": float(layer.weight[head]),
                "first": float(mean.first[here]),
                "second": float(mean.second[here]),
                "cross": float(mean.cross[here]),
                "moved": None if mean.moved is None else float(mean.moved[here]),
                "low": None if found is None else float(found.low[here]),
                "high": None if found is None else float(found.high[here]),
            }


def lipschitz_rows(
    model: nn.Module, images: Tensor, ids: Tensor, plan: SensePlan
) -> Iterator[dict[str, Any]]:
    """Yield every estimator's value of each layer's combined map (root mean square over heads) and of the logits."""
    names = [layer.name for layer in attention_layers(model, images[:1])]
    places = [
        (None, "", "logits", model),
        *((at, name, "map", map_function(model, name)) for at, name in enumerate(names)),
    ]
    together = uniform_sampling_of_all(
        lambda x: all_maps(model, x), images, plan.eps, samples=plan.samples, seed=plan.seed, ids=ids
    )
    for (at, name, of, f), sampled in zip(places, together, strict=True):
        about = {"layer": at, "name": name, "of": of, "norm": "l2", "ball": "linf", "eps": plan.eps}
        for estimator, values in estimates(f, images, ids, sampled, plan).items():
            for sample, value in zip(ids.tolist(), values.tolist(), strict=True):
                yield about | {"sample": sample, "estimator": estimator, "value": value}


def estimates(
    f: Callable[[Tensor], Tensor], images: Tensor, ids: Tensor, sampled: Sampled, plan: SensePlan
) -> dict[str, Tensor]:
    """Return the values of every registered estimator of a function's local Lipschitz constant."""
    slope = power_iteration(f, images, steps=2 * plan.steps, seed=plan.seed, ids=ids)
    at = Neighbourhood(f, images, ids, plan.eps, plan.steps, plan.points, plan.seed, sampled, slope)
    found = {estimator.name: estimator.value(at) for estimator in all_estimators()}
    return {name: values for name, values in found.items() if values is not None}


def _added_estimators() -> dict[str, Any]:
    added = [estimator.name for estimator in all_estimators() if not estimator.from_start]
    return {"estimators": added} if added else {}


def depth_rows(model: nn.Module, images: Tensor, ids: Tensor, plan: SensePlan) -> Iterator[dict[str, Any]]:
    """Yield how far uniform noise and PGD's perturbation have come after each block."""
    norms = stage_norms(model, images, steps=2 * plan.steps, seed=plan.seed, ids=ids)
    for eps in plan.travel:
        for kind, moved in _perturbed(model, images, ids, eps, plan.seed).items():
            path = propagate(model, images, moved)
            alpha = path.gain / norms
            own = [None, *(at if at < len(path.layers) else None for at in range(len(path.names) - 1))]
            for row, sample in enumerate(ids.tolist()):
                for stage, name in enumerate(path.names):
                    layer = own[stage] if len(path.layers) == len(path.names) - 1 else None
                    maps = {
                        part: None if layer is None else float(getattr(path, part)[row, layer])
                        for part in ("positive", "negative", "moved")
                    }
                    yield maps | {
                        "sample": sample,
                        "perturbation": kind,
                        "eps": eps,
                        "stage": stage,
                        "name": name,
                        "length": float(path.length[row, stage + 1]),
                        "gain": float(path.gain[row, stage]),
                        "lipschitz": float(norms[row, stage]),
                        "alpha": float(alpha[row, stage]),
                    }


def branches_rows(model: nn.Module, images: Tensor, ids: Tensor, plan: SensePlan) -> Iterator[dict[str, Any]]:
    """Yield what uniform noise and PGD's perturbation do to the branches of every layer."""
    for eps in plan.travel:
        for kind, moved in _perturbed(model, images, ids, eps, plan.seed).items():
            for row in branch_rows(model, images, ids, moved):
                yield row | {"perturbation": kind, "eps": eps}


def _perturbed(model: nn.Module, images: Tensor, ids: Tensor, eps: float, seed: int) -> dict[str, Tensor]:
    keys = sample_keys(key(seed, "travel", round(eps * 2**20)), ids).to(images.device)
    noise = random_point(images, images.new_full((len(images),), eps), "linf", (0.0, 1.0), keys)
    found = pgd(model, images, None, Threat(eps=eps), seed=seed, ids=ids, early_stop=False, progress=False)
    return {"noise": noise, "pgd": found.adversarial.to(images)}


PARTS = (
    Part("alignment", ALIGNMENT_SCHEMA, ("probes", "seed"), alignment_rows, version=2),
    Part(
        "lipschitz",
        LIPSCHITZ_SCHEMA,
        ("eps", "samples", "steps", "points", "seed"),
        lipschitz_rows,
        heavy=True,
        registered=_added_estimators,
        version=1,
    ),
    Part("depth", DEPTH_SCHEMA, ("travel", "steps", "seed"), depth_rows, version=1),
)

BRANCHES = Part("branches", BRANCHES_SCHEMA, ("travel", "seed"), branches_rows, version=1)
"""What perturbations do to the two branches of every layer; measured by studies only."""
PERTURBED = Part(
    "alignment-perturbed",
    ALIGNMENT_SCHEMA | {"perturbation": pl.String, "eps": pl.Float64},
    ("eps", "probes", "seed"),
    perturbed_alignment_rows,
    version=1,
)
"""Alignment at perturbed images, of studies only: ``antiphase sense`` measures at clean images."""


def sense(
    name: str,
    model: nn.Module,
    data: ImageSet,
    plan: SensePlan,
    out: Path,
    *,
    parts: Sequence[str],
    process: Process,
    batch_size: int,
    progress: bool,
    limit: int | None = None,
) -> dict[str, pl.DataFrame]:
    """Measure every image that is not on disk yet; return the rows of each part.

    Args:
        name: of the model in the rows.
        model: a loaded model, with its card.
        data: images.
        plan: of the measurement.
        out: run directory; cells lie under ``cells/``.
        parts: which of alignment, lipschitz, depth, alignment-perturbed and branches.
        process: measures its share of the images.
        batch_size: images at once; affects no result.
        progress: whether to show progress bars on stderr.
        limit: at most this many of the images.
    """
    device = device_of(model)
    who = fingerprint(model)
    found = {}
    for part in (part for part in (*PARTS, PERTURBED, BRANCHES) if part.name in parts):
        chosen = {field: asdict(plan)[field] for field in part.settings} | part.registered()
        what = {"version": part.version, "part": part.name, "model": who, "data": data.fingerprint()} | chosen
        most = len(data) if limit is None else limit
        wanted = data.ids.tolist()[: min(most, plan.lipschitz_limit) if part.heavy else most]
        asked = [(part.name, sample) for sample in wanted]
        cache = Cache(out, {part.name: what}, _stored(part.schema), asked, process)
        with (
            progress_bar(f"{name} {part.name}", len(cache.mine), progress and process.first) as advance,
            cache.filling(batch_size) as batches,
        ):
            for at in batches:
                rows = list(part.rows(model, data.images(at).to(device), data.ids[at], plan))
                cache.journals[part.name].append(pl.DataFrame(rows, schema=_stored(part.schema)))
                advance(len(at))
        rows = cache.collect()[part.name]
        found[part.name] = _described(rows.filter(pl.col("sample").is_in(wanted)), name, model, part)
    return found


def _stored(schema: dict[str, Any]) -> dict[str, Any]:
    return {column: kind for column, kind in schema.items() if column not in ("model", "attention", "seed")}


def _described(rows: pl.DataFrame, name: str, model: nn.Module, part: Part) -> pl.DataFrame:
    card = card_of(model)
    about = {"model": name, "attention": card.attention, "seed": card.seed}
    rows = rows.with_columns(
        pl.lit(value, part.schema[column]).alias(column) for column, value in about.items()
    )
    order = [column for column in ("site", "layer", "stage", "sample", "head") if column in rows.columns]
    return rows.select(*part.schema).sort(order, maintain_order=True)
