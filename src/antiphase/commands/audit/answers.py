"""Attacks on the answers of vision-language models: does a model say yes for absent objects more often under attack?

The answer to each question is a classifier of images, attacked like any other. The attack maximises the cross-entropy
between no and yes as the answer's first token, all other words left out; its target is the answer that the model gives.
Budgets and steps are those of C. Schlarmann et al., *Robust CLIP: Unsupervised Adversarial Fine-Tuning of Vision
Embeddings for Robust Large Vision-Language Models*, ICML 2024, and its code (RobustVLM): APGD of 100 steps at 2/255 and
4/255, with which they attack captions and visual question answering. They attack the right text, in half precision
first, and report POPE on clean images only.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

from antiphase.attacks import AttackResult, Threat, sweep
from antiphase.budgets import eps_label
from antiphase.commands.audit.cells import measure
from antiphase.commands.audit.options import AuditOptions
from antiphase.commands.evaluate.sources import load_source
from antiphase.commands.lineup import Lineup
from antiphase.commands.loading import check_twins, find_device, load_models
from antiphase.commands.result import Result, combined_rows
from antiphase.errors import UserError
from antiphase.evaluation.rates import by_seed, described_models
from antiphase.files import write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.modules import device_of
from antiphase.processes import this_process
from antiphase.report.figure import MARKERS, STYLE, Family, dress, families, legend_label
from antiphase.report.gallery import AttackGallery, gallery_cards, gallery_markup, read_gallery, write_gallery
from antiphase.report.page import Headline, Plot, Section
from antiphase.report.table import Field, Table
from antiphase.report.words import attack_label, percent, percent_range, points_interval
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.statistics.intervals import Estimate
from antiphase.store import write_frame
from antiphase.vlm import YesNo
from antiphase.vlm.answers import answers_questions
from antiphase.vlm.pope import ALL, ASKED_SCHEMA, AskedImages, PopeSet, asked_images, summarise_answers

GALLERY_SIZE = 10
_LONGEST = 16  # tokens of an answer in the gallery
_TOGETHER = 16  # questions at a time: each takes a language model's intermediate values
_PANELS = {"false yes": "yes to absent objects, %", "accuracy": "right answers, %"}

Row = Mapping[str, Any]


def attack(options: AuditOptions, command: str = "") -> None:
    """Load vision-language models and questions, and attack the answers.

    Raises:
        UserError: a model does not answer questions, or the questions cannot be loaded.
    """
    check_twins(options.model, options.against)
    specs = [*options.model, *options.against]
    loaded = load_models(specs, find_device(options.device), answering=True)
    data = load_source(str(options.data), options.split, options.limit, None, False, False, not options.quiet)
    pope: Any = data.test
    count = len(options.model)
    attack_questions(loaded[:count], loaded[count:], pope.followed_by(options.suffix), options, command)


def attack_questions(
    models: Sequence[nn.Module],
    twins: Sequence[nn.Module],
    pope: PopeSet,
    options: AuditOptions,
    command: str = "",
) -> dict[str, Any]:
    """Attack every question of every model and write the run directory; return the summary.

    ``rows.parquet`` is that of an audit, with a sample for each image and question and the columns ``image``,
    ``question`` and ``samplings``. ``summary.json`` has the models and, in the part ``pope``, what
    :func:`~antiphase.vlm.pope.summarise_answers` returns. ``questions.json`` has the answers in words of those in the
    gallery.

    Raises:
        UserError: a model does not answer questions.
    """
    began, out = time.monotonic(), options.out
    lineup = Lineup(models, twins, pope)
    for model in lineup.everyone:
        if not answers_questions(model):
            raise UserError(
                f"{card_of(model).spec}: does not answer questions; expected a vision-language model, as "
                f"antiphase train-vlm writes it, for {pope.name}"
            )
    frames, warnings = [], doubts_about(models, twins)
    for each in options.with_control():
        for name, model in lineup.by_name.items():
            rows, notes = attack_answers(name, model, pope, each, out)
            frames.append(rows)
            warnings += [f"{name}: {note}" for note in notes]
    rows, about = pl.concat(frames), lineup.about()
    # none of an audit's rates: the questions about one image are no independent draws
    answers = summarise_answers(rows, by_seed(about), lineup.pairs)
    summary = {"version": 1, "models": described_models(rows, about), "pope": answers}
    if this_process().first:
        write_frame(out / "rows.parquet", rows)
        first = lineup.pairs[0] if twins else lineup.names
        squares = {name: repr(_square(lineup.by_name[name])) for name in first}
        # pictures can be shared by models that see the same pixels
        shown = {name: lineup.by_name[name] for name in first if squares[name] == squares[first[0]]}
        gallery, words = _gallery(rows, shown, pope, options)
        write_gallery(out / "gallery.safetensors", gallery)
        write_json(out / "questions.json", words)
        settings = {
            "attack": options.attack,
            "norm": options.norm,
            "ε": ", ".join(map(eps_label, options.eps)),
            **{
                name: str(value)
                for stage in options.ensemble.stages
                for name, value in stage.settings.items()
            },
            "objective": "cross-entropy between no and yes as the first token",
            "attacked label": "the answer without an attack",
            "attack seed": options.seed,
            "search": options.precision,
            **({"compiled": True} if options.compile else {}),
            "verdicts": "float32",
        }
        stored = options.model_copy(update={"sense_limit": 0})  # nothing is measured but the answers
        record = lineup.record(stored, settings, warnings, command, time.monotonic() - began)
        write_json(out / "run.json", record | {"n": len(pope.names)})
        write_json(out / "summary.json", summary)
    return summary


def attack_answers(
    name: str, model: nn.Module, pope: PopeSet, options: AuditOptions, out: Path
) -> tuple[pl.DataFrame, list[str]]:
    """Attack a model's answer to every question; return rows of ``ASKED_SCHEMA``, and the warnings.

    Rows are written under ``out`` as they come, from which a killed attack resumes. Under torchrun the processes share
    the questions. What several samplings ask is attacked once.
    """
    asked = asked_images(pope, _square(model))
    batch = options.model_copy(update={"batch_size": options.batch_size or _TOGETHER})
    rows, warnings = measure(name, _classifier(model, asked), asked, batch, out, context=asked.which)
    about = {
        "sample": asked.ids.numpy(),
        "samplings": list(map(list, asked.samplings)),
        "image": pope.pictures.ids[asked.places].numpy(),
        "question": asked.asked(),
    }
    frame = pl.DataFrame(about, schema_overrides={"samplings": pl.List(pl.String)})
    return rows.join(frame, on="sample", maintain_order="left").select(*ASKED_SCHEMA), warnings


def _square(model: Any) -> Any:
    return model.square


def _classifier(model: Any, asked: AskedImages) -> nn.Module:
    return YesNo(model, asked.questions)


def gallery_samples(rows: pl.DataFrame, models: Sequence[str], options: AuditOptions) -> list[int]:
    """Return the samples of ten questions: first those about absent objects whose right answer changed.

    Args:
        rows: of the attack.
        models: shown models; a question counts as changed if it is for one of them, at the largest ε.
        options: of the attack.
    """
    changed = pl.col("success") & (pl.col("clean_prediction") == pl.col("label"))
    questions = (
        rows.filter(pl.col("model").is_in(list(models)), eps=max(options.eps), attack=options.attack)
        .group_by("sample", maintain_order=True)
        .agg(changed=changed.any(), label=pl.col("label").first())
    )
    order = questions.sort("changed", "label", "sample", descending=[True, False, False])
    return order["sample"][:GALLERY_SIZE].to_list()


def _gallery(
    rows: pl.DataFrame, models: Mapping[str, nn.Module], pope: PopeSet, options: AuditOptions
) -> tuple[AttackGallery, dict[str, Any]]:
    """Attack ten questions again at the largest ε."""
    chosen = gallery_samples(rows, list(models), options)
    asked = asked_images(pope, _square(next(iter(models.values()))))
    some = asked.take([asked.ids.tolist().index(sample) for sample in chosen])
    pixels = some.images(range(len(some)))
    how = {"nested": options.nested, "seed": options.seed, "ids": some.ids, "context": some.which}
    how |= {"precision": options.precision, "batch_size": options.batch_size or _TOGETHER}
    results: dict[str, AttackResult] = {}
    answers: dict[str, list[list[str]]] = {}
    for name, model in models.items():
        classifier, threat = _classifier(model, some), Threat(options.norm)
        result = sweep(options.ensemble, classifier, pixels, None, threat, sorted(options.eps), **how)[-1]
        results[name] = result
        words = (_answered(model, images, some.asked()) for images in (pixels, result.adversarial))
        answers[name] = [list(both) for both in zip(*words, strict=True)]
    gallery = AttackGallery(
        eps=max(options.eps),
        models=tuple(models),
        class_names=some.class_names,
        sample=some.ids.numpy(),
        label=some.labels.numpy(),
        clean=pixels.numpy(),
        adversarial=tuple(result.adversarial.numpy() for result in results.values()),
        clean_prediction=tuple(result.clean_prediction.numpy() for result in results.values()),
        prediction=tuple(result.prediction.numpy() for result in results.values()),
    )
    return gallery, {"questions": some.asked(), "answers": answers}


def _answered(model: Any, images: Tensor, questions: list[str]) -> list[str]:
    return model.generate(images.to(device_of(model)), questions, max_new_tokens=_LONGEST)


class AnswersResult(Result):
    """How often models say yes to absent objects, by ε."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "pope")
    settings_title = "Attack"
    measures = "POPE's answers"

    def headlines(self) -> list[Headline]:
        return [answers_headline(self.summary["pope"])]

    def line(self) -> str:
        (headline,) = self.headlines()
        return f"{headline.title}. {headline.lead}".rstrip(".")

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        for pair in pairs:
            keys = ["attack", "eps", "sample"]
            mine, theirs = (set(rows.filter(model=name).select(keys).rows()) for name in pair)
            if mine != theirs:
                raise UserError(
                    f"compare: {pair[0]!r} and {pair[1]!r} were attacked differently; expected the same attacks, ε and "
                    "questions"
                )
        names = {name: [name] for pair in pairs for name in pair}
        return pl.DataFrame(summarise_answers(rows, names, pairs)["differences"], infer_schema_length=None)

    def sections(self) -> list[Section]:
        groups, answers = families(self.summary["models"]), self.summary["pope"]
        caption = (
            "False yes and accuracy over ε, all questions, with 95 % intervals over images, and over training seeds "
            "where there are several"
        )
        words = (
            "The attack changes the image so that the loss of the model’s answer rises. A yes to an absent object, "
            "false yes, counts at ε if the model gives it without an attack or the attack brings it about; false no "
            "likewise for objects that are there. Each image counts alike; questions that several "
            "samplings share count once in “all”."
        )
        plot = Plot("false-yes", answers_figure(answers["results"], groups), caption, beside=True)
        sections = [Section("rates", "Answers", words, [plot], [_rates(answers["results"], groups)])]
        if answers["differences"]:
            words = (
                "“Rise” is the rate at ε less the rate without an attack. The title is decided at the smallest ε: "
                "where an attack changes every answer, the rises only tell which model said yes more often before. "
                "Intervals are over images and, with several pairs, over training seeds."
            )
            table = _differences(answers["differences"], groups)
            sections.append(Section("differences", "Differences", words, tables=[table]))
        if "questions.json" in self.files and "gallery.safetensors" in self.files:
            markup = self._gallery(groups)
            sections.append(Section("gallery", "Ten questions", markup=markup, in_navigation="Questions"))
        return sections

    def _gallery(self, groups: Sequence[Family]) -> str:
        with self.unpacked() as folder:
            gallery = read_gallery(folder / "gallery.safetensors")
        words = self.read_json("questions.json", ("questions", "answers"))
        cards = gallery_cards(gallery)
        for place, card in enumerate(cards):
            card |= {"title": words["questions"][place], "note": f"truth: {card['title']}"}
            for tile in card["tiles"]:
                clean, attacked = words["answers"][tile["model"]][place]
                tile |= {"clean_prediction": clean, "prediction": attacked}
            cards[place] = card
        colors = {model: family.color for family in groups for model in family.models}
        more = (
            "First come questions about absent objects whose right answer the attack changes. An answer that changes "
            "is broken, a wrong one too. Below each image is the answer in words."
        )
        return gallery_markup(gallery, colors, cards, more, "answer")


