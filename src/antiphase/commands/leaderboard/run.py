"""All cards below a folder as one page: a table for each data set and norm, sortable by every column.

A model has one row, with its worst rate over all attacks at each ε. A control, such as noise, is no attack: its
rows are below the ranking.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.budgets import eps_label
from antiphase.commands.audit.card import (
    CARD,
    Difference,
    MeanDifference,
    Model,
    Rate,
    Rates,
    RobustnessCard,
    read_card,
)
from antiphase.commands.command import Answer
from antiphase.commands.leaderboard import LeaderboardOptions
from antiphase.errors import UserError, shown
from antiphase.files import write_text
from antiphase.registry import ATTACKS, find
from antiphase.report.page import environment
from antiphase.report.words import attack_label, p_text, percent, percent_range, points, points_range
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
class Cell:
    """One cell: what it shows and what it is sorted by."""

    text: str
    value: str | float = ""
    notes: tuple[str, ...] = ()
    link: str | None = None


@dataclass(frozen=True)
class Table:
    """One table of a section; ``controls`` are its rows below the ranking."""

    title: str
    formula: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    controls: list[tuple[Cell, ...]]


@dataclass(frozen=True)
class Row:
    """What one card says of one model under one attack at one ε."""

    path: Path
    card: RobustnessCard
    model: Model
    rates: Rates

    @property
    def label(self) -> str:
        """Name of the attack with its norm."""
        return attack_label(self.rates.attack, self.rates.norm)


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
    """Return the cards below a folder, and one line for each file that is no valid card.

    Raises:
        UserError: the folder is missing, or holds no card.
    """
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
        "name": model.name,
        "role": model.role,
        "attention": model.attention,
        "architecture": model.architecture,
        "seed": model.seed,
        "dataset": card.data.dataset,
        "split": card.data.split,
        "n": card.data.n,
        "attack": rates.attack,
        "autoattack": card.attack.autoattack and rates.attack == card.attack.name,
        "control": _is_control(rates.attack),
        "norm": rates.norm,
        "eps": rates.eps,
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
    rows = rows_of(cards)
    by_title: dict[str, list[Row]] = {}
    for row in rows:
        title = f"{row.card.data.dataset} ({row.card.data.split}), {_NORMS[row.rates.norm]}"
        by_title.setdefault(title, []).append(row)
    page = environment().get_template("leaderboard.html")
    sections = [
        {"title": title, "tables": [*rate_tables(rows), *difference_tables(rows)]}
        for title, rows in by_title.items()
    ]
    models = len({row.model.weights for row in rows})
    write_text(out, page.render(sections=sections, cards=len(cards), models=models, left_out=left_out))
    return out


def rate_tables(rows: Sequence[Row]) -> list[Table]:
    """Tabulate every rate of the models on one data set under one norm, the most robust first."""
    budgets = sorted({row.rates.eps for row in rows})
    by_model: dict[Any, list[Row]] = {}
    for row in rows:
        control = row.rates.attack if _is_control(row.rates.attack) else ""
        by_model.setdefault((row.model.weights, row.card.data.fingerprint, control), []).append(row)
    tables = []
    for metric, (title, formula, sign) in _METRICS.items():
        lines = {}
        for (*_, control), same in by_model.items():
            worst = [_worst(same, metric, eps, sign) for eps in budgets]
            order = tuple(2.0 if cell.value == "" else sign * float(cell.value) for cell in worst)
            line = (*_described(same, control), _rate(same[0].model.clean_accuracy), *worst)
            lines[bool(control), order, len(lines)] = line
        columns = ("Model", "Attack", "Images", "Clean", *map(eps_label, budgets))
        ranked, controls = ([lines[key] for key in sorted(lines) if key[0] == side] for side in (False, True))
        tables.append(Table(title, formula, columns, ranked, controls))
    return tables


def difference_tables(rows: Sequence[Row]) -> list[Table]:
    """Tabulate the differences from twins, if there are any."""
    budgets, norms = sorted({row.rates.eps for row in rows}), {row.rates.norm for row in rows}
    ranked: list[tuple[Cell, ...]] = []
    controls: list[tuple[Cell, ...]] = []
    for card in {row.path: row.card for row in rows}.values():
        lines: dict[tuple[str, str, str], dict[float, Cell]] = {}
        for mean in card.mean_differences:
            key = (f"{mean.family} − {mean.against_family}", f"mean of {mean.seeds} seeds", mean.attack)
            lines.setdefault(key, {})[mean.eps] = _difference(mean)
        for one in card.differences:
            if one.norm in norms:
                key = (f"{one.model} − {one.against}", "", one.attack)
                lines.setdefault(key, {})[one.eps] = _difference(one, p_text(one.p_value))
        for (title, note, attack), cells in lines.items():
            label = attack_label(attack, card.attack.norm)
            head = (Cell(title, title, (note,)), Cell(label, label), Cell(f"{card.data.n:,}", card.data.n))
            line = (*head, *(cells.get(eps, Cell("–")) for eps in budgets))
            (controls if _is_control(attack) else ranked).append(line)
    columns = ("Model − twin", "Attack", "Images", *map(eps_label, budgets))
    return [Table(*_DIFFERENCE, columns, ranked, controls)] if ranked or controls else []


def _is_control(attack: str) -> bool:
    return attack in ATTACKS and find(ATTACKS, attack, "attack").control is None


def _worst(same: Sequence[Row], metric: str, eps: float, sign: int) -> Cell:
    """Return the worst rate of a model over its attacks, named if there are several."""
    rates = [
        (rate, row.label) for row in same if row.rates.eps == eps and (rate := getattr(row.rates, metric))
    ]
    if not rates:
        return Cell("–")
    rate, label = max(rates, key=lambda pair: sign * pair[0].value)
    return _rate(rate, *([label] if len({row.label for row in same}) > 1 else []))


def _described(same: Sequence[Row], control: str) -> tuple[Cell, ...]:
    """Return the cells of the model, its attacks and the number of images."""
    model, n = same[0].model, same[0].card.data.n
    notes = [model.attention, "twin" if model.role == "twin" else "", model.venue or ""]
    labels = ", ".join(dict.fromkeys(row.label for row in same))
    return (
        Cell(model.name, model.name, (", ".join(filter(None, notes)),), model.link),
        Cell(labels, labels, ("control",) if control else ()),
        Cell(f"{n:,}", n),
    )


def _rate(rate: Rate, *notes: str) -> Cell:
    return Cell(percent(rate.value), rate.value, (percent_range(rate.low, rate.high), *notes))


def _difference(row: Difference | MeanDifference, *notes: str) -> Cell:
    return Cell(points(row.difference), row.difference, (points_range(row.low, row.high), *notes))
