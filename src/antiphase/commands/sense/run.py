"""How sensitive the attention of models is: rows of alignment, Lipschitz constants and depth, on disk as they come."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphase import modules, streams, terminal
from antiphase.attacks.pgd import pgd
from antiphase.attacks.threat import Threat, random_point
from antiphase.commands.lineup import Lineup, described, load_lineup, write_run
from antiphase.commands.sense import SenseOptions
from antiphase.data import ImageSet
from antiphase.data.images import content_key
from antiphase.errors import UserError
from antiphase.evaluation.rates import MODEL_SCHEMA, Pairs
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.sensitivity import alignment as grams
from antiphase.sensitivity import layer_estimates as sensitivity
from antiphase.sensitivity import lipschitz
from antiphase.sensitivity.depth import BranchChange, branch_changes, propagate, stage_norms
from antiphase.sensitivity.layers import Layer, eager_attention
from antiphase.sensitivity.maps import all_maps, attention_layers, map_function
from antiphase.store import Cache

BATCH_SIZE = 8

Rows = Iterator[pl.DataFrame]


@dataclass(frozen=True)
class Part:
    """One of the measurements.

    ``settings`` are what its rows depend on, by the name under which they are stored: a field of the options;
    ``registered`` returns what else they depend on. Raise ``version`` when the same settings come to mean another
    measurement. A ``heavy`` one is of ``lipschitz_limit`` images only.
    """

    name: str
    schema: dict[str, Any]
    settings: dict[str, str]
    rows: Callable[[nn.Module, Tensor, Tensor, SenseOptions], Rows]
    version: int = 1
    heavy: bool = False
    registered: Callable[[], dict[str, Any]] = field(default=dict)

    @property
    def stored(self) -> dict[str, Any]:
        """The schema of the rows on disk, which do not name the model."""
        return {name: kind for name, kind in self.schema.items() if name not in MODEL_SCHEMA}


def run(options: SenseOptions, command: str = "", lineup: Lineup | None = None) -> dict[str, Any]:
    """Measure every model on the same images and write the run directory; return the summary."""
    known = [part.name for part in PARTS]
    if not set(options.parts) <= set(known):
        raise UserError(f"parts {', '.join(options.parts)}: expected some of {', '.join(known)}")
    lineup, began = lineup or load_lineup(options), time.monotonic()
    lineup.check_fit()
    measured = [sense(*named, lineup.data, options, options.out) for named in lineup.by_name.items()]
    rows = {part: pl.concat([frames[part] for frames in measured]) for part in measured[0]}
    if "alignment" in rows:
        depth = dict(rows["alignment"].group_by("model").agg(pl.col("layer").n_unique()).iter_rows())
        for one, two in lineup.pairs:
            if depth[one] != depth[two]:
                counts = f"{one} has {depth[one]} attention layers, {two} {depth[two]}"
                raise UserError(f"{counts}: expected as many in a twin")
    summary = {"models": lineup.about(), "pairs": [list(pair) for pair in lineup.pairs]}
    summary |= summarise(rows, lineup.pairs)
    doubts = lineup.doubts()
    summary |= {"warnings": doubts} if doubts else {}
    numbers = ("probes", "samples", "steps", "points", "lipschitz_limit", "seed")
    settings: dict[str, Any] = {name: getattr(options, name) for name in numbers}
    settings |= {"Lipschitz ball": f"L∞, {terminal.eps_label(options.radius)}", "Lipschitz norms": "L2 → L2"}
    settings |= {"parts": ", ".join(options.parts), "PGD": "20 steps of ε/4, random start, best iterate"}
    settings |= {"perturbations": ", ".join(map(terminal.eps_label, options.eps))}
    frames = {part: rows.get(part) for part in known}  # None: of an earlier run with the same --out
    write_run(lineup, options, summary, frames, settings, doubts, command, began)
    return summary


def summarise(rows: Mapping[str, pl.DataFrame], pairs: Pairs) -> dict[str, Any]:
    """Return every estimate with its interval, as rows of tables."""
    summary: dict[str, Any] = {}
    if "alignment" in rows:
        frame = rows["alignment"]
        summary["alignment"] = entries(sensitivity.alignment(frame))
        summary["explanation"] = entries(sensitivity.explanation(frame, list(pairs)))
        summary["prediction_error"] = sensitivity.prediction_error(frame)
    if "terms" in rows:
        summary["terms"] = entries(sensitivity.terms(rows["terms"]))
    if "lipschitz" in rows:
        keys = ["model", "of", "layer", "estimator"]
        summary["lipschitz"] = entries(sensitivity.means(rows["lipschitz"], keys, ["value"]))
    if "depth" in rows:
        keys = ["model", "perturbation", "eps", "stage"]
        summary["depth"] = entries(sensitivity.means(rows["depth"], keys, ["length", "gain", "lipschitz", "alpha"]))
        summary["cancellation"] = entries(sensitivity.cancellation(rows["depth"]))
    return summary


def entries(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, which has no infinity: one image leaves an interval open."""
    ends = pl.col("value", "low", "high")
    return frame.with_columns(pl.when(ends.is_finite()).then(ends)).to_dicts()


