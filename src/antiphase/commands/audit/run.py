"""Audits and attacks: clean accuracy, λ and attack success over several ε, for models and their twins."""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from antiphase import arguments, modules, registry
from antiphase.attacks import eps_at
from antiphase.attacks.catalogue import most_passes, settings_of
from antiphase.attacks.engine.checks import NoSamples
from antiphase.attacks.engine.oracle import attacked
from antiphase.attacks.engine.search_model import search_model
from antiphase.attacks.result import AttackResult
from antiphase.attacks.sweep import Ensemble, Stage, sweep
from antiphase.attacks.threat import Threat
from antiphase.commands.audit import WORST, AuditOptions
from antiphase.commands.lineup import Lineup, described, load_lineup, write_run
from antiphase.commands.loading import check_compiler, find_device
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import entries, sense
from antiphase.data import ImageSet
from antiphase.data.images import content_key
from antiphase.errors import Unreadable, UserError
from antiphase.evaluation.metrics import finite
from antiphase.evaluation.rates import ROW_SCHEMA, clean_accuracy, not_above_chance, summarise_rates
from antiphase.files import printable, replacing
from antiphase.models.card import card_of, is_users
from antiphase.models.zeroshot import ZeroShotClassifier
from antiphase.models.zoo import fingerprint
from antiphase.processes import Process, this_process
from antiphase.report.gallery import AttackGallery, write_gallery
from antiphase.sensitivity.layer_estimates import alignment
from antiphase.store import Cache, Journal, slice_size
from antiphase.terminal import duration, eps_label, say

CELL_VERSION = 2  # raise it when the same settings come to mean another measurement
AGAIN = ", what is near in float32"  # each time more of it: cells of another meaning have another name
_CELL_SCHEMA: dict[str, Any] = dict.fromkeys(("sample", "clean_prediction", "prediction"), pl.Int64)
_CELL_SCHEMA |= {"success": pl.Boolean, "distance": pl.Float64, "forwards": pl.Int64, "backwards": pl.Int64}


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
    results = arguments.unchecked(sweep)(*cells.given(cells.attack), nested=options.nested, ids=data.ids)
    for result in (one for one in results if one.threat.eps == kept.eps):
        for sample, number in zip(result.ids.tolist(), result.adversarial[:, 0].tolist(), strict=True):
            in_gallery = number >= 0 and sample in kept.samples
            if in_gallery and (file := cells.places[int(number)] / f"{sample}.npy").exists():
                kept.files[name, options.attack, sample] = file
    warnings = [*cells.warnings, *(warning for result in results for warning in result.warnings)]
    how = {"attack": options.attack, "norm": options.norm, "attack_seed": options.seed}
    return described(_rows(results), ROW_SCHEMA, name, model, data, **how), list(dict.fromkeys(warnings))


def passes_left(
    name: str, model: nn.Module, data: ImageSet, options: AuditOptions, out: Path, classes: int
) -> tuple[int, int] | None:
    """Return how many forward and backward passes of single images are left at most; None if not known."""
    cells = _Cells(name, model, data, options, out, Process(), None, KeptImages(0.0, frozenset()))
    counts: list[tuple[int, int] | None] = []

    def count(stage: Stage, *args: Any, ids: Tensor, **_: Any) -> AttackResult:
        threat: Threat = args[-1]
        cache = cells.cache(stage, threat.eps, ids)
        passes = most_passes(stage, classes)
        counts.append(passes and (passes[0] * len(cache.missing), passes[1] * len(cache.missing)))
        rows = pl.DataFrame({"sample": ids.numpy()}).join(cache.journal.rows(), on="sample", how="left")
        robust = rows.with_columns(pl.col("success").fill_null(value=False)).fill_null(0)
        return cells.result(stage, threat, ids, robust)

    # going down, only what is broken is attacked again: then every ε counts whole
    nested: Any = "off" if options.nested == "down" else options.nested
    arguments.unchecked(sweep)(*cells.given(count), nested=nested, ids=data.ids)
    known = [passes for passes in counts if passes is not None]
    return None if len(known) < len(counts) else (sum(f for f, _ in known), sum(b for _, b in known))


