"""A study without data and without training: everything is built and compared with the paper's table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from antiphase.studies.facts import facts_of
from antiphase.studies.identity import identity
from antiphase.studies.papers.hyperparameters import DIFFCLIP, ROBUSTNESS, Line
from antiphase.studies.spec import Profile, Study, closure

TABLES: dict[str, tuple[Line, ...]] = {**ROBUSTNESS, **DIFFCLIP}


@dataclass(frozen=True)
class Compared:
    """One setting as the study has it and as the paper gives it.

    Attributes:
        line: of the paper's table.
        ours: values over the study's cells, in the order of the cells.
    """

    line: Line
    ours: tuple[Any, ...]

    @property
    def agrees(self) -> bool:
        """Whether the study has what the paper gives."""
        ours, theirs = ({_key(value) for value in values} for values in (self.ours, self.line.values))
        return ours == theirs if self.line.exact else theirs <= ours


def _key(value: Any) -> Any:
    return round(float(value), 9) if isinstance(value, int | float) else value


def gather(study: Study, profile: Profile) -> dict[str, tuple[Any, ...]]:
    """Build what every cell of a study would use; return the values of each fact.

    Raises:
        UserError: something cannot be built.
    """
    found: dict[str, dict[Any, None]] = {}
    for cell in closure(study.cells(profile), identity):
        for name, value in facts_of(cell):
            found.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in found.items()}


def compare(study: Study, profile: Profile) -> list[Compared]:
    """Return every line of the paper's table for a study beside what the study has.

    Where models are given instead of trained, the lines of their training are left out.
    """
    ours = gather(study, profile)
    lines = [
        line for line in TABLES.get(study.name, ()) if not (profile.models and line.name.startswith("clip."))
    ]
    return [Compared(line, ours.get(line.name, ())) for line in lines]


def dry_run(study: Study, profile: Profile) -> Iterator[str]:
    """Yield lines for a reader: what was built, and under the profile ``paper`` what agrees with the paper."""
    ours = gather(study, profile)
    cells = closure(study.cells(profile), identity)
    yield f"{study.name}: {len(cells)} cells built"
    if profile.name == "paper":
        for each in compare(study, profile):
            mark = "agrees" if each.agrees else "DIFFERS"
            theirs = ", ".join(map(_word, each.line.values))
            shown = ", ".join(map(_word, each.ours)) or "nothing"
            yield f"  {mark}: {each.line.name} = {shown} (paper: {theirs}; {each.line.source})"
        said = {line.name for line in TABLES.get(study.name, ())}
    else:
        said = set()
    for name, values in ours.items():
        if name == "attack.settings":
            yield f"  {name} = {'; '.join(_stage(*value) for value in values)}"
        elif name not in said and not name.startswith(
            "attack."
        ):  # the line of settings says all of an attack
            yield f"  {name} = {', '.join(map(_word, values))}"


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _stage(name: str, settings: tuple[tuple[str, Any], ...]) -> str:
    given = (f"{setting} {'none' if value is None else value}" for setting, value in settings)
    return f"{name}: {', '.join(given)}"
