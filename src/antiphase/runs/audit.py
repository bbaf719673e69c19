"""The audit: clean accuracy, λ and attack success over several ε, for one model or for models and their twins."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from antiphase.attacks import Threat, eps_at, sweep
from antiphase.attacks.catalogue import settings_of
from antiphase.attacks.engine.oracle import Oracle
from antiphase.budgets import eps_label
from antiphase.commands.evaluate.options import is_pope
from antiphase.commands.evaluate.sources import load_source
from antiphase.commands.lineup import check_fit, load_lineup, short_names
from antiphase.commands.loading import check_compiler, check_twins, find_device, load_models
from antiphase.commands.record import run_record
from antiphase.commands.sense.options import SenseOptions
from antiphase.commands.sense.run import entries, sense
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.evaluation.rates import clean_accuracy, not_above_chance, summarise_rates
from antiphase.files import write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.models.class_names import in_model_order
from antiphase.models.kinds import mean_lambdas
from antiphase.models.zeroshot import ZeroShotClassifier
from antiphase.models.zoo import fingerprint
from antiphase.processes import this_process
from antiphase.runs.attack import AttackPlan, measure
from antiphase.runs.attack_pope import PopeAttack
from antiphase.runs.gallery import AttackGallery, write_gallery
from antiphase.runs.options.attack import AuditOptions
from antiphase.sensitivity.layer_estimates import alignment
from antiphase.store import write_frame
from antiphase.vlm.pope import PopeSet

_CARRIED = {
    "up": "nested up: broken at one ε, broken at every larger one",
    "down": "nested down: robust at one ε, robust at every smaller one",
    "off": "independent",
}
_GALLERY_SIZE = 6
_PROBES = 16  # an audit gives the direction; antiphase sense the third digit


def prepare(options: AuditOptions, command: str = "") -> "Audit | PopeAttack":
    """Load what the options name; with POPE's questions as data, the answers of vision-language models are attacked.

    Args:
        options: of the audit or attack.
        command: for the record.

    Raises:
        UserError: the models, the data or the attack cannot be used together.
    """
    # a field of the plan is an option of the same name
    plan = AttackPlan(**{each.name: getattr(options, each.name) for each in fields(AttackPlan)})
    if options.control and plan.control is None:
        raise UserError(
            f"--control: {plan.attack} is a control itself; leave it out or choose another --attack"
        )
    if options.compile:
        check_compiler(find_device(options.device))
    if isinstance(options.data, str) and is_pope(options.data):
        return _of_answers(options, plan, command)
    loaded = load_lineup(options)
    models, twins, data = loaded.models, loaded.twins, loaded.data
    plain = [card_of(model).spec for model in (*models, *twins) if not isinstance(model, ZeroShotClassifier)]
    if plain and options.objective == "cosine":
        raise UserError(f"objective 'cosine': {plain[0]} is no CLIP; expected cross_entropy, margin or dlr")
    return Audit(
        models,
        twins,
        data,
        plan,
        options.out,
        control=options.control,
        sense_limit=options.sense_limit,
        command=command,
        options=options.record(),
        progress=not options.quiet,
    )


def _of_answers(options: AuditOptions, plan: AttackPlan, command: str) -> PopeAttack:
    """Load vision-language models and POPE's questions."""
    models, against = options.model, options.against
    check_twins(models, against)
    loaded = load_models([*models, *against], find_device(options.device), answering=True)
    source = load_source(
        str(options.data), options.split, options.limit, None, False, False, not options.quiet
    )
    assert isinstance(source.test, PopeSet)
    pope = source.test.followed_by(options.suffix)
    record = options.record() | {"sense_limit": 0}  # nothing is measured but the answers
    return PopeAttack(
        loaded[: len(models)],
        loaded[len(models) :],
        pope,
        plan,
        options.out,
        control=options.control,
        command=command,
        options=record,
        progress=not options.quiet,
    )


