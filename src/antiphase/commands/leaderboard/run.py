"""All cards below a folder as one page: a ranking for each data set, norm and ε, sortable by every column.

A model has one row, with its worst case over all attacks. Rows of a control, such as noise, are below the ranking.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import polars as pl

from antiphase.commands.audit.card import CARD, Difference, Model, Rates, RobustnessCard, read_card
from antiphase.commands.command import Answer, Tabled
from antiphase.commands.leaderboard import LeaderboardOptions
from antiphase.errors import UserError, shown
from antiphase.files import write_text
from antiphase.registry import ATTACKS, find
from antiphase.report.page import environment
from antiphase.report.table import Field, Table, rate_field
from antiphase.report.words import NORMS, attack_label
from antiphase.terminal import eps_label, say


class Row(NamedTuple):
    """What one card says of one model under one attack at one ε."""

    path: Path
    card: RobustnessCard
    model: Model
    rates: Rates

    @property
    def label(self) -> str:
        return attack_label(self.rates.attack, self.rates.norm)

    @property
    def control(self) -> str:
        """The attack, if it is a control."""
        attack = self.rates.attack
        return attack if attack in ATTACKS and find(ATTACKS, attack, "attack").control is None else ""

    @property
    def difference(self) -> Difference | None:
        """The difference of the ASR from that of the twin."""
        cell = (self.model.name, self.rates.attack, self.rates.norm, self.rates.eps)
        return next((one for one in self.card.differences if (one.model, one.attack, one.norm, one.eps) == cell), None)


def answer(options: LeaderboardOptions, _: str) -> Answer:
    """Write the page and say what is on it."""
    folder, page = options.folder, options.out or options.folder / "leaderboard.html"
    named = f"folder {shown(str(folder))}"
    if not folder.is_dir():
        raise UserError(f"{named}: no such directory; expected one with cards below it")
    cards: dict[Path, RobustnessCard] = {}
    left_out: list[str] = []
    for path in sorted(folder.rglob(CARD)):
        try:
            cards[path] = read_card(path)
        except UserError as error:
            left_out.append(str(error))
    if not cards:
        invalid = "".join(f"; not valid: {line}" for line in left_out[:1])
        raise UserError(f"{named}: no {CARD} below it; antiphase audit writes one{invalid}")
    rows = rows_of(cards)
    boards = rankings(rows, page.parent)
    about = {"cards": len(cards), "models": len({row.model.weights for row in rows}), "left_out": left_out}
    write_text(page, environment().get_template("leaderboard.html").render(boards=boards, **about))
    for line in left_out:
        say(f"left out: {line}")
    say(f"leaderboard, cards: {len(cards)}: {page}")
    told = {"leaderboard": str(page), "cards": len(cards), "left_out": left_out, "rows": list(map(_listed, rows))}
    return Tabled(told, [board["sheet"] for board in boards])


def _listed(row: Row) -> dict[str, Any]:
    told = row.model.model_dump(include={"name", "role", "attention", "architecture", "seed"})
    told |= row.card.data.model_dump(include={"dataset", "split", "n"})
    told |= row.rates.model_dump(include={"attack", "norm", "eps"})
    told |= {"autoattack": row.rates.attack == "autoattack", "date": row.card.date, "control": bool(row.control)}
    told |= {"clean_accuracy": row.model.clean_accuracy.value, "asr": row.rates.asr.value}
    told |= {"asr_correct": row.rates.asr_correct and row.rates.asr_correct.value}
    told |= {"robust_accuracy": row.rates.robust_accuracy.value}
    told |= {"difference": row.difference and row.difference.difference}
    return told | {"against": row.difference and row.difference.against, "card": str(row.path)}


def rows_of(cards: Mapping[Path, RobustnessCard]) -> list[Row]:
    """Return each model under each attack at each ε, once where several cards say the same."""
    rows: dict[Any, Row] = {}
    for path, card in cards.items():
        settings = json.dumps(card.attack.settings, sort_keys=True)
        for model in card.models:
            for rates in model.rates:
                key = (model.weights, card.data.fingerprint, settings, rates.model_dump_json())
                rows.setdefault(key, Row(path, card, model, rates))
    return list(rows.values())


def rankings(rows: Sequence[Row], folder: Path) -> list[dict[str, Any]]:
    """Return a ranking for each data set, norm and ε, the most robust first; links start from ``folder``."""
    boards: dict[tuple[str, str, float, str], dict[Any, list[Row]]] = {}
    for row in rows:
        data = row.card.data
        settings = row.card.attack.settings.get(row.rates.attack)
        width = settings.get("width") if isinstance(settings, dict) else None
        norm = NORMS[row.rates.norm] + (f", {width} × {width} pixels" if width else "")
        place = (f"{data.dataset} ({data.split}, {data.n:,} images)", norm, row.rates.eps, data.fingerprint)
        boards.setdefault(place, {}).setdefault((row.model.weights, row.control), []).append(row)
    drawn = []
    titles = Counter(place[:3] for place in boards)
    for (data, norm, eps, fingerprint), models in sorted(boards.items()):
        data += f", {fingerprint[:6]}" if titles[data, norm, eps] > 1 else ""  # other images
        lines = _ranked(models.values(), folder)
        cards = {row.path: (row.card, row.rates.norm) for same in models.values() for row in same}
        means = [
            {"pair": f"{one.family} − {one.against_family}", "attack": attack_label(one.attack, one.norm), "row": one}
            for card, of_norm in cards.values()
            for one in card.mean_differences
            if (one.norm, one.eps) == (of_norm, eps)
        ]  # fmt: skip
        sheet = _sheet(f"{data}, {norm}, ε = {eps_label(eps)}", lines)
        drawn.append({"data": data, "norm": norm, "eps": eps, "means": means, "lines": lines, "sheet": sheet})
    return drawn


def _ranked(models: Iterable[Sequence[Row]], folder: Path) -> list[dict[str, Any]]:
    """Return a line for each model, of its worst case; equal robust accuracies share a rank, controls have none."""
    lines = []
    for same in models:
        worst = min(same, key=lambda row: row.rates.robust_accuracy.value)
        report = worst.path.parent / "report.html"
        files = {"card": worst.path} | ({"report": report} if report.is_file() else {})
        line = {"model": worst.model, "control": worst.control, "robust": worst.rates.robust_accuracy}
        line |= {"asr": max((row.rates.asr for row in same), key=lambda rate: rate.value)}
        line |= {"attack": worst.label, "others": sorted({row.label for row in same} - {worst.label})}
        line |= {"difference": worst.difference, "n": worst.card.data.n, "date": (worst.card.date or "")[:10]}
        line |= {"links": {name: quote(os.path.relpath(path, folder)) for name, path in files.items()}}
        lines.append(line)
    lines.sort(key=lambda line: (bool(line["control"]), -line["robust"].value))
    values = [line["robust"].value for line in lines if not line["control"]]
    for line in lines:
        line["rank"] = None if line["control"] else 1 + values.index(line["robust"].value)
    return lines


def _sheet(title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    rows, numbers = [], []
    for line in lines:
        rates = {"robust": line["robust"], "clean": line["model"].clean_accuracy, "asr": line["asr"]}
        about = {"rank": line["rank"], "model": line["model"].name, "attack": line["attack"], "images": line["n"]}
        rank, model, attack, images = ("–" if value is None else str(value) for value in about.values())
        fields = [rate_field(rate.model_dump()) for rate in rates.values()]
        words = (Field(rank), Field(model, kind="name"), *fields, Field(attack, kind="word"), Field(images))
        rows.append((*words, Field(line["date"] or "–")))
        pairs = [(name, end) for name in rates for end in ("value", "low", "high")]
        ends = {f"{name}_{end}": getattr(rates[name], end) for name, end in pairs}
        numbers.append(about | ends | {"date": line["date"]})
    name = "leaderboard-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    columns = ("rank", "model", "robust, %", "clean, %", "ASR, %", "attack", "images", "date")
    return Table(name, title, columns, tuple(rows), pl.DataFrame(numbers, infer_schema_length=None).write_csv())
