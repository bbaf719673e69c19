"""Attacks on the answers of vision-language models: does a model say yes for absent objects more often under attack?

The answer to each question is a classifier of images, attacked like any other. The attack maximises the cross-entropy
between no and yes as the answer's first token, all other words left out; its target is the answer that the model gives.
Budgets and steps are those of C. Schlarmann et al., *Robust CLIP: Unsupervised Adversarial Fine-Tuning of Vision
Embeddings for Robust Large Vision-Language Models*, ICML 2024, and its code (RobustVLM): APGD of 100 steps at 2/255 and
4/255, with which they attack captions and visual question answering. They attack the right text, in half precision
first, and report POPE on clean images only.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from antiphase import modules, terminal
from antiphase.commands.audit import AuditOptions
from antiphase.commands.audit import run as audit
from antiphase.commands.lineup import Lineup, write_run
from antiphase.commands.loading import check_twins, find_device, load_models
from antiphase.commands.result import Result, combined_rows
from antiphase.errors import UserError
from antiphase.evaluation.rates import by_seed, described_models
from antiphase.files import printable, write_json
from antiphase.models.card import card_of, doubts_about
from antiphase.processes import this_process
from antiphase.report.figure import answer_figure, colors_of, families, rate_figure
from antiphase.report.gallery import gallery_markup, read_gallery, write_gallery
from antiphase.report.page import Headline, Plot, Section, answer, text
from antiphase.report.table import FieldOf, Table, difference_field, rate_field, tabulate
from antiphase.report.words import attack_name, estimate_of
from antiphase.statistics.decisions import LEAST_SEEDS, decide
from antiphase.vlm import YesNo
from antiphase.vlm.answers import answers_questions
from antiphase.vlm.pope import ALL, ASKED_SCHEMA, AskedImages, PopeSet, asked_images, load_questions, summarise_answers

GALLERY_SIZE = 10
_LONGEST = 16  # tokens of an answer in the gallery
_TOGETHER = 16  # questions at a time: each takes a language model's intermediate values
_words = partial(text, "answers.txt")


def attack(options: AuditOptions, command: str = "", lineup: Lineup | None = None) -> dict[str, Any]:
    """Attack every question of every model and write the run directory, as an audit's; return the summary."""
    if lineup is None:
        check_twins(options.model, options.against)
        loaded = load_models([*options.model, *options.against], find_device(options.device), answering=True)
        questions: Any = load_questions(str(options.data), options.limit, not options.quiet)
        count = len(options.model)
        lineup = Lineup(loaded[:count], loaded[count:], questions.followed_by(options.suffix))
    pope: PopeSet = lineup.data
    began, out = time.monotonic(), options.out
    if mute := [card_of(model).spec for model in lineup.everyone if not answers_questions(model)]:
        expected = "expected a vision-language model, as antiphase train-vlm writes it"
        raise UserError(f"{mute[0]}: does not answer questions; {expected}, for {pope.name}")
    models: dict[str, Any] = dict(lineup.by_name)
    images = {name: asked_images(pope, model.square) for name, model in models.items()}
    first = images[lineup.names[0]]
    absent = (first.labels == 0).nonzero().flatten().tolist()
    kept = audit.keep_some(first, max(options.eps), absent if len(absent) >= GALLERY_SIZE else ())
    attacks = list(audit.attacks_of(lineup, options))
    jobs = ((name, YesNo(models[name], images[name].questions), _by_few(one), images[name]) for name, _, one in attacks)
    audit.say_time(jobs, out, context=lambda data: data.which)
    measured = [(name, *attack_answers(name, model, pope, one, out, kept)) for name, model, one in attacks]
    rows, warnings = audit.combined(measured, options)
    if files := getattr(pope.pictures, "files", None):
        named = pl.DataFrame({"image": pope.pictures.ids.numpy(), "file": list(map(printable, files))})
        rows = rows.join(named, on="image", maintain_order="left")
    about = lineup.about()
    # none of an audit's rates: the questions about one image are no independent draws
    answers = summarise_answers(rows, by_seed(about), lineup.pairs)
    summary = {"version": 1, "models": described_models(rows, about), "pope": answers}
    if this_process().first:
        names = lineup.pairs[0] if lineup.twins else lineup.names
        # pictures can be shared by models that see the same pixels
        shown = {name: models[name] for name in names if images[name].square == images[names[0]].square}
        pictures = audit.with_images(rows, list(shown), (options.worst_case or options.names)[0], kept)
        _write_gallery(pictures, shown, images[names[0]], kept.eps, out)
    settings = audit.attack_settings(options) | {"attacked label": "the answer without an attack"}
    settings |= {"objective": "cross-entropy between no and yes as the first token"}
    warnings = doubts_about(lineup.models, lineup.twins) + warnings
    stored = options.model_copy(update={"sense_limit": 0})  # nothing is measured but the answers
    frames, count = {"rows": rows}, len(pope.names)
    write_run(lineup, stored, summary, frames, settings, warnings, command, began, n=count)
    return summary