def sense(
    name: str,
    model: nn.Module,
    data: ImageSet,
    options: SenseOptions,
    out: Path,
    *,
    limit: int | None = None,
    process: Process | None = None,
    parts: Sequence[Part] = (),
) -> dict[str, pl.DataFrame]:
    """Measure every image, or ``limit`` of them, that is not on disk yet; return the rows of each part.

    ``parts`` are those that the options name where not given: studies ask for some that the command does not offer.
    """
    process = process or this_process()
    size, device = options.batch_size or BATCH_SIZE, modules.device_of(model)
    prints = {"model": fingerprint(model), "data": content_key(data)}
    frames = {}
    for part in parts or [part for part in (*PARTS, *STUDY_PARTS) if part.name in options.parts]:
        settings = {stored: getattr(options, option) for stored, option in part.settings.items()}
        identity = {"version": part.version, "part": part.name} | prints | settings | part.registered()
        count = len(data) if limit is None else limit
        samples = data.ids.tolist()[: min(count, options.lipschitz_limit) if part.heavy else count]
        cache = Cache(out, identity, part.stored, samples, process)
        bar = terminal.progress_bar(f"{name} {part.name}", len(cache.mine), not options.quiet and process.first)
        with bar as advance, cache.filling(size) as batches:
            for positions in batches:
                images, ids = data.images(positions).to(device), data.ids[positions]
                columns = [pl.col(column).cast(kind) for column, kind in part.stored.items()]
                frames_of_batch = [frame.select(columns) for frame in part.rows(model, images, ids, options)]
                cache.journal.append(pl.concat(frames_of_batch))
                advance(len(positions))
        rows = described(cache.collect().filter(pl.col("sample").is_in(samples)), part.schema, name, model)
        order = [column for column in ("site", "layer", "stage", "sample", "head") if column in rows.columns]
        frames[part.name] = rows.sort(order, maintain_order=True)
    return frames


def rows_of(ids: Tensor, values: Mapping[str, Tensor | None], **about: Any) -> pl.DataFrame:
    """Return a row for each sample and head from values (samples, heads) or (heads,), and constant columns."""
    known = {name: value for name, value in values.items() if value is not None}
    samples, heads = torch.broadcast_shapes((len(ids), 1), *(value.shape for value in known.values()))
    columns: dict[str, Any] = {"sample": ids.repeat_interleave(heads).tolist()}
    columns["head"] = samples * list(range(heads))
    columns |= {name: value.expand(samples, heads).flatten().tolist() for name, value in known.items()}
    about |= dict.fromkeys(values.keys() - known)
    return pl.DataFrame(columns).with_columns(pl.lit(value).alias(name) for name, value in about.items())


