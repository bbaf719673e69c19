"""The papers' printed settings and numbers, ``papers/*/printed.toml``, and claims, ``papers/*/claims.toml``.

A dry run builds what every cell would use, without data and without training, and compares it with the paper's text.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel

from antiphase.studies.claims import Claim, joint
from antiphase.studies.spec import Cell, Profile, Study, closure

Verdict = Literal["same", "declared deviation", "differs"]
Facts = dict[str, tuple[Any, ...]]
PAPERS = Path(__file__).parent / "papers"


@dataclass(frozen=True)
class Line:
    """One setting of a study, as its paper's text prints it; the fields are those of the TOML files."""

    name: str  # see :func:`gather`
    paper: tuple[Any, ...]  # values over all cells of the study; empty if the paper prints none
    ours: tuple[Any, ...] | None = None  # None if they are the paper's
    source: str = ""
    quote: str = ""
    exact: bool = True
    repository: str = ""
    why: str = ""

    def verdict(self, values: tuple[Any, ...]) -> Verdict:
        """Compare the values in a study with the paper's and with the declared ones."""
        known: tuple[tuple[Any, Verdict], ...] = ((self.paper, "same"), (self.ours, "declared deviation"))
        for expected, verdict in known:
            required, used = (
                {round(float(one), 9) if isinstance(one, int | float) else one for one in side or ()}
                for side in (expected, values)
            )
            if expected and (required == used if self.exact else required <= used):
                return verdict
        return "differs"


def in_words(values: tuple[Any, ...]) -> str:
    """Return the values of a setting for a reader."""
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


@lru_cache
def _read(paper: str) -> dict[str, Any]:
    return tomllib.loads((PAPERS / paper / "printed.toml").read_text(encoding="utf-8"))


@lru_cache
def printed_settings(paper: str) -> dict[str, tuple[Line, ...]]:
    """Return the lines of every study of ``"robustness"`` or ``"diffclip"``; other groups have none."""
    if not (PAPERS / paper / "printed.toml").exists():
        return {}
    blocks = _read(paper)["setting"]
    every = [name for block in blocks if block["studies"] != "all" for name in block["studies"]]
    lines: dict[str, list[Line]] = {name: [] for name in every}
    for block in blocks:
        printed, declared = (_flat(block.get(whose, {})) for whose in ("paper", "ours"))
        about = {name: value for name, value in block.items() if name not in ("paper", "ours", "studies")}
        for name in printed | declared:
            line = Line(name, printed.get(name, ()), declared.get(name), **about)
            for study in lines if block["studies"] == "all" else block["studies"]:
                lines[study].append(line)
    return {study: tuple(group) for study, group in lines.items()}