@dataclass(frozen=True)
class Audit:
    """What is attacked, how, and where the rows go.

    Attributes:
        models: loaded models, with their cards.
        twins: as many models to compare them with, one each; or none.
        data: images and labels.
        plan: of the attack.
        out: directory, made if missing.
        control: whether to add the attack's control, noise of the same budgets, which shows what the attack adds to it.
        sense_limit: on how many of the images to measure how the gradients of the maps lie, too.
        command: for the record.
        options: likewise.
        progress: whether to show progress bars on stderr.
    """

    models: Sequence[nn.Module]
    twins: Sequence[nn.Module]
    data: ImageSet
    plan: AttackPlan
    out: Path
    control: bool = False
    sense_limit: int = 0
    command: str = ""
    options: Mapping[str, Any] | None = None
    progress: bool = True

    def run(self) -> dict[str, Any]:
        """Attack every model on the same images and write the run directory; return the summary.

        The directory then holds ``rows.parquet`` (a row for each model, ε and image), ``summary.json``,
        ``run.json`` (settings, versions, hardware), ``gallery.safetensors`` and ``cells/``, from which a killed
        audit resumes (see :mod:`antiphase.runs.attack`). Under torchrun the processes share the images.

        Raises:
            UserError: if models and data do not fit each other.
        """
        began = time.monotonic()
        models, twins, plan, out = self.models, self.twins, self.plan, self.out
        lineup, data, said = self.fitted()
        names, everyone = list(lineup), list(lineup.values())
        cards = [card_of(model) for model in everyone]
        process = this_process()
        measured: list[pl.DataFrame] = []
        warnings = _about(data) + doubts_about(models, twins, data) + said
        for each in [plan, plan.control] if self.control and plan.control else [plan]:
            for name, model in lineup.items():
                rows, said = measure(name, model, data, each, out, process=process, progress=self.progress)
                measured.append(rows)
                warnings += [f"{name}: {warning}" for warning in said]
        rows = pl.concat(measured)
        shown = [
            {"name": name, "attention": card.attention, "seed": card.seed, "lambda": mean_lambdas(model)}
            for (name, model), card in zip(lineup.items(), cards, strict=True)
        ]
        outputs = {name: card.num_classes for name, card in zip(lineup, cards, strict=True)}
        warnings += not_above_chance(clean_accuracy(rows), outputs)
        pairs = list(zip(names[: len(models)], names[len(models) :], strict=False))
        summary = summarise_rates(rows, shown, pairs)
        if plan.minimal:
            summary["norms"] = _norms(rows, plan)
        aligned, said = self._aligned(lineup, data)
        warnings += said
        if aligned is not None:
            summary["alignment"] = entries(alignment(aligned))
        if not process.first:
            return summary
        if aligned is None:
            (out / "alignment.parquet").unlink(missing_ok=True)
        else:
            write_frame(out / "alignment.parquet", aligned)
        (out / "questions.json").unlink(missing_ok=True)  # of an audit of POPE's answers before this one
        write_frame(out / "rows.parquet", rows)
        gallery = _gallery({names[i]: everyone[i] for i in ([0, len(models)] if twins else [0])}, data, plan)
        if gallery is None:
            (out / "gallery.safetensors").unlink(missing_ok=True)
        else:
            write_gallery(out / "gallery.safetensors", gallery)
        record = run_record(
            everyone,
            names,
            data,
            _settings(plan),
            warnings,
            self.command,
            time.monotonic() - began,
            self.options,
        )
        write_json(out / "run.json", record)
        write_json(out / "summary.json", summary)
        return summary

    def fitted(self) -> tuple[dict[str, nn.Module], ImageSet, list[str]]:
        """Return models and twins by name, the images with labels in the models' order, and warnings.

        Raises:
            UserError: if models and data do not fit each other.
        """
        check_twins(self.models, self.twins)
        everyone = [*self.models, *self.twins]
        cards = [card_of(model) for model in everyone]
        data, said = in_model_order(cards, self.data)
        for card in cards:
            check_fit(card, data)
        return dict(zip(short_names(cards), everyone, strict=True)), data, said

    def fingerprints(self) -> tuple[dict[str, str], str]:
        """Return the SHA-256 of every model, by name, and that of the data, as ``run.json`` has them."""
        lineup, data, _ = self.fitted()
        return {name: fingerprint(model) for name, model in lineup.items()}, data.fingerprint()

    def _aligned(
        self, lineup: Mapping[str, nn.Module], data: ImageSet
    ) -> tuple[pl.DataFrame | None, list[str]]:
        """Return how the maps' gradients lie in every model, or why that is not known."""
        if not self.sense_limit:
            return None, []
        options = SenseOptions(
            model=("audit",),
            parts=("alignment",),
            probes=_PROBES,
            seed=self.plan.seed,
            quiet=not self.progress,
        )
        try:
            found = [
                sense(name, model, data, options, self.out, limit=self.sense_limit)["alignment"]
                for name, model in lineup.items()
            ]
        except UserError as error:
            return None, [f"the sensitivity of the attention was not measured: {error}"]
        return pl.concat(found), []