def _rows(results: list[AttackResult]) -> pl.DataFrame:
    broken_by: dict[int, str] = {}
    levels: list[pl.DataFrame] = []
    for result in results:
        for part in result.stages:
            broken_by |= dict.fromkeys(part.ids[part.success].tolist(), part.attack)
        level = result.frame().select(*_CELL_SCHEMA).cast(pl.Schema(_CELL_SCHEMA))
        attacks = pl.Series([broken_by.get(sample) for sample in level["sample"]], dtype=pl.String)
        level = level.with_columns(eps=pl.lit(result.threat.eps), felled_by=pl.when("success").then(attacks))
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
    warnings: list[str] = field(default_factory=list)  # of all cells so far

    @functools.cached_property
    def shared(self) -> dict[str, Any]:
        prints = {"model": fingerprint(self.model), "data": content_key(self.data)}
        identity = {"version": CELL_VERSION, **prints, "norm": self.options.norm, "seed": self.options.seed}
        # auto shares the rows of float32: verdicts do not depend on the search's precision
        identity |= {"precision": f"bf16{AGAIN}"} if self.options.precision == "bf16" else {}
        return identity | ({"compile": True} if self.options.compile else {})

    @functools.cached_property
    def position(self) -> dict[int, int]:
        return {sample: index for index, sample in enumerate(self.data.ids.tolist())}

    def given(self, attack: Callable[..., AttackResult]) -> tuple[Any, ...]:
        """Return what a sweep is given that calls ``attack`` with each stage and its samples in the stage's place."""
        # settings are checked with the images that are attacked
        ensemble = self.options.ensemble
        stages = [replace(one, attack=functools.partial(attack, one), settings={}) for one in ensemble.stages]
        # the stages load their images; in place of pixels, a sample has the number of the cell that has them
        unknown = torch.full((len(self.data), 1), -1.0, dtype=torch.float64)
        threat = Threat(self.options.norm, self.options.eps[0])
        return Ensemble(ensemble.name, tuple(stages)), self.model, unknown, None, threat, self.options.eps

    def cache(self, stage: Stage, eps: float, ids: Tensor) -> Cache:
        identity = self.shared | {"attack": stage.name, "settings": stage.settings, "eps": float(eps)}
        if stage.name == "square":  # searches in float32 in any case
            identity.pop("precision", None)
        return Cache(self.out, identity, _CELL_SCHEMA, ids.tolist(), self.process)

    def attack(self, stage: Stage, *args: Any, ids: Tensor, **_: Any) -> AttackResult:
        threat: Threat = args[-1]
        cache = self.cache(stage, threat.eps, ids)
        with cache.filling(slice_size(self.data.image_shape)) as parts:
            for part in parts:
                indices = torch.tensor([self.position[sample] for sample in ids[part].tolist()])
                how = stage.settings | self.keywords(stage, threat.eps, indices, ids[part], cache.journal)
                ball = Threat(self.options.norm, threat.eps)
                result = stage.attack(self.model, self.data.images(indices), None, ball, **how)
                if result.warnings:
                    cache.journal.warn(result.warnings)
                del result  # its images leave memory before the next are read
        rows = cache.collect()
        self.warnings.extend(cache.warnings)
        self.places.append(cache.journal.directory)
        return self.result(stage, threat, ids, rows)

    def result(self, stage: Stage, threat: Threat, ids: Tensor, rows: pl.DataFrame) -> AttackResult:
        rows = rows.unique("sample", keep="first")  # two runs at once may both write a sample
        rows = pl.DataFrame({"sample": ids.numpy()}).join(rows, on="sample", how="left", maintain_order="left")
        arrays: dict[str, Any] = {name: rows[name].to_torch() for name in _CELL_SCHEMA if name != "sample"}
        place = torch.full((len(ids), 1), len(self.places) - 1.0, dtype=torch.float64)
        about = {"label": arrays["clean_prediction"], "adversarial": place}
        return AttackResult(stage.name, threat, stage.settings, ids, **about, **arrays)

    def keywords(self, stage: Stage, eps: float, indices: Tensor, ids: Tensor, journal: Journal) -> dict[str, Any]:
        """Return how to attack some samples so that their rows are kept as they come."""
        options, kept = self.options, self.kept
        last = stage.name == options.ensemble.stages[-1].name and eps in (kept.eps, math.inf)

        def keep(positions: Tensor, results: dict[str, Tensor]) -> None:
            columns = {"sample": ids[positions].numpy()}
            columns |= {key: results[key][positions].numpy() for key in _CELL_SCHEMA if key != "sample"}
            for position in positions.tolist():
                # a nearest example that is too far at this ε may serve a larger one
                broken = results["prediction"][position] != results["label"][position]
                if int(ids[position]) in kept.samples and (last or broken):
                    path = journal.directory / f"{ids[position]}.npy"
                    with replacing(path) as temporary, temporary.open("wb") as file:
                        np.save(file, results["adversarial"][position].numpy())
            journal.append(pl.DataFrame(columns, schema_overrides=_CELL_SCHEMA).select(*_CELL_SCHEMA))

        up_to = "" if math.isinf(eps) else f" ε={eps_label(eps)}"
        title = f"{self.name} {stage.name}{up_to}" if not options.quiet and self.process.first else ""
        how = {name: getattr(options, name) for name in ("seed", "batch_size", "precision")}
        how |= {"ids": ids, "on_finished": keep, "progress": title}
        how |= {"compile": True} if options.compile else {}
        return how | ({} if self.context is None else {"context": self.context[indices]})


