"""Audits and attacks: clean accuracy, λ and attack success over several ε, for models and their twins."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from antiphase.attacks import Threat, eps_at
from antiphase.attacks.catalogue import settings_of
from antiphase.attacks.engine.oracle import attacked
from antiphase.attacks.engine.search_model import search_model
from antiphase.commands.audit import AuditOptions, QuickstartOptions
from antiphase.commands.audit.cells import KeptImages, measure, passes_left, with_worst_case
from antiphase.commands.lineup import Lineup, load_lineup
from antiphase.commands.loading import check_compiler, find_device
from antiphase.commands.run_files import write_run
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import entries, sense
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.rates import clean_accuracy, not_above_chance, summarise_rates
from antiphase.files import printable
from antiphase.models.card import card_of
from antiphase.models.class_names import in_model_order
from antiphase.models.zeroshot import ZeroShotClassifier
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.processes import this_process
from antiphase.registry import QUESTIONS, find
from antiphase.report.gallery import AttackGallery, write_gallery
from antiphase.sensitivity.layer_estimates import alignment
from antiphase.terminal import duration, eps_label, say

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
        return find(QUESTIONS, options.questions, "questions")(options, command)
    lineup = lineup or load_attacked(options)
    began, out = time.monotonic(), options.out
    data, notes = in_model_order([card_of(model) for model in lineup.everyone], lineup.data)
    lineup = Lineup(lineup.models, lineup.twins, data)
    lineup.check_fit()
    models = lineup.by_name
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
    """Return the rows of all models under all attacks, the worst case first, and the warnings."""
    rows = pl.concat([rows for _, rows, _ in measured])
    doubts = [f"{name}: {warning}" for name, _, warnings in measured for warning in warnings]
    return with_worst_case(rows, options.worst_case) if options.worst_case else rows, doubts


def attacks_of(lineup: Lineup, options: AuditOptions) -> Iterator[tuple[str, nn.Module, AuditOptions]]:
    """Yield every model by name, and how it is attacked; again for each further attack, and each control."""
    for attacks in options.with_control():
        for name, model in lineup.by_name.items():
            yield name, model, attacks


def quickstart(options: QuickstartOptions, command: str = "") -> None:
    """Audit the models that come with the package."""
    run(options.audit(), command)


def check_attack(options: AuditOptions) -> None:
    """Refuse an attack whose setting or norm is not its own, that has no control, or no compiler."""
    for eps in options.eps:
        Threat(options.norm, eps)
    if options.control and not options.controls:
        raise UserError(
            f"--control: {options.attack} is a control itself; leave it out or choose another --attack"
        )
    for attack in options.each_attack():
        _ = attack.ensemble
    if options.compile:
        check_compiler(find_device(options.device))


def load_attacked(options: AuditOptions) -> Lineup:
    """Load models and images; refuse an objective for CLIPs where a model is none."""
    lineup = load_lineup(options)
    plain = [card_of(model).spec for model in lineup.everyone if not isinstance(model, ZeroShotClassifier)]
    if plain and options.objective == "cosine":
        raise UserError(f"objective 'cosine': {plain[0]} is no CLIP; expected cross_entropy, margin or dlr")
    return lineup


def fingerprints(options: AuditOptions) -> tuple[dict[str, str], str]:
    """Return the SHA-256 of every model, by name, and that of the data, as ``run.json`` has them."""
    lineup = load_attacked(options)
    data, _ = in_model_order([card_of(model) for model in lineup.everyone], lineup.data)
    return {name: fingerprint(model) for name, model in lineup.by_name.items()}, data.fingerprint()


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
    return {
        "attack": options.attack,
        "norm": options.norm,
        "ε": ", ".join(map(eps_label, options.eps)),
        **stages,
        "budgets": _CARRIED[options.nested],
        "attacked label": "clean prediction",
        "attack seed": options.seed,
        "search": options.precision,
        **({"compiled": True} if options.compile else {}),
        "verdicts": "float32",
    }


def _alignment(
    models: Mapping[str, nn.Module], data: ImageSet, options: AuditOptions
) -> tuple[pl.DataFrame | None, list[str]]:
    if not options.sense_limit:
        return None, []
    how = {"probes": _PROBES, "seed": options.seed, "quiet": options.quiet}
    place = (data, SenseOptions(model=("audit",), parts=("alignment",), **how), options.out)
    try:
        measured = [sense(*named, *place, limit=options.sense_limit) for named in models.items()]
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
            ends = {name: getattr(level, name) for name in ("eps", "low", "high")}
            finite = {name: value if math.isfinite(value) else None for name, value in ends.items()}
            norms.append({"model": model, **about, "level": level.level, **finite, "n": level.n})
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
    rows = rows.filter(
        pl.col("model").is_in(list(models)), pl.col("sample").is_in(kept.samples), eps=kept.eps
    ).filter(attack=rows["attack"][0])
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
    position = {sample: at for at, sample in enumerate(data.ids.tolist())}
    some: Any = data.take([position[sample] for sample in samples])
    clean = some.images(range(len(some))).numpy()
    return AttackGallery(
        eps=eps,
        models=tuple(models),
        class_names=data.class_names,
        sample=np.array(samples),
        label=some.labels.numpy(),
        clean=clean,
        adversarial=np.stack(list(map(_read, shown["image"]))).reshape(*shape, *clean.shape[1:]),
        clean_prediction=shown["clean_prediction"].to_numpy().reshape(shape),
        prediction=shown["prediction"].to_numpy().reshape(shape),
        files=tuple(map(printable, getattr(some, "files", ()))),
    )


def _read(path: str) -> Any:
    try:
        return np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it, and the gallery lacks it") from error


_BATCH = {"cuda": 128}  # images at once; elsewhere a batch of 16 takes as long per image as a larger one
_SHORT = 30.0  # seconds that need no warning
_PROBE = 40  # passes of a batch that must be left, so that timing four of them costs little


def say_time(
    attacks: Iterable[tuple[str, nn.Module, AuditOptions, ImageSet]], out: Path, context: Any = None
) -> None:
    """Say on stderr for how long attacks run at most, if that is known and more than half a minute."""
    process, total = this_process(), 0.0
    for name, model, options, data in attacks if process.first else ():
        classes = card_of(model).classes or len(data.class_names)
        if options.quiet:
            return
        passes = passes_left(name, model, data, options, out, classes)
        if passes is None:
            why = f"{options.attack} is not one of antiphase's own"
            say(f"how long the attacks take is unknown: {why}", err=True)
            return
        size = min(options.batch_size or _BATCH.get(device_of(model).type, 16), len(data))
        if sum(passes) > _PROBE * size:
            given = None if context is None else context(data)[:size]
            images = data.images(range(size))
            forward, backward = _seconds_per_pass(model, images, options, given, passes[1] > 0)
            total += passes[0] * forward + passes[1] * backward
    if (total := total / process.count) > _SHORT:
        say(f"the attacks take at most about {duration(total)}; broken images take less", err=True)


def _seconds_per_pass(
    model: nn.Module, images: Tensor, options: AuditOptions, context: Tensor | None, backward: bool
) -> tuple[float, float]:
    """Return the seconds of a forward pass of an image, and what a backward pass adds, in this batch."""
    device, none = device_of(model), torch.zeros(len(images))
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
        both = timed(lambda: oracle.gradients(rows, images, [lambda logits: logits.logsumexp(1)]))
    return forward, max(0.0, both - forward)
