"""All cards below a folder as one page: a table for each data set and norm, sortable by every column.

A model has one row, with its worst rate over all attacks at each ε. A control, such as noise, is no attack: its
rows are below the ranking.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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

_TABS = {
    "robust_accuracy": ("Robust accuracy", "correctly classified and not broken / all"),
    "asr": ("ASR", "broken / all"),
    "asr_correct": ("ASR, correct only", "correctly classified and broken / correctly classified"),
    "difference": (
        "Difference from the twin",
        "ASR of the model minus ASR of its twin, same images, in points",
    ),
}
_NORMS = {"linf": "L∞", "l2": "L2"}


@dataclass(frozen=True)
class Cell:
    """One cell: what it shows and what it is sorted by."""

    text: str
    value: str | float
    notes: tuple[str, ...] = ()
    link: str | None = None


@dataclass
class Table:
    """One table of a section: what it shows, its columns and rows."""

    name: str
    title: str
    formula: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    controls: list[tuple[Cell, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class _Line:
    """What one card says of one model under one attack."""

    card: RobustnessCard
    model: Model
    attack: str
    norm: str
    rates: tuple[Rates, ...]


def answer(options: LeaderboardOptions, _: str) -> Answer:
    """Write the page and say what is on it."""
    cards, left_out = find_cards(options.folder)
    out = options.folder / "leaderboard.html" if options.out is None else options.out
    page = write_leaderboard(cards, left_out, out)
    for line in left_out:
        say(f"left out: {line}")
    say(f"leaderboard of {len(cards)} card{'' if len(cards) == 1 else 's'}: {page}")
    return {"leaderboard": str(page), "cards": len(cards), "left_out": left_out, "rows": entries(cards)}


def find_cards(folder: Path) -> tuple[dict[Path, RobustnessCard], list[str]]:
    """Return the cards below a folder, and one line for each file that is no valid card.

    Raises:
        UserError: the folder is missing, or holds no card.
    """
    if not folder.is_dir():
        raise UserError(f"folder {shown(str(folder))}: no such directory; expected one with cards below it")
    found: dict[Path, RobustnessCard] = {}
    left_out: list[str] = []
    for path in sorted(folder.rglob(CARD)):
        try:
            found[path] = read_card(path)
        except UserError as error:
            left_out.append(str(error))
    if not found:
        first = f"; the first of {len(left_out)} that are not valid: {left_out[0]}" if left_out else ""
        raise UserError(f"folder {shown(str(folder))}: no {CARD} below it; antiphase audit writes one{first}")
    return found, left_out


def entries(cards: dict[Path, RobustnessCard]) -> list[dict[str, Any]]:
    """Return one row for each model, attack and ε, without those that several cards repeat."""
    where = {id(card): str(path) for path, card in cards.items()}
    found = []
    for line in _lines(cards.values()):
        card, model = line.card, line.model
        for at in line.rates:
            apart = next(
                (
                    one
                    for one in card.differences
                    if (one.model, one.attack, one.norm, one.eps) == (model.name, at.attack, at.norm, at.eps)
                ),
                None,
            )
            found.append(
                {
                    "name": model.name,
                    "role": model.role,
                    "attention": model.attention,
                    "architecture": model.architecture,
                    "seed": model.seed,
                    "dataset": card.data.dataset,
                    "split": card.data.split,
                    "n": card.data.n,
                    "attack": at.attack,
                    "autoattack": card.attack.autoattack and at.attack == card.attack.name,
                    "control": _is_control(at.attack),
                    "norm": at.norm,
                    "eps": at.eps,
                    "clean_accuracy": model.clean_accuracy.value,
                    "asr": at.asr.value,
                    "asr_correct": None if at.asr_correct is None else at.asr_correct.value,
                    "robust_accuracy": at.robust_accuracy.value,
                    "difference": None if apart is None else apart.difference,
                    "against": None if apart is None else apart.against,
                    "card": where[id(card)],
                }
            )
    return found


def write_leaderboard(cards: dict[Path, RobustnessCard], left_out: Sequence[str], out: Path) -> Path:
    """Write the page, which is self-contained, and return its path."""
    lines = list(_lines(cards.values()))
    sections = [
        {"id": f"section-{at}", "title": title, "tables": _tables(f"s{at}", own)}
        for at, (title, own) in enumerate(_by_section(lines).items())
    ]
    models = len({line.model.weights for line in lines})
    page = (
        environment()
        .get_template("leaderboard.html")
        .render(sections=sections, cards=len(cards), models=models, left_out=left_out)
    )
    write_text(out, page)
    return out


def _lines(cards: Any) -> Iterator[_Line]:
    """Yield each model under each attack, once where several cards say the same."""
    seen = set()
    for card in cards:
        for model in card.models:
            groups: dict[tuple[str, str], list[Rates]] = {}
            for at in model.rates:
                groups.setdefault((at.attack, at.norm), []).append(at)
            for (attack, norm), rates in groups.items():
                what = json.dumps([at.model_dump(mode="json") for at in rates])
                settings = json.dumps(card.attack.settings, sort_keys=True)
                key = (model.weights, card.data.fingerprint, attack, norm, settings, what)
                if key not in seen:
                    seen.add(key)
                    yield _Line(card, model, attack, norm, tuple(rates))


def _by_section(lines: Sequence[_Line]) -> dict[str, list[_Line]]:
    found: dict[str, list[_Line]] = {}
    for line in lines:
        title = f"{line.card.data.dataset} ({line.card.data.split}), {_NORMS[line.norm]}"
        found.setdefault(title, []).append(line)
    return found


def _tables(name: str, lines: Sequence[_Line]) -> list[Table]:
    budgets = sorted({at.eps for line in lines for at in line.rates})
    columns = ("Model", "Attack", "Images", "Clean", *map(eps_label, budgets))
    tables = []
    for metric in ("robust_accuracy", "asr", "asr_correct"):
        table = Table(f"{name}-{metric}", *_TABS[metric], columns)
        best = -1.0 if metric == "robust_accuracy" else 1.0
        for same in _by_model(lines):
            cells = (_worst(same, metric, eps, best) for eps in budgets)
            row = (*_described(same), _rate(same[0].model.clean_accuracy), *cells)
            (table.controls if _is_control(same[0].attack) else table.rows).append(row)
        table.rows.sort(key=lambda row, sign=best: [_sorted(cell, sign) for cell in row[4:]])
        tables.append(table)
    if apart := _differences(name, lines, budgets):
        tables.append(apart)
    return tables


def _is_control(attack: str) -> bool:
    return attack in ATTACKS and find(ATTACKS, attack, "attack").control is None


def _by_model(lines: Sequence[_Line]) -> list[list[_Line]]:
    """Group what is said of the same weights on the same images; controls are by themselves."""
    found: dict[Any, list[_Line]] = {}
    for line in lines:
        control = line.attack if _is_control(line.attack) else None
        found.setdefault((line.model.weights, line.card.data.fingerprint, control), []).append(line)
    return list(found.values())


def _worst(same: Sequence[_Line], metric: str, eps: float, sign: float) -> Cell:
    """Return the worst rate of a model over its attacks, named if there are several."""
    rates = [
        (rate, line.attack, line.norm)
        for line in same
        for at in line.rates
        if at.eps == eps and (rate := getattr(at, metric)) is not None
    ]
    rate, attack, norm = max(rates, key=lambda one: sign * one[0].value, default=(None, "", ""))
    cell = _rate(rate)
    several = rate is not None and len({line.attack for line in same}) > 1
    return replace(cell, notes=(*cell.notes, attack_label(attack, norm))) if several else cell


def _sorted(cell: Cell, sign: float) -> float:
    return 2.0 if cell.value == "" else sign * float(cell.value)  # a rate that is not there comes last


def _described(same: Sequence[_Line]) -> tuple[Cell, ...]:
    model, data = same[0].model, same[0].card.data
    notes = [model.attention, *(["twin"] if model.role == "twin" else [])]
    notes += [model.venue] if model.venue else []
    labels = ", ".join(dict.fromkeys(attack_label(line.attack, line.norm) for line in same))
    own = same[0].card.attack.settings.get(same[0].attack, {})
    steps = (
        (f"{own['steps']} steps",) if len(same) == 1 and isinstance(own, dict) and own.get("steps") else ()
    )
    return (
        Cell(model.name, model.name, (", ".join(notes),), model.link),
        Cell(labels, labels, ("control",) if _is_control(same[0].attack) else steps),
        Cell(f"{data.n:,}", data.n),
    )


def _rate(rate: Rate | None) -> Cell:
    if rate is None:
        return Cell("–", "")
    return Cell(percent(rate.value), rate.value, (percent_range(rate.low, rate.high),))


def _differences(name: str, lines: Sequence[_Line], budgets: Sequence[float]) -> Table | None:
    columns = ("Model − twin", "Attack", "Images", *map(eps_label, budgets))
    table = Table(f"{name}-difference", *_TABS["difference"], columns)
    cards = list({id(line.card): line.card for line in lines}.values())
    norms = {line.norm for line in lines}
    for card in cards:
        groups: dict[tuple[str, str, str], dict[float, Difference | MeanDifference]] = {}
        for mean in card.mean_differences:
            title = f"{mean.family} − {mean.against_family}"
            groups.setdefault((title, f"mean of {mean.seeds} seeds", mean.attack), {})[mean.eps] = mean
        for one in card.differences:
            if one.norm in norms:
                groups.setdefault((f"{one.model} − {one.against}", "", one.attack), {})[one.eps] = one
        for (title, note, attack), found in groups.items():
            label = attack_label(attack, card.attack.norm)
            head = (
                Cell(title, title, (note,) if note else ()),
                Cell(label, label),
                Cell(f"{card.data.n:,}", card.data.n),
            )
            row = (*head, *(_difference(found.get(eps)) for eps in budgets))
            (table.controls if _is_control(attack) else table.rows).append(row)
    return table if table.rows or table.controls else None


def _difference(one: Difference | MeanDifference | None) -> Cell:
    if one is None:
        return Cell("–", "")
    p_value = (p_text(one.p_value),) if isinstance(one, Difference) else ()
    return Cell(points(one.difference), one.difference, (points_range(one.low, one.high), *p_value))
