"""POPE under attack: the answer to each question is a classifier of images, attacked like any other.

The attack maximises the cross-entropy between no and yes as the answer's first token, all other words left out; its
target is the answer that the model gives. Budgets and steps are those of C. Schlarmann et al., *Robust CLIP:
Unsupervised Adversarial Fine-Tuning of Vision Embeddings for Robust Large Vision-Language Models*, ICML 2024, and its
code (RobustVLM): APGD of 100 steps at 2/255 and 4/255, with which they attack captions and visual question answering.
They attack the right text, in half precision first, and report POPE on clean images only.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

from antiphase.attacks import AttackResult, Threat, sweep
from antiphase.budgets import eps_label
from antiphase.commands.lineup import short_names
from antiphase.commands.record import run_record
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.evaluation.rates import by_seed, described_models
from antiphase.files import write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.models.kinds import mean_lambdas
from antiphase.modules import device_of
from antiphase.processes import this_process
from antiphase.runs.attack import AttackPlan, measure
from antiphase.runs.gallery import AttackGallery, write_gallery
from antiphase.store import write_frame
from antiphase.vlm.answers import answers_questions
from antiphase.vlm.attack import ASKED_SCHEMA, summarise_answers
from antiphase.vlm.pope import AskedImages, PopeSet, asked_images

GALLERY_SIZE = 10
_LONGEST = 16  # tokens of an answer in the gallery
_TOGETHER = 16  # questions at a time: each takes a language model's intermediate values


@dataclass(frozen=True)
class PopeAttack:
    """Vision-language models whose answers to POPE's questions are attacked.

    Attributes:
        models: loaded models that answer questions, with their cards.
        twins: as many models to compare them with; or none.
        pope: images and questions.
        plan: of the attack.
        out: directory, made if missing.
        control: whether to add noise of the same budgets.
        command: for the record.
        options: likewise.
        progress: whether to show progress bars on stderr.
    """

    models: Sequence[nn.Module]
    twins: Sequence[nn.Module]
    pope: PopeSet
    plan: AttackPlan
    out: Path
    control: bool = False
    command: str = ""
    options: Mapping[str, Any] | None = None
    progress: bool = True

    def run(self) -> dict[str, Any]:
        """Attack every question of every model and write the run directory; return the summary.

        ``rows.parquet`` is that of an audit, with a sample for each image and question and the columns ``image``,
        ``question`` and ``samplings``. ``summary.json`` has the models and, in the part ``pope``, what
        :func:`~antiphase.vlm.attack.summarise_answers` returns. ``questions.json`` has the answers in words
        of the questions in the gallery.

        Raises:
            UserError: a model does not answer questions.
        """
        began, plan = time.monotonic(), self.plan
        every = [*self.models, *self.twins]
        for model in every:
            if not answers_questions(model):
                raise UserError(
                    f"{card_of(model).spec}: does not answer questions; expected a vision-language model, as "
                    f"antiphase train-vlm writes it, for {self.pope.name}"
                )
        names = short_names([card_of(model) for model in every])
        lineup = dict(zip(names, every, strict=True))
        pairs = list(zip(names[: len(self.models)], names[len(self.models) :], strict=False))
        measured, warnings = [], doubts_about(self.models, self.twins)
        for each in [plan, plan.control] if self.control and plan.control else [plan]:
            for name, model in lineup.items():
                rows, said = attack_answers(name, model, self.pope, each, self.out, progress=self.progress)
                measured.append(rows)
                warnings += [f"{name}: {warning}" for warning in said]
        rows = pl.concat(measured)
        shown = [
            {"name": name, "attention": card.attention, "seed": card.seed, "lambda": mean_lambdas(model)}
            for (name, model) in lineup.items()
            if (card := card_of(model))
        ]
        # none of an audit's rates: the questions about one image are no independent draws
        answers = summarise_answers(rows, by_seed(shown), pairs)
        summary = {"version": 1, "models": described_models(rows, shown), "pope": answers}
        if this_process().first:
            self._write(rows, summary, lineup, warnings, time.monotonic() - began)
        return summary

    def _write(
        self,
        rows: pl.DataFrame,
        summary: dict[str, Any],
        lineup: Mapping[str, nn.Module],
        warnings: list[str],
        seconds: float,
    ) -> None:
        write_frame(self.out / "rows.parquet", rows)
        shown = dict(list(lineup.items())[:: max(len(self.models), 1)][:2]) if self.twins else dict(lineup)
        squares = {name: repr(_square(model)) for name, model in shown.items()}
        same = next(iter(squares.values()))  # pictures can be shared by models that see the same pixels
        shown = {name: model for name, model in shown.items() if squares[name] == same}
        gallery, words = _gallery(rows, shown, self.pope, self.plan)
        write_gallery(self.out / "gallery.safetensors", gallery)
        write_json(self.out / "questions.json", words)
        plan = self.plan
        settings = {
            "attack": plan.attack,
            "norm": plan.norm,
            "ε": ", ".join(map(eps_label, plan.eps)),
            **{name: str(value) for name, value in plan.settings.items()},
            "objective": "cross-entropy between no and yes as the first token",
            "attacked label": "the answer without an attack",
            "attack seed": plan.seed,
            "search": plan.precision,
            **({"compiled": True} if plan.compile else {}),
            "verdicts": "float32",
        }
        record = run_record(
            list(lineup.values()),
            list(lineup),
            self.pope,
            settings,
            warnings,
            self.command,
            seconds,
            self.options,
        )
        write_json(self.out / "run.json", record | {"n": len(self.pope.names)})
        write_json(self.out / "summary.json", summary)


def attack_answers(
    name: str, model: nn.Module, pope: PopeSet, plan: AttackPlan, out: Path, *, progress: bool = True
) -> tuple[pl.DataFrame, list[str]]:
    """Attack a model's answer to every question; return rows of ``ASKED_SCHEMA``, and the warnings.

    Rows are written under ``out`` as they come, from which a killed attack resumes. Under torchrun the processes share
    the questions.

    Args:
        name: of the model in the rows.
        model: one that answers questions.
        pope: images and questions; what several samplings ask is attacked once.
        plan: of the attack.
        out: run directory.
        progress: whether to show a progress bar on stderr.
    """
    asked = _asked_of(model, pope)
    own = plan if plan.batch_size else replace(plan, batch_size=_TOGETHER)
    rows, warnings = measure(
        name,
        _classifier(model, asked),
        asked,
        own,
        out,
        process=this_process(),
        progress=progress,
        context=asked.which,
    )
    about = pl.DataFrame(
        {
            "sample": asked.ids.numpy(),
            "samplings": list(map(list, asked.samplings)),
            "image": pope.pictures.ids[asked.places].numpy(),
            "question": asked.asked(),
        },
        schema_overrides={"samplings": pl.List(pl.String)},
    )
    return rows.join(about, on="sample", maintain_order="left").select(*ASKED_SCHEMA), warnings


def _asked_of(model: nn.Module, pope: PopeSet) -> AskedImages:
    return asked_images(pope, _square(model))


def _square(model: nn.Module) -> Square:
    answering: Any = model
    return answering.square


def _classifier(model: nn.Module, asked: AskedImages) -> nn.Module:
    from antiphase.vlm import YesNo

    vlm: Any = model
    return YesNo(vlm, asked.questions)


def gallery_samples(rows: pl.DataFrame, models: Sequence[str], plan: AttackPlan) -> list[int]:
    """Return the samples of ten questions: first those about absent objects whose right answer changed.

    Args:
        rows: of the attack.
        models: shown models; a question counts as changed if it is for one of them, at the largest ε.
        plan: of the attack.
    """
    changed = pl.col("success") & (pl.col("clean_prediction") == pl.col("label"))
    told = (
        rows.filter(pl.col("model").is_in(list(models)), eps=max(plan.eps), attack=plan.attack)
        .group_by("sample", maintain_order=True)
        .agg(changed=changed.any(), label=pl.col("label").first())
    )
    order = told.sort("changed", "label", "sample", descending=[True, False, False])
    return order["sample"][:GALLERY_SIZE].to_list()


def _gallery(
    rows: pl.DataFrame, first: Mapping[str, nn.Module], pope: PopeSet, plan: AttackPlan
) -> tuple[AttackGallery, dict[str, Any]]:
    """Attack ten questions again at the largest ε."""
    chosen = gallery_samples(rows, list(first), plan)
    asked = _asked_of(next(iter(first.values())), pope)
    some = asked.take([asked.ids.tolist().index(sample) for sample in chosen])
    pixels = some.images(range(len(some)))
    results: dict[str, AttackResult] = {}
    answers: dict[str, list[list[str]]] = {}
    for name, model in first.items():
        found = sweep(
            plan.ensemble,
            _classifier(model, some),
            pixels,
            None,
            Threat(plan.norm),
            sorted(plan.eps),
            nested=plan.nested,
            seed=plan.seed,
            ids=some.ids,
            context=some.which,
            precision=plan.precision,
            batch_size=plan.batch_size or _TOGETHER,
        )[-1]
        results[name] = found
        said = (_said(model, images, some.asked()) for images in (pixels, found.adversarial))
        answers[name] = [list(both) for both in zip(*said, strict=True)]
    gallery = AttackGallery(
        eps=max(plan.eps),
        models=tuple(first),
        class_names=some.class_names,
        sample=some.ids.numpy(),
        label=some.labels.numpy(),
        clean=pixels.numpy(),
        adversarial=tuple(found.adversarial.numpy() for found in results.values()),
        clean_prediction=tuple(found.clean_prediction.numpy() for found in results.values()),
        prediction=tuple(found.prediction.numpy() for found in results.values()),
    )
    return gallery, {"questions": some.asked(), "answers": answers}


def _said(model: nn.Module, images: torch.Tensor, questions: list[str]) -> list[str]:
    answering: Any = model
    place = device_of(model)
    return answering.generate(images.to(place), questions, max_new_tokens=_LONGEST)