def answers_headline(answers: Mapping[str, Sequence[Row]]) -> Headline:
    """Return whether hallucination moves more for the models than for their twins, and its numbers.

    It is judged at the smallest ε and under the first attack. Where an attack changes every answer, as large budgets
    tend to, the difference of the rises says nothing but which model said yes more often before.
    """
    eps = min(row["eps"] for row in answers["results"] if row["eps"])
    moves = [
        row
        for row in answers["differences"]
        if (row["what"], row["metric"], row["sampling"], row["eps"]) == ("move", "false yes", ALL, eps)
    ]
    if not moves:
        first = answers["results"][0]["attack"]
        shown = _rows(answers["results"], metric="false yes", sampling=ALL, attack=first)
        words = [f"{row['family']}: {percent(row['value'])} % ({_budget(row['eps'])})" for row in shown]
        return Headline("Yes to absent objects under attack", "; ".join(words) + ".")
    row = moves[0]
    model, twin, low, high = row["model"], row["twin"], row["low"], row["high"]
    ends = (-math.inf if low is None else low, math.inf if high is None else high)
    (sign,) = decide([Estimate(row["value"], *ends, row["n"])], seeds=row["seeds"])
    if sign:
        more = "more" if sign > 0 else "less"
        title = f"An attack raises the share of yes to absent objects {more} for {model} than for {twin}"
    else:
        title = (
            f"Whether an attack makes {model} say yes to absent objects more often than {twin} is not decided"
        )
    seeds = f"{row['seeds']} pairs of models and " if row["seeds"] > 1 else ""
    few = (
        f"; fewer than {LEAST_SEEDS} training seeds decide nothing" if 1 < row["seeds"] < LEAST_SEEDS else ""
    )
    number, over = points_interval(row["value"], low, high), f"95 % interval over {seeds}{row['n']:,} images"
    return Headline(title, f"Difference of the two rises at ε = {eps_label(eps)}: {number} ({over}{few}).")