_CARRIED = {
    "up": "nested up: broken at one ε, broken at every larger one",
    "down": "nested down: robust at one ε, robust at every smaller one",
    "off": "independent",
}
_PROBES = 16  # an audit gives the direction; antiphase sense the third digit


def run(options: AuditOptions, command: str = "", lineup: Lineup | None = None) -> Any:
    """Attack every model on the same images, or its answers, and write the run directory; return the summary."""
    check_attack(options)
    if options.questions:
        return registry.find(registry.QUESTIONS, options.questions, "questions")(options, command)
    lineup = lineup or load_attacked(options)
    began, out = time.monotonic(), options.out
    options = options.for_images(lineup.data.image_shape)
    check_stages(options, lineup.data.image_shape)
    lineup, notes = lineup.ordered()
    models, data = lineup.by_name, lineup.data
    kept = keep_some(data, sorted(options.eps)[len(options.eps) // 2])
    say_time(((*attack, data) for attack in attacks_of(lineup, options)), out)

    measured = []
    for name, model, attacks in attacks_of(lineup, options):
        keep = kept if attacks.attack in options.names else None  # a control is not shown
        measured.append((name, *measure(name, model, data, attacks, out, kept=keep)))
    rows, doubts = combined(measured, options)
    classes = {name: card_of(model).classes for name, model in models.items()}
    chance = not_above_chance(clean_accuracy(rows), classes)
    summary = summarise_rates(rows, lineup.about(), lineup.pairs)
    if norms := [entry for one in options.each_attack() if one.minimal for entry in _norms(rows, one)]:
        summary["norms"] = norms
    aligned, unknown = _alignment(models, data, options)
    warnings = [*data.left_out, *lineup.doubts(), *notes, *doubts, *chance, *unknown]
    if aligned is not None:
        summary["alignment"] = entries(alignment(aligned))
    if this_process().first:
        shown = lineup.pairs[0] if lineup.twins else lineup.names[:1]
        for name in ("questions.json", "gallery.safetensors"):  # of an earlier run in this directory
            (out / name).unlink(missing_ok=True)
        pictures = with_images(rows, shown, (options.worst_case or options.names)[0], kept)
        gallery = draw_gallery(pictures, shown, data, kept.eps, shown_samples(pictures))
        if gallery is not None:
            write_gallery(out / "gallery.safetensors", gallery)
    frames, settings = {"rows": rows, "alignment": aligned}, attack_settings(options, max(classes.values()))
    write_run(lineup, options, summary, frames, settings, warnings, command, began)
    return summary


def combined(
    measured: Sequence[tuple[str, pl.DataFrame, list[str]]], options: AuditOptions
) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows of all models under all attacks, and the warnings.

    Of several attacks the worst case comes first: of the first attack that broke an image, else of the first attack.
    """
    rows, attacks = pl.concat([rows for _, rows, _ in measured]), options.worst_case
    doubts = [f"{name}: {warning}" for name, _, warnings in measured for warning in warnings]
    if not attacks:
        return rows, doubts
    keys, passes = ["model", "eps", "sample"], pl.col("forwards", "backwards")
    parts = rows.filter(pl.col("attack").is_in(attacks)).with_columns(passes.sum().over(keys))
    order = pl.col("attack").cast(pl.Enum(attacks))
    first = parts.sort(~pl.col("success"), order, maintain_order=True).unique(keys, keep="first")
    first = first.with_columns(pl.when("success").then("attack").alias("felled_by"))
    worst = parts.filter(attack=attacks[0]).select(keys).join(first, on=keys, maintain_order="left")
    worst = worst.with_columns(attack=pl.lit(f"{WORST}{', '.join(attacks)}"))
    return pl.concat([worst.select(rows.columns), rows]), doubts


def attacks_of(lineup: Lineup, options: AuditOptions) -> Iterator[tuple[str, nn.Module, AuditOptions]]:
    """Yield every model by name, and how it is attacked; again for each further attack, and each control."""
    return ((name, model, attacks) for attacks in options.with_control() for name, model in lineup.by_name.items())


def check_attack(options: AuditOptions) -> None:
    """Refuse an attack whose setting or norm is not its own, that has no control, or no compiler."""
    for eps in options.eps:
        Threat(options.norm, eps)
    if options.control and not options.controls:
        raise UserError(f"--control: {options.attack} is a control itself; leave it out or choose another --attack")
    for attack in options.each_attack():
        _ = attack.ensemble
    if options.compile:
        check_compiler(find_device(options.device))


def check_stages(options: AuditOptions, image_shape: Sequence[int]) -> None:
    """Refuse a norm, or a setting such as a patch's width, that one of the attacks or controls does not know."""
    threat, plans = Threat(options.norm, options.eps[0]), options.with_control()
    for stage in (one for plan in plans for one in plan.ensemble.stages if not is_users(one.attack)):
        with suppress(NoSamples):
            stage.attack(None, torch.empty(0, *image_shape), None, threat, **stage.settings)


def load_attacked(options: AuditOptions) -> Lineup:
    """Load models and images; refuse an objective for CLIPs where a model is none."""
    lineup = load_lineup(options)
    plain = [card_of(model).spec for model in lineup.everyone if not isinstance(model, ZeroShotClassifier)]
    if plain and options.objective == "cosine":
        raise UserError(f"objective 'cosine': {plain[0]} is no CLIP; expected cross_entropy, margin or dlr")
    return lineup


def fingerprints(options: AuditOptions) -> tuple[dict[str, str], str]:
    """Return the SHA-256 of every model, by name, and that of the data, as ``run.json`` has them."""
    lineup, _ = load_attacked(options).ordered()
    return {name: fingerprint(model) for name, model in lineup.by_name.items()}, lineup.data.fingerprint()


def attack_settings(options: AuditOptions, classes: int | None = None) -> dict[str, Any]:
    """Return what a reader needs to judge the numbers; of ``classes`` an attack has at most all others as targets."""
    stages: dict[str, Any] = {}
    for attack in options.each_attack():
        parts = attack.ensemble.stages
        within = f"{attack.attack}: " if len(parts) > 1 and len(options.names) > 1 else ""
        stages |= {within + stage.name: settings_of(stage) for stage in parts}
    for settings in stages.values():
        if classes and isinstance(settings.get("targets"), int):
            settings["targets"] = min(settings["targets"], classes - 1)
    told = {"attack": options.attack, "norm": options.norm, "ε": ", ".join(map(eps_label, options.eps))} | stages
    told |= {"budgets": _CARRIED[options.nested], "attacked label": "clean prediction", "attack seed": options.seed}
    told |= {"search": options.precision} | ({"compiled": True} if options.compile else {})
    return told | {"verdicts": "float32"}


def _alignment(
    models: Mapping[str, nn.Module], data: ImageSet, options: AuditOptions
) -> tuple[pl.DataFrame | None, list[str]]:
    if not options.sense_limit:
        return None, []
    how = {"probes": _PROBES, "seed": options.seed, "quiet": options.quiet}
    place = (data, SenseOptions(model=("audit",), parts=("alignment",), **how), options.out)
    try:
        measured = [sense(*named, *place, limit=options.sense_limit) for named in models.items()]
    except Unreadable:
        raise
    except UserError as error:
        return None, [f"the sensitivity of the attention was not measured: {error}"]
    return pl.concat([frames["alignment"] for frames in measured]), []


def _norms(rows: pl.DataFrame, options: AuditOptions) -> list[dict[str, Any]]:
    """Return the ε at which each model's ASR reaches 50, 95 and 100 %; None stands for infinity."""
    about = {"attack": options.attack, "norm": options.norm}
    largest = rows.filter(attack=options.attack, eps=max(options.eps))
    norms = []
    for (model,), block in largest.group_by(["model"], maintain_order=True):
        broken = (block["prediction"] != block["clean_prediction"]).to_numpy()
        for level in eps_at(block["distance"].to_numpy(), broken):
            norms.append({"model": model, **about, **finite(vars(level))})
    return norms


_SIZE = 6
_KEPT = 24  # enough for six that all models get right


def keep_some(data: ImageSet, eps: float, among: Sequence[int] = ()) -> KeptImages:
    """Keep images at one ε of a few samples, whatever the models: spread over the data, or over some positions."""
    positions = torch.tensor(among or range(len(data)))
    spread = np.linspace(0, len(positions) - 1, min(len(positions), _KEPT)).round().astype(int)
    return KeptImages(eps, frozenset(data.ids[positions[torch.from_numpy(spread)]].tolist()))


def with_images(rows: pl.DataFrame, models: Sequence[str], attack: str, kept: KeptImages) -> pl.DataFrame:
    """Return the rows of the first attack at the gallery's ε of samples of which every model's image was kept."""
    mask = pl.col("model").is_in(list(models)) & pl.col("sample").is_in(kept.samples)
    rows = rows.filter(mask, attack=rows["attack"][0], eps=kept.eps)
    of_worst = pl.col("felled_by").fill_null(attack)
    rows = rows.with_columns(by=of_worst if rows["attack"][0] != attack else pl.lit(attack))
    files = [str(kept.files.get(key, "")) for key in rows.select("model", "by", "sample").rows()]
    # a search for the nearest example may have ended further away than ε
    near = pl.col("success") | (pl.col("prediction") == pl.col("clean_prediction"))
    rows = rows.with_columns(image=pl.Series(files, dtype=pl.String)).filter(near, pl.col("image") != "")
    return rows.filter(pl.len().over("sample") == len(models))


def shown_samples(rows: pl.DataFrame) -> list[int]:
    """Return six samples that all models get right: broken ones first, and of these first one of each class."""
    right = (pl.col("clean_prediction") == pl.col("label")).all()
    samples = rows.group_by("sample", maintain_order=True).agg(
        pl.col("label").first(), right=right, robust=~pl.col("success").any()
    )
    samples = samples.filter("right").with_columns(nth=pl.int_range(pl.len()).over("label", "robust"))
    return samples.sort("robust", "nth", maintain_order=True)["sample"][:_SIZE].to_list()


def draw_gallery(
    rows: pl.DataFrame, models: Sequence[str], data: ImageSet, eps: float, samples: Sequence[int]
) -> AttackGallery | None:
    """Return the gallery of some samples, from their rows of :func:`with_images`; None without samples."""
    if not samples:
        return None
    shape = (len(models), len(samples))
    shown = pl.DataFrame({"model": models}).join(pl.DataFrame({"sample": samples}), how="cross")
    shown = shown.join(rows, on=["model", "sample"], how="left", maintain_order="left")
    position = {sample: index for index, sample in enumerate(data.ids.tolist())}
    subset: Any = data.take([position[sample] for sample in samples])
    clean = subset.images(range(len(subset))).numpy()
    adversarial = np.stack(list(map(_read, shown["image"]))).reshape(*shape, *clean.shape[1:])
    before, after = (shown[name].to_numpy().reshape(shape) for name in ("clean_prediction", "prediction"))
    about = eps, tuple(models), data.class_names, np.array(samples), subset.labels.numpy()
    files = tuple(map(printable, getattr(subset, "files", ())))
    return AttackGallery(*about, clean, adversarial, before, after, files)


def _read(path: str) -> Any:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it, and the gallery lacks it") from error


_BATCH = {"cuda": 128}  # images at once; elsewhere a batch of 16 takes as long per image as a larger one
_SHORT = 30.0  # seconds that need no warning
_PROBE = 40  # passes of a batch that must be left, so that timing four of them costs little


def say_time(attacks: Iterable[tuple[str, nn.Module, AuditOptions, ImageSet]], out: Path, context: Any = None) -> None:
    """Say on stderr for how long attacks run at most, if that is known and more than half a minute."""
    process, total = this_process(), 0.0
    for name, model, options, data in attacks if process.first else ():
        if options.quiet:
            return
        passes = passes_left(name, model, data, options, out, card_of(model).classes or len(data.class_names))
        if passes is None:
            say(f"how long the attacks take is unknown: {options.attack} is not one of antiphase's own", err=True)
            return
        size = min(options.batch_size or _BATCH.get(modules.device_of(model).type, 16), len(data))
        if sum(passes) > _PROBE * size:
            contexts = None if context is None else context(data)[:size]
            forward, backward = _seconds_per_pass(model, data.images(range(size)), options, contexts, passes[1] > 0)
            total += passes[0] * forward + passes[1] * backward
    if (total := total / process.count) > _SHORT:
        say(f"the attacks take at most about {duration(total)}; broken images take less", err=True)


def _seconds_per_pass(
    model: nn.Module, images: Tensor, options: AuditOptions, context: Tensor | None, backward: bool
) -> tuple[float, float]:
    """Return the seconds of a forward pass of an image, and what a backward pass adds, in this batch."""
    device, none = modules.device_of(model), torch.zeros(len(images))
    rows = {"forwards": none, "backwards": none}
    rows |= {} if context is None else {"context": context.to(device)}
    images = images.to(device)

    def timed(run: Callable[[], Any]) -> float:
        seconds = 0.0
        for _ in range(2):  # the first call prepares
            began = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
        return seconds / len(images)

    with attacked(model) as oracle:
        oracle.search_in(*search_model(oracle.model, images, context, options.precision, device))
        forward = timed(lambda: oracle.forward(rows, images))
        if not backward:
            return forward, 0.0
        total = timed(lambda: oracle.gradients(rows, images, [lambda logits: logits.logsumexp(1)]))
    return forward, max(0.0, total - forward)
