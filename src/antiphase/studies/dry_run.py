"""A study without data and without training: everything is built and compared with the paper's text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from antiphase.studies.deviations import TRANSCRIBED
from antiphase.studies.facts import facts_of
from antiphase.studies.identity import identity
from antiphase.studies.papers.transcription import Line, Verdict, in_words
from antiphase.studies.spec import Profile, Study, closure

Facts = dict[str, tuple[Any, ...]]
_WIDE = 40  # characters of a column; longer values shift what follows


@dataclass(frozen=True)
class Compared:
    """One setting as the study has it and as the paper gives it.

    Attributes:
        line: of the paper's text.
        found: values over the study's cells, in the order of the cells.
    """

    line: Line
    found: tuple[Any, ...]

    @property
    def verdict(self) -> Verdict:
        """Whether the study has what the paper gives, a declared deviation, or something else."""
        return self.line.verdict(self.found)


def gather(study: Study, profile: Profile) -> Facts:
    """Build what every cell of a study would use; return the values of each fact.

    Of a random seed, ``NAME.seed``, only the number of its values is returned, as ``NAME.seeds``.

    Raises:
        UserError: something cannot be built.
    """
    found: dict[str, dict[Any, None]] = {}
    for cell in closure(study.cells(profile), identity):
        for name, value in facts_of(cell):
            found.setdefault(name, {})[value] = None
    seeds = {f"{name}s": (len(values),) for name, values in found.items() if name.endswith(".seed")}
    return {name: tuple(values) for name, values in found.items() if not name.endswith(".seed")} | seeds


def compare(lines: tuple[Line, ...], facts: Facts) -> list[Compared]:
    """Return every line of a paper's text with what a study has.

    If all models are given instead of trained, the lines of their training are left out.
    """
    kinds = {name.partition(".")[0] for name in facts}
    left_out = {"train", "clip"} - kinds if "given" in kinds else set()
    return [
        Compared(line, facts.get(line.name, ()))
        for line in lines
        if line.name.partition(".")[0] not in left_out
    ]


def dry_run(study: Study, profile: Profile) -> Iterator[str]:
    """Yield lines for a reader: what was built, and under the profile ``paper`` how it compares with the paper.

    Raises:
        UserError: something cannot be built.
    """
    facts = gather(study, profile)
    yield f"{study.name}: {len(closure(study.cells(profile), identity))} cells built"
    lines = TRANSCRIBED.get(study.name, ()) if profile.name == "paper" else ()
    if lines:
        yield from _table(compare(lines, facts))
    said = {line.name for line in lines}
    for name, values in facts.items():
        if name == "attack.settings":
            yield f"  {name} = {'; '.join(_stage(*value) for value in values)}"
        elif name not in said and not name.startswith(
            "attack."
        ):  # the line of settings says all of an attack
            yield f"  {name} = {in_words(values)}"


def _table(compared: list[Compared]) -> Iterator[str]:
    """Yield for each setting a row of name, paper's value, ours and verdict, and below it the paper's words."""
    head = ("setting", "paper", "ours", "verdict")
    rows = [
        (each.line.name, in_words(each.line.values) or "–", in_words(each.found) or "nothing", _verdict(each))
        for each in compared
    ]
    widths = [min(_WIDE, max(len(row[column]) for row in (head, *rows))) for column in range(3)]
    for row, each in zip((head, *rows), (None, *compared), strict=True):
        fields = [field.ljust(width) for field, width in zip(row, widths, strict=False)]
        yield "  " + "  ".join([*fields, row[3]])
        if each is not None:
            yield f"      {_source(each.line)}"


def _verdict(each: Compared) -> str:
    return f"{each.verdict}: {each.line.why}" if each.verdict == "declared deviation" else each.verdict


def _source(line: Line) -> str:
    """Return where the paper prints a value, and its words."""
    words = f"“{line.quote}”" if line.quote else "not printed"
    code = f"; value from the code of {line.repository}" if line.repository else ""
    return ": ".join(filter(None, (line.source, words))) + code


def _stage(name: str, settings: tuple[tuple[str, Any], ...]) -> str:
    given = (f"{setting} {'none' if value is None else value}" for setting, value in settings)
    return f"{name}: {', '.join(given)}"