def attack_answers(
    name: str, model: Any, pope: PopeSet, options: AuditOptions, out: Path, kept: audit.KeptImages | None = None
) -> tuple[pl.DataFrame, list[str]]:
    """Attack a model's answer to every question; return rows of ``ASKED_SCHEMA`` and the warnings."""
    images = asked_images(pope, model.square)
    yes_no, few = YesNo(model, images.questions), _by_few(options)
    rows, warnings = audit.measure(name, yes_no, images, few, out, context=images.which, kept=kept)
    about = {"sample": images.ids.numpy(), "samplings": list(map(list, images.samplings))}
    about |= {"image": pope.pictures.ids[images.places].numpy(), "question": images.asked()}
    frame = pl.DataFrame(about, schema_overrides={"samplings": pl.List(pl.String)})
    return rows.join(frame, on="sample", maintain_order="left").select(*ASKED_SCHEMA), warnings


def _by_few(options: AuditOptions) -> AuditOptions:
    return options.model_copy(update={"batch_size": options.batch_size or _TOGETHER})


def gallery_samples(rows: pl.DataFrame) -> list[int]:
    """Return ten samples of rows at one ε: first those about absent objects whose right answer changed for a model."""
    changed = pl.col("success") & (pl.col("clean_prediction") == pl.col("label"))
    questions = rows.group_by("sample", maintain_order=True).agg(changed=changed.any(), label=pl.col("label").first())
    order = questions.sort("changed", "label", "sample", descending=[True, False, False])
    return order["sample"][:GALLERY_SIZE].to_list()


def _write_gallery(rows: pl.DataFrame, models: Mapping[str, Any], data: AskedImages, eps: float, out: Path) -> None:
    gallery = audit.draw_gallery(rows, list(models), data, eps, gallery_samples(rows))
    answers: dict[str, list[list[str]]] = {}
    if gallery is None:
        (out / "gallery.safetensors").unlink(missing_ok=True)  # of an earlier run
        write_json(out / "questions.json", {"questions": [], "answers": {}})
        return
    ids = data.ids.tolist()
    questions = data.take([ids.index(sample) for sample in gallery.sample.tolist()]).asked()
    for (name, model), adversarial in zip(models.items(), gallery.adversarial, strict=True):
        images = (torch.from_numpy(pixels).to(modules.device_of(model)) for pixels in (gallery.clean, adversarial))
        words = (model.generate(pixels, questions, max_new_tokens=_LONGEST) for pixels in images)
        answers[name] = [list(both) for both in zip(*words, strict=True)]
    write_gallery(out / "gallery.safetensors", gallery)
    write_json(out / "questions.json", {"questions": questions, "answers": answers})