def _flat(kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Name values by kind and name; a list has several, and a list in it is a tuple."""
    values = {f"{kind}.{name}": value for kind, names in kinds.items() for name, value in names.items()}
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return {name: tuple(tuple(one) if isinstance(one, list) else one for one in some) for name, some in lists.items()}


def printed_numbers(paper: str, study: str) -> pl.DataFrame:
    """Return the numbers of a paper's tables that belong to a study."""
    rows = []
    for block in _read(paper)["numbers"]:
        scale, keys = (100 if block.get("percent") else 1), block["keys"]
        for row in block["rows"] if block["study"] == study else ():
            for column, number in zip(block["columns"], row[len(keys) :], strict=True):
                mean, _, spread = str(number).partition(" ± ")
                value, sd = (round(float(text) / scale, 9) if text else None for text in (mean, spread))
                if value is not None:
                    rows.append(dict(zip(keys, row, strict=False)) | {"column": column, "value": value, "sd": sd})
    return pl.DataFrame(rows, schema_overrides={"sd": pl.Float64})


def text_of(study: Study) -> str:
    """Return a study's text, and below it the paper's numbers as tables in Markdown."""
    parts = [(study.text or "").strip()]
    for block in _read(study.paper)["numbers"] if printed_settings(study.paper) else ():
        if block["study"] == study.name:
            head = [*block["keys"], *block["columns"]]
            rows = [head, ["---"] * len(head), *block["rows"]]
            parts.append("\n".join(f"| {' | '.join(str(cell) or '–' for cell in row)} |" for row in rows))
            parts[-1] = f"The paper's numbers{' (percent)' if block.get('percent') else ''}:\n\n{parts[-1]}"
    return "\n\n".join(parts) + "\n"


def shown_settings(study: Study, profile: Profile) -> dict[str, str]:
    """Return the settings shown on a study's page: its own, and under the profile ``paper`` each deviation."""
    lines = deviations(study, profile)
    declared = {f"deviation in {line.name}": f"{in_words(line.ours or ())}. {line.why}" for line in lines}
    return {**study.settings(profile), **declared}


def deviations(study: Study, profile: Profile) -> list[Line]:
    """Return the lines in which a study deviates under the profile ``paper``; others are stand-ins throughout."""
    lines = printed_settings(study.paper).get(study.name, ()) if profile.name == "paper" else ()
    return [line for line in lines if line.why]


def note_of(study: Study, profile: Profile) -> list[str]:
    """Return the sentence that names a study's deviations next to its figures, if there are any."""
    names = ", ".join(dict.fromkeys(line.name for line in deviations(study, profile)))
    return [f"Declared deviations from the paper: {names}; the settings say which."] if names else []


def gather(study: Study, profile: Profile) -> Facts:
    """Return the values of each setting that the cells of a study would use; of random seeds, their number.

    A budget is in 255ths, as ``NAME_255``.
    """
    values: dict[str, dict[Any, None]] = {}
    for cell in closure(study.cells(profile)):
        for name, value in facts_of(cell):
            values.setdefault(name, {})[value] = None
    known = values.items()
    return dict((f"{key}s", (len(used),)) if key.endswith(".seed") else (key, tuple(used)) for key, used in known)


def facts_of(cell: Cell) -> Iterator[tuple[str, Any]]:
    """Yield names and values of what a cell would use; a name may come several times."""
    return (leaf for kind, used in cell.facts() for leaf in _leaves(f"{kind}.", used))


def _leaves(prefix: str, used: Any) -> Iterator[tuple[str, Any]]:
    for name, value in used.items() if isinstance(used, dict) else vars(used).items():
        if isinstance(value, BaseModel | dict):
            yield from _leaves(prefix if name == "model" else f"{prefix}{name}_", value)
        elif name in ("eps", "travel"):
            budgets = value if isinstance(value, tuple) else (value,)
            yield from ((f"{prefix}{name}_255", round(eps * 255, 6)) for eps in budgets)
        elif isinstance(value, tuple) and value and isinstance(value[0], str):
            yield from ((prefix + name, one) for one in value)
        elif value not in (None, "", ()):
            yield prefix + name, value


def compare(lines: tuple[Line, ...], facts: Facts) -> list[tuple[Line, tuple[Any, ...], Verdict]]:
    """Return every line of a paper's text, but for trainings if all models are given, with our values and verdict."""
    kinds = {name.partition(".")[0] for name in facts}
    left_out = {"train", "clip"} - kinds if "given" in kinds else set()
    kept = [line for line in lines if line.name.partition(".")[0] not in left_out]
    return [(line, values := facts.get(line.name, ()), line.verdict(values)) for line in kept]


def dry_run(study: Study, profile: Profile) -> Iterator[str]:
    """Yield how many cells were built, and a table of settings: ours, the paper's, equal or not."""
    facts = gather(study, profile)
    yield f"{study.name}: {len(closure(study.cells(profile)))} cells built"
    lines = compare(printed_settings(study.paper).get(study.name, ()), facts)
    rows = [(one.name, in_words(ours) or "nothing", in_words(one.paper) or "–", told) for one, ours, told in lines]
    for row in [("setting", "ours", "paper", "verdict")] * bool(rows) + rows:
        yield "  {:32}  {:24}  {:24}  {}".format(*row)
    yield from (f"given: {note}" for note in facts.get("given.note", ()))


RIGHT, WRONG, UNTESTED = "theorem, right", "theorem, wrong as printed", "not tested"


@lru_cache
def entries(paper: str) -> tuple[dict[str, Any], ...]:
    """Return the claims of a paper; none of a group that has no register."""
    file = PAPERS / paper / "claims.toml"
    return tuple(tomllib.loads(file.read_text(encoding="utf-8"))["claims"]) if file.exists() else ()


@lru_cache
def effects(paper: str) -> dict[str, tuple[float, ...]]:
    """Return what a paper prints for a claim's differences, by ``STUDY/CLAIM``: for each, or the smallest for all."""
    printed: dict[str, list[float]] = {}
    by_check: dict[str, tuple[float, ...]] = {}
    for entry in entries(paper):
        for claim in entry.get("claims", ()) if "effect" in entry else ():
            printed.setdefault(claim, []).extend(entry["effect"].get("difference", ()))
            by_check |= {claim: tuple(entry["effect"]["each"])} if "each" in entry["effect"] else {}
    return {claim: (max(0.0, min(sizes)),) for claim, sizes in printed.items() if sizes} | by_check


def outcome(entry: Mapping[str, Any], paper: str, claims: Mapping[str, Claim]) -> str:
    """Return what became of an entry: the joint verdict of the claims (``STUDY/CLAIM``) or parts that test it.

    A theorem is right or wrong by its proof, whatever its tests measure of one family of models.
    """
    proof = entry.get("proof", "")
    proved = (WRONG if proof.startswith("Wrong") or "Refuted" in proof else RIGHT) if proof else UNTESTED
    if entry.get("kind") == "theorem":
        return proved
    named = {one["name"]: one for one in entries(paper)}
    known: list[Any] = [outcome(named[part], paper, claims) for part in entry.get("parts", ())]
    listed = [claims[key] for key in entry.get("claims", ()) if key in claims]
    known += [claim.verdict for claim in listed if claim.verdict != "not run" and not claim.lacks_seeds]
    known = [verdict for verdict in known if verdict not in (UNTESTED, RIGHT, WRONG)]
    return joint(known) if known else proved


def outcomes(paper: str, claims: Mapping[str, Claim]) -> Counter[str]:
    """Count what became of a paper's claims."""
    return Counter(outcome(entry, paper, claims) for entry in entries(paper))