def alignment_rows(
    model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions, loss: Callable[[Tensor], Tensor] | None = None
) -> Rows:
    """Yield the inner products of every layer and head: at its tokens, along the loss's gradient, at the pixels.

    ``loss`` of the logits is, where not given, the cross-entropy with the predictions at x, what an attack climbs.
    """
    keys = _probe_keys(ids, options)
    for layer_index, (layer, gram, probes) in enumerate(grams.token_grams(model, images, keys)):
        yield _gram_rows("tokens", layer_index, layer, gram, probes, ids)
    for layer_index, (layer, gram) in enumerate(grams.loss_grams(model, images, loss or _loss)):
        yield _gram_rows("loss", layer_index, layer, gram, 0, ids)
    directions = grams.random_directions(images, keys)
    for layer_index, (layer, gram) in enumerate(grams.direction_grams(model, images, directions)):
        yield _gram_rows("pixels", layer_index, layer, gram, options.probes, ids)


def term_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    """Yield how much of each layer's ‖J_DA‖² comes from J1, from λ·J2 and from λ's own gradient, at the pixels."""
    directions = grams.random_directions(images, _probe_keys(ids, options))
    for layer_index, (layer, terms) in enumerate(grams.gradient_terms(model, images, directions)):
        values = {name: getattr(terms, name).mean(-1) for name in ("first", "second", "third")}
        yield rows_of(ids, values | {"lam": layer.weight}, layer=layer_index, name=layer.name)


def _probe_keys(ids: Tensor, options: SenseOptions) -> Tensor:
    keys = streams.sample_keys(streams.key(options.seed, "alignment"), ids)
    return torch.stack([streams.sample_keys(keys, torch.full_like(ids, draw)) for draw in range(options.probes)], 1)


def _loss(logits: Tensor, classes: Tensor | None = None) -> Tensor:
    return functional.cross_entropy(logits.double(), logits.argmax(1) if classes is None else classes, reduction="sum")


def perturbed_alignment_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    """Yield what :func:`alignment_rows` does at x + ξ, ‖ξ‖∞ ≤ radius, for noise and PGD's ξ."""
    with eager_attention(), torch.no_grad():
        clean = model(images.clone()).argmax(1)
    for about, moved in _perturbed(model, images, ids, [options.radius], options.seed):
        for rows in alignment_rows(model, moved, ids, options, partial(_loss, classes=clean)):
            yield rows.with_columns(pl.lit(value).alias(name) for name, value in about.items())


def _gram_rows(site: str, layer_index: int, layer: Layer, gram: grams.Gram, probes: int, ids: Tensor) -> pl.DataFrame:
    mean = gram.mean() if probes else gram
    if not mean.first.isfinite().all():
        raise UserError(f"{layer.name}: the gradient of its map is NaN or infinite; what is measured is kept")
    values = {name: getattr(mean, name) for name in ("first", "second", "cross", "moved")}
    angle = None if layer.negative is None else grams.align(gram, probes=bool(probes))
    values |= {end: None if angle is None else getattr(angle, end) for end in ("low", "high")}
    values["lam"] = layer.weight
    return rows_of(ids, values, site=site, layer=layer_index, name=layer.name, probes=probes)


def lipschitz_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    """Yield every estimator's value of each layer's combined map (root mean square over heads) and of the logits."""
    names = [layer.name for layer in attention_layers(model, images[:1])]
    maps = ((index, name, "map", map_function(model, name)) for index, name in enumerate(names))
    samples = lipschitz.uniform_sampling_of_all(
        lambda x: all_maps(model, x), images, options.radius, options.samples, options.seed, ids
    )
    radius, seed = options.radius, options.seed
    for (index, name, target, function), sampled in zip([(None, "", "logits", model), *maps], samples, strict=True):
        about = {"layer": index, "name": name, "of": target, "norm": "l2", "ball": "linf", "eps": radius}
        slope = lipschitz.power_iteration(function, images, steps=2 * options.steps, seed=seed, ids=ids)
        search = (radius, options.steps, options.points, seed)
        ball = lipschitz.Neighbourhood(function, images, ids, *search, sampled, slope)
        for estimator in lipschitz.all_estimators():
            if (values := estimator.value(ball)) is not None:
                yield rows_of(ids, {"value": values[:, None]}, estimator=estimator.name, **about)