def answers_figure(results: Sequence[Row], groups: Sequence[Family]) -> Figure:
    """Draw false yes and accuracy over ε under the first attack, a line for each family with 95 % intervals."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        attack = results[0]["attack"]
        apart = 5.0 * max(row["eps"] for row in results)  # of 255, so that error bars do not hide each other
        for axes, (metric, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
            for place, family in enumerate(groups):
                rows = _rows(results, family=family.name, metric=metric, sampling=ALL, attack=attack)
                rows = sorted(rows, key=lambda row: row["eps"])
                errors = [
                    [
                        0.0 if row[end] is None else max(sign * 100 * (row["value"] - row[end]), 0.0)
                        for row in rows
                    ]
                    for sign, end in ((1, "low"), (-1, "high"))
                ]
                axes.errorbar(
                    [255 * row["eps"] + apart * place for row in rows],
                    [100 * row["value"] for row in rows],
                    yerr=errors,
                    ms=5,
                    capsize=2.5,
                    marker=MARKERS[place % len(MARKERS)],
                    color=family.color,
                    label=f"family {place}",
                )
            axes.set_xlabel("ε · 255")
            axes.set_ylabel(label)
            axes.set_ylim(0, 100)
            dress(axes)
        legend = figure.legend(
            *axes.get_legend_handles_labels(),
            frameon=False,
            loc="outside upper left",
            fontsize=8.5,
            ncols=min(len(groups), 2),
        )
        for text, family in zip(legend.get_texts(), groups, strict=True):
            text.set(text=legend_label(family), parse_math=False)
    return figure


def _rows(rows: Sequence[Row], **values: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _rates(results: Sequence[Row], groups: Sequence[Family]) -> Table:
    colors = {family.name: family.color for family in groups}
    metrics = list(dict.fromkeys(row["metric"] for row in results))
    budgets = sorted({row["eps"] for row in results})
    several = len({row["attack"] for row in results}) > 1
    rows = []
    for family, attack, sampling in dict.fromkeys((r["family"], r["attack"], r["sampling"]) for r in results):
        block = _rows(results, family=family, attack=attack, sampling=sampling)
        by_place = {(row["metric"], row["eps"]): row for row in block}
        cells = (by_place[metric, eps] for metric in metrics for eps in budgets)
        rows.append(
            (
                Field(family, color=colors.get(family, "#888"), kind="name"),
                *([Field(_attack(attack), kind="word")] if several else []),
                Field(sampling, kind="word"),
                *(Field(percent(row["value"]), (percent_range(row["low"], row["high"]),)) for row in cells),
            )
        )
    heads = [f"{metric}, {_budget(eps)}" for metric in metrics for eps in budgets]
    csv = pl.DataFrame(list(results), infer_schema_length=None).write_csv()
    columns = ("model", *(["attack"] if several else []), "questions", *heads)
    return Table("pope", "Answers, % [95 % interval]", columns, tuple(rows), csv)


def _differences(differences: Sequence[Row], groups: Sequence[Family]) -> Table:
    colors = {family.name: family.color for family in groups}
    several = len({row["attack"] for row in differences}) > 1
    rows = []
    for row in differences:
        if row["metric"] != "false no":
            rise = "rise to " if row["what"] == "move" else ""
            words = [row["twin"], *([_attack(row["attack"])] if several else []), row["sampling"]]
            words.append(f"{row['metric']}, {rise}{_budget(row['eps'])}")
            name = Field(row["model"], color=colors.get(row["model"], "#888"), kind="name")
            number = Field(points_interval(row["value"], row["low"], row["high"]))
            rows.append((name, *(Field(word, kind="word") for word in words), number))
    csv = pl.DataFrame(list(differences), infer_schema_length=None).write_csv()
    columns = ("model", "twin", *(["attack"] if several else []), "questions", "number", "difference")
    return Table("pope-differences", "Differences to the twins", columns, tuple(rows), csv)


def _budget(eps: float) -> str:
    return f"ε = {eps_label(eps)}" if eps else "no attack"


def _attack(name: str) -> str:
    return attack_label(name, "linf").partition(" (")[0]


@dataclass(frozen=True)
class Questions:
    """What an audit does where the data are questions; see ``antiphase.registry.QUESTIONS``."""

    attack: Any
    result: type[Result]


QUESTIONS = Questions(attack, AnswersResult)
