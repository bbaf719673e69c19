"""All cards below a folder as one page: a table for each data set and norm, sortable by every column.

A model has one row, with its worst rate over all attacks at each ε. A control, such as noise, is no attack: its
rows are below the ranking.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.commands.audit.card import CARD, Model, Rates, RobustnessCard, read_card
from antiphase.commands.command import Answer
from antiphase.commands.leaderboard import LeaderboardOptions
from antiphase.errors import UserError, shown
from antiphase.files import write_text
from antiphase.registry import ATTACKS, find
from antiphase.report.page import environment
from antiphase.report.words import attack_label
from antiphase.terminal import say

# metric: (title, definition, sign that makes the worst rate the largest)
_METRICS = {
    "robust_accuracy": ("Robust accuracy", "correctly classified and not broken / all", -1),
    "asr": ("ASR", "broken / all", 1),
    "asr_correct": ("ASR, correct only", "correctly classified and broken / correctly classified", 1),
}
_DIFFERENCE = ("Difference from the twin", "ASR of the model minus ASR of its twin, same images, in points")
_NORMS = {"linf": "L∞", "l2": "L2"}


@dataclass(frozen=True)
class Row:
    """What one card says of one model under one attack at one ε."""

    path: Path
    card: RobustnessCard
    model: Model
    rates: Rates


def answer(options: LeaderboardOptions, _: str) -> Answer:
    """Write the page and say what is on it."""
    cards, left_out = find_cards(options.folder)
    page = write_leaderboard(cards, left_out, options.out or options.folder / "leaderboard.html")
    for line in left_out:
        say(f"left out: {line}")
    say(f"leaderboard, cards: {len(cards)}: {page}")
    rows = list(map(_entry, rows_of(cards)))
    return {"leaderboard": str(page), "cards": len(cards), "left_out": left_out, "rows": rows}


def find_cards(folder: Path) -> tuple[dict[Path, RobustnessCard], list[str]]:
    """Return the cards below a folder, and one line for each file that is no valid card."""
    if not folder.is_dir():
        raise UserError(f"folder {shown(str(folder))}: no such directory; expected one with cards below it")
    cards: dict[Path, RobustnessCard] = {}
    left_out: list[str] = []
    for path in sorted(folder.rglob(CARD)):
        try:
            cards[path] = read_card(path)
        except UserError as error:
            left_out.append(str(error))
    if not cards:
        invalid = "".join(f"; not valid: {line}" for line in left_out[:1])
        raise UserError(
            f"folder {shown(str(folder))}: no {CARD} below it; antiphase audit writes one{invalid}"
        )
    return cards, left_out


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


def _entry(row: Row) -> dict[str, Any]:
    """Return a row for JSON."""
    card, model, rates = row.card, row.model, row.rates
    cell = (model.name, rates.attack, rates.norm, rates.eps)
    differences = (one for one in card.differences if (one.model, one.attack, one.norm, one.eps) == cell)
    difference = next(differences, None)
    return {
        **model.model_dump(include={"name", "role", "attention", "architecture", "seed"}),
        **card.data.model_dump(include={"dataset", "split", "n"}),
        **rates.model_dump(include={"attack", "norm", "eps"}),
        "autoattack": rates.attack == "autoattack",
        "date": card.date,
        "control": _is_control(rates.attack),
        "clean_accuracy": model.clean_accuracy.value,
        "asr": rates.asr.value,
        "asr_correct": rates.asr_correct and rates.asr_correct.value,
        "robust_accuracy": rates.robust_accuracy.value,
        "difference": difference and difference.difference,
        "against": difference and difference.against,
        "card": str(row.path),
    }


def write_leaderboard(cards: Mapping[Path, RobustnessCard], left_out: Sequence[str], out: Path) -> Path:
    """Write the page, which is self-contained, and return its path."""
    rows, by_title = rows_of(cards), {}
    for row in rows:
        title = f"{row.card.data.dataset} ({row.card.data.split}), {_NORMS[row.rates.norm]}"
        by_title.setdefault(title, []).append(row)
    sections = [
        {"title": title, "tables": [*rate_tables(same), *difference_tables(same)]}
        for title, same in by_title.items()
    ]
    about = {"cards": len(cards), "models": len({row.model.weights for row in rows}), "left_out": left_out}
    write_text(out, environment().get_template("leaderboard.html").render(sections=sections, **about))
    return out


def rate_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return for every rate the lines of the models on one data set under one norm, the most robust first."""
    budgets = sorted({row.rates.eps for row in rows})
    by_model: dict[Any, list[Row]] = {}
    for row in rows:
        control = row.rates.attack if _is_control(row.rates.attack) else ""
        by_model.setdefault((row.model.weights, row.card.data.fingerprint, control), []).append(row)
    tables = []
    for metric, (title, formula, sign) in _METRICS.items():
        lines = []
        for (*_, control), same in by_model.items():
            labels = [attack_label(row.rates.attack, row.rates.norm) for row in same]
            attacks, cells = list(dict.fromkeys(labels)), []
            for eps in budgets:
                rates = [
                    (rate, label if len(attacks) > 1 else "")
                    for row, label in zip(same, labels, strict=True)
                    if row.rates.eps == eps and (rate := getattr(row.rates, metric))
                ]
                cells.append(max(rates, key=lambda cell: sign * cell[0].value, default=None))
            line = {"control": control, "attack": ", ".join(attacks), "cells": cells}
            lines.append(line | {"model": same[0].model, "n": same[0].card.data.n})
        lines.sort(key=lambda line: [sign * cell[0].value if cell else 2 for cell in line["cells"]])
        tables.append({"title": title, "formula": formula, "budgets": budgets, "lines": lines})
    return tables


def difference_tables(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the lines of the differences from twins, if there are any."""
    budgets, norms = sorted({row.rates.eps for row in rows}), {row.rates.norm for row in rows}
    lines: dict[Any, dict[str, Any]] = {}
    for path, card in {row.path: row.card for row in rows}.items():
        named = [(f"{row.family} − {row.against_family}", row) for row in card.mean_differences]
        named += [(f"{row.model} − {row.against}", row) for row in card.differences]
        for pair, row in named:
            if row.norm in norms and row.eps in budgets:  # a card may have means at other ε than rates
                attack = attack_label(row.attack, row.norm)
                line = {"pair": pair, "attack": attack, "control": _is_control(row.attack), "n": card.data.n}
                line |= {"seeds": getattr(row, "seeds", 0), "cells": [None] * len(budgets)}
                lines.setdefault((path, pair, attack), line)["cells"][budgets.index(row.eps)] = row
    table = {"title": _DIFFERENCE[0], "formula": _DIFFERENCE[1], "budgets": budgets}
    return [table | {"lines": list(lines.values())}] if lines else []


def _is_control(attack: str) -> bool:
    return attack in ATTACKS and find(ATTACKS, attack, "attack").control is None