def _added_estimators() -> dict[str, Any]:
    added = [estimator.name for estimator in lipschitz.all_estimators() if not estimator.from_start]
    return {"estimators": added} if added else {}


def depth_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    """Yield how far uniform noise and PGD's perturbation have come after each block."""
    norms = stage_norms(model, images, steps=2 * options.steps, seed=options.seed, ids=ids)
    for about, moved in _perturbed(model, images, ids, options.eps, options.seed):
        path = propagate(model, images, moved)
        one_layer_a_block = len(path.layers) == len(path.names) - 1
        for stage, name in enumerate(path.names):  # stage 0 is the embedding
            gain, norm = path.gain[:, stage, None], norms[:, stage, None]
            length = path.length[:, stage + 1, None]
            values: Any = {"length": length, "gain": gain, "lipschitz": norm, "alpha": gain / norm}
            known = stage > 0 and one_layer_a_block
            for part in ("positive", "negative", "moved"):
                values[part] = getattr(path, part)[:, stage - 1, None] if known else None
            yield rows_of(ids, values, stage=stage, name=name, **about)


def branches_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    """Yield what uniform noise and PGD's perturbation do to the branches of every layer."""
    for about, moved in _perturbed(model, images, ids, options.eps, options.seed):
        for layer_index, change in enumerate(branch_changes(model, images, moved)):
            values = {name: getattr(change, name) for name in _BRANCH_PARTS}
            rows = rows_of(ids, values, layer=layer_index, name=change.name, **about)
            yield rows.with_columns(pl.col(*_CORRELATIONS).fill_nan(None))


_BRANCH_PARTS = [one.name for one in fields(BranchChange) if one.name != "name"]
_CORRELATIONS = [name for name in _BRANCH_PARTS if name != "lam"]  # NaN for standard attention


def _perturbed(
    model: nn.Module, images: Tensor, ids: Tensor, budgets: Sequence[float], seed: int
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for eps in budgets:
        keys = streams.sample_keys(streams.key(seed, "travel", round(eps * 2**20)), ids).to(images.device)
        noise = random_point(images, images.new_full((len(images),), eps), "linf", (0.0, 1.0), keys)
        yield {"perturbation": "noise", "eps": eps}, noise
        how: Any = {"seed": seed, "ids": ids, "early_stop": False, "progress": False}
        result = pgd(model, images, None, Threat(eps=eps), **how)
        yield {"perturbation": "pgd", "eps": eps}, result.adversarial.to(images)


_PROBED = {"probes": "probes", "seed": "seed"}
_BALL = {"eps": "radius", "samples": "samples", "steps": "steps", "points": "points", "seed": "seed"}
PARTS = (
    Part("alignment", sensitivity.ALIGNMENT_SCHEMA, _PROBED, alignment_rows, version=2),
    Part("lipschitz", sensitivity.LIPSCHITZ_SCHEMA, _BALL, lipschitz_rows, 1, True, _added_estimators),
    Part("terms", sensitivity.TERMS_SCHEMA, _PROBED, term_rows),
    Part("depth", sensitivity.DEPTH_SCHEMA, {"travel": "eps", "steps": "steps", "seed": "seed"}, depth_rows),
)
_PERTURBED = sensitivity.ALIGNMENT_SCHEMA | {"perturbation": pl.String, "eps": pl.Float64}
STUDY_PARTS = (
    Part("branches", sensitivity.BRANCHES_SCHEMA, {"travel": "eps", "seed": "seed"}, branches_rows),
    Part("alignment-perturbed", _PERTURBED, _PROBED | {"eps": "radius"}, perturbed_alignment_rows),
)
"""What studies measure in addition: the two branches under perturbations, and alignment at perturbed images."""
