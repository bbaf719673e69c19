"""Studies as declarations: their words are in ``studies.toml`` of a paper, their sizes in ``profiles.toml``."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from jinja2 import Environment, StrictUndefined

from antiphase.studies.cells.training import OTHER_START
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import over
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.paper_settings import effects
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study
from antiphase.terminal import eps_label

Checks = Mapping[str, Sequence[Check]]
"""The checks of claims by name."""
Bench = TypeVar("Bench")


def listed(fields: Mapping[str, Any], before: str = "") -> str:
    """Return fields as ``name value``, with commas between them and some words before them."""
    return before * bool(fields) + ", ".join(f"{name} {value}" for name, value in fields.items())


_TEMPLATES = Environment(undefined=StrictUndefined, autoescape=False)  # plain text
_TEMPLATES.filters |= {"eps": eps_label, "listed": listed}


_SETTINGS_OF = {
    "PGD": {"pgd", "patch", "Transfer"},
    "AutoAttack": {"autoattack"},
    "CW": {"carlini-wagner"},
    "sensitivity": {"Sense", "Radius"},
    **{one: {"pgd", "patch", "autoattack", "carlini-wagner"} for one in ("runs", "ε", "search", "label", "verdicts")},
}  # cells that settings are shown with, by the last word of their names


def filled(words: str, **values: Any) -> str:
    """Return words with values in the places that double braces name."""
    return _TEMPLATES.from_string(words).render(values)


@dataclass(frozen=True)
class Paper:
    """The words and sizes of a paper's studies, which are in a folder's ``studies.toml`` and ``profiles.toml``."""

    name: str
    folder: Path

    @cached_property
    def words(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "studies.toml").read_text(encoding="utf-8"))

    def benches(self, kind: type[Bench]) -> dict[str, Bench]:
        """Return the sizes of every profile; lists are tuples."""
        text = (self.folder / "profiles.toml").read_text(encoding="utf-8")
        return {name: kind(**_tupled(fields)) for name, fields in tomllib.loads(text)[kind.__name__].items()}

    def study(
        self,
        name: str,
        cells: Callable[[Profile], Sequence[Cell]],
        draw: Callable[[RowsByTable], Artefact],
        checks: Callable[[RowsByTable], Checks],
        settings: Callable[[Profile], Mapping[str, str]],
        by_data: bool = False,
        fill: Callable[[RowsByTable], Mapping[str, Any]] = lambda rows: {},
    ) -> Study:
        words = self.words[name]
        shared = {field: words[field] for field in ("source", "margin", "paper") if field in words}

        def stated(checks: Checks, values: Mapping[str, Any]) -> Iterator[Claim]:
            for key, some in checks.items():
                entry = words["claims"][key]
                fields: dict[str, Any] = shared | (entry if isinstance(entry, dict) else {"statement": entry})
                fields["exceptions"] = len(some) // fields.pop("one_of", len(some) + 1)  # one of so many need not hold
                fields["statement"] = filled(fields["statement"], **values)
                printed = effects(fields.get("paper", self.name)).get(f"{name}/{key}", ())
                yield Claim(key, checks=some, effects=printed, **fields)

        def claims(rows: RowsByTable) -> list[Claim]:
            values = fill(rows)
            if not by_data:
                return list(stated(checks(rows), values))
            parts: dict[str, dict[str, Claim]] = {}  # a claim has to hold on every data set
            for data in pl.concat(frame["data"] for frame in rows.values()).unique(maintain_order=True):
                subset = {table: frame.filter(data=data) for table, frame in rows.items()}
                for claim in stated(checks(subset), values):
                    parts.setdefault(claim.name, {})[data] = claim
            return list(map(_joined, parts.values()))

        told = words["label"], words["title"], words["text"]
        return Study(name, self.name, *told, cells, draw, claims, lambda p: _as_used(settings(p), cells(p)))

    def plot(
        self,
        name: str,
        drawn: Sequence[Panel],
        columns: int = 2,
        samples: str = "images",
        caption: str = "",
        **values: Any,
    ) -> Plot:
        """Return a figure under its caption, which may name what the intervals are ``over``."""
        told = over(*(panel.points for panel in drawn), samples=samples) if drawn else ""
        return Plot(name, filled(self.words["captions"][caption or name], over=told, **values), tuple(drawn), columns)

    def settings(self, *kinds: str, **values: Any) -> dict[str, str]:
        """Return the settings of some kinds as a page shows them; those that come out empty are left out."""
        templates = {name: words for kind in kinds for name, words in self.words["settings"][kind].items()}
        shown = {name: filled(words, **values) for name, words in templates.items()}
        return {name: value for name, value in shown.items() if value}


def _as_used(shown: Mapping[str, str], cells: Sequence[Cell]) -> dict[str, str]:
    """Return settings without those of attacks and measurements that none of the cells makes."""
    made = {getattr(cell, "name", type(cell).__name__) for cell in cells}
    return {name: value for name, value in shown.items() if made & _SETTINGS_OF.get(name.split(" ")[-1], made)}


def _joined(parts: Mapping[str, Claim]) -> Claim:
    """Join what is claimed of several data sets; each check says its own, and its initial weights, if others differ."""
    split, checks = {data: data.partition(OTHER_START) for data in parts}, list[Check]()
    names = [name for name, *_ in split.values()]
    for (name, other, _), claim in zip(split.values(), parts.values(), strict=True):
        words = [f", {name}"] * (len(set(names)) > 1) + [other or ", uniform"] * (names.count(name) > 1)
        checks += [replace(check, what="".join([check.what, *words])) for check in claim.checks]
    return replace(next(iter(parts.values())), checks=checks)


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tupled(one) for name, one in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