def _gallery(lineup: Mapping[str, nn.Module], data: ImageSet, plan: AttackPlan) -> AttackGallery | None:
    """Attack again the first images that all models get right, one a class, up to the middle ε."""
    budgets = sorted(plan.eps)[: len(plan.eps) // 2 + 1]
    chosen: dict[int, int] = {}
    for start in range(0, len(data), 64):
        positions = range(start, min(start + 64, len(data)))
        images, labels = data.images(positions), data.labels[start : start + 64]
        right = torch.stack([_predict(model, images) == labels for model in lineup.values()]).all(0)
        for position in right.nonzero().flatten().tolist():
            chosen.setdefault(int(labels[position]), start + position)
        if len(chosen) >= _GALLERY_SIZE:
            break
    if not chosen:
        return None
    positions = sorted(chosen.values())[:_GALLERY_SIZE]
    images = data.images(positions)
    results = [
        sweep(
            plan.ensemble,
            model,
            images,
            None,
            Threat(plan.norm),
            budgets,
            nested=plan.nested,
            seed=plan.seed,
            ids=data.ids[positions],
            precision=plan.precision,
        )[-1]
        for model in lineup.values()
    ]
    return AttackGallery(
        eps=budgets[-1],
        models=tuple(lineup),
        class_names=data.class_names,
        sample=data.ids[positions].numpy(),
        label=data.labels[positions].numpy(),
        clean=images.numpy(),
        adversarial=tuple(result.adversarial.numpy() for result in results),
        clean_prediction=tuple(result.clean_prediction.numpy() for result in results),
        prediction=tuple(result.prediction.numpy() for result in results),
    )


def _predict(model: nn.Module, images: Tensor) -> Tensor:
    oracle = Oracle(model)
    return oracle.predict(images.to(oracle.device)).cpu()


def _norms(rows: pl.DataFrame, plan: AttackPlan) -> list[dict[str, Any]]:
    """Return the ε at which each model's ASR reaches 50, 95 and 100 %; None stands for infinity."""
    entries = []
    for (model,), own in rows.filter(attack=plan.attack, eps=max(plan.eps)).group_by(
        ["model"], maintain_order=True
    ):
        found = (own["prediction"] != own["clean_prediction"]).to_numpy()
        for at in eps_at(own["distance"].to_numpy(), found):
            numbers = {"eps": at.eps, "low": at.low, "high": at.high}
            finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
            about = {"model": model, "attack": plan.attack, "norm": plan.norm, "level": at.level}
            entries.append(about | finite | {"n": at.n})
    return entries


def _about(data: ImageSet) -> list[str]:
    if not data.skipped:
        return []
    return [f"{len(data.skipped)} unreadable images were left out: {', '.join(data.skipped)}"]


def _settings(plan: AttackPlan) -> dict[str, Any]:
    """Return what a reader needs to judge the numbers."""
    return {
        "attack": plan.attack,
        "norm": plan.norm,
        "ε": ", ".join(map(eps_label, plan.eps)),
        **{stage.name: settings_of(stage) for stage in plan.ensemble.stages},
        "budgets": _CARRIED[plan.nested],
        "attacked label": "clean prediction",
        "attack seed": plan.seed,
        "search": plan.precision,
        **({"compiled": True} if plan.compile else {}),
        "verdicts": "float32",
    }