class AnswersResult(Result):
    """How often models say yes to absent objects, by ε."""

    keys = ("models", "pope")

    def headlines(self) -> list[Headline]:
        return [replace(answers_headline(self.summary["pope"]), plot=lambda: answer_plot(self.summary))]

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        names = {name: [name] for pair in pairs for name in pair}
        return pl.DataFrame(summarise_answers(rows, names, pairs)["differences"], infer_schema_length=None)

    def sections(self) -> list[Section]:
        pope, colors = self.summary["pope"], self.colors
        parts = (pope["results"], pope["differences"])
        results, differences = (pl.DataFrame(part, infer_schema_length=None) for part in parts)
        shown = results.filter(pl.col("metric") != "false no", sampling=ALL)
        blocks = shown.rename({"family": "name"}).group_by(["attack", "metric"], maintain_order=True)
        panels = [(attack_name(str(attack)), str(metric), rows) for (attack, metric), rows in blocks]
        plot = Plot("false-yes", rate_figure(panels, self.families), _words("caption"), beside=True)
        results = results.with_columns(color=pl.col("family").replace_strict(colors))
        rates = _tables(results, ["metric", "attack"], rate_field)
        sections = [Section("rates", "Answers", _words("rates"), [plot], rates)]
        if not differences.is_empty():
            differences = differences.filter(pl.col("metric") != "false no").with_columns(
                pl.col("what").replace("move", "rise"),
                family=pl.format("{} − {}", "model", "twin"),
                color=pl.col("model").replace_strict(colors),
            )
            tables = _tables(differences, ["metric", "what", "attack"], difference_field)
            sections.append(Section("differences", "Differences", _words("differences"), tables=tables))
        if "questions.json" in self.files and "gallery.safetensors" in self.files:
            gallery = read_gallery(self.files["gallery.safetensors"])
            words = self.read_json("questions.json", ("questions", "answers"))
            markup = gallery_markup(gallery, colors, words["questions"], words["answers"], _words("gallery"))
            sections.append(Section("gallery", "Ten questions", markup=markup, in_navigation="Questions"))
        return sections


def _tables(frame: pl.DataFrame, keys: list[str], field: FieldOf) -> list[Table]:
    def budget(eps: float) -> str:
        return terminal.eps_label(eps) if eps else "no attack"

    tables, line = [], pl.format("{}, {}", "family", "sampling")
    for names, block in frame.group_by(keys, maintain_order=True):
        *labels, attack = map(str, names)
        name, title = "-".join((*labels, attack)), f"{', '.join(labels).capitalize()}, {attack_name(attack)}"
        tables.append(tabulate(name, title, block.with_columns(model=line), ["model"], "eps", field, budget, block))
    return tables


def answers_headline(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Headline:
    """Return whether hallucination moves more for the models than for their twins, at the smallest ε."""
    first = {"attack": answers["results"][0]["attack"], "metric": "false yes", "sampling": ALL}
    eps = min(row["eps"] for row in answers["results"] if row["eps"])
    if not (moves := _only(answers["differences"], first | {"what": "move", "eps": eps})):
        shown = _only(answers["results"], first)
        return Headline(_words("title_alone", rows=shown), _words("lead_alone", rows=shown))
    row = moves[0]
    (sign,) = decide([estimate_of(row)], seeds=row["seeds"])
    values = {**row, "sign": sign, "least_seeds": LEAST_SEEDS}
    title = answer("answers.txt", "title", {side: row[side] for side in ("model", "twin")}, **values)
    return Headline(title, _words("lead", **values), _words("condition", **values))


def answer_plot(summary: Mapping[str, Any]) -> Plot:
    """Draw the differences of the rises of false yes by ε, or the rates of one model, above the accuracies."""
    answers, colors = summary["pope"], colors_of(families(summary["models"]))
    first = {"attack": answers["results"][0]["attack"], "sampling": ALL}
    rows = _only(answers["differences"], first | {"metric": "false yes", "what": "move"})
    sides = (rows[0]["model"], rows[0]["twin"]) if rows else (answers["results"][0]["family"],)
    rows = [row for row in rows if (row["model"], row["twin"]) == sides]
    shown = rows or _only(answers["results"], first | {"metric": "false yes", "family": sides[0]})
    quoted = min(row["eps"] for row in shown if row["eps"])
    lines = []
    for row in shown:
        sign = decide([estimate_of(row)], seeds=row["seeds"])[0] if rows else 1
        label = f"ε = {terminal.eps_label(row['eps'])}" if row["eps"] else "no attack"
        lines.append((label, [estimate_of(row)], sign, row["eps"] == quoted))
    rates = _only(answers["results"], first | {"metric": "accuracy", "eps": 0.0})
    accuracies = [(row["family"], colors[row["family"]], [estimate_of(row)]) for row in rates if row["family"] in sides]
    title = "Rise of false yes" if rows else "False yes"
    figure = answer_figure(title, lines, "Right answers without an attack", accuracies, 0.5)
    return Plot("answer", figure, _words("answer", compared=bool(rows), seeds=shown[0]["seeds"]))


def _only(rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row.items() >= values.items()]
