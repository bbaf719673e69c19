"""A robustness card checked: the audit that it describes is done again and compared."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.arguments import validated
from antiphase.commands import find_command
from antiphase.commands.audit.card import BY_HAND, RobustnessCard, card_of_run, read_card
from antiphase.commands.audit.options import AttackOptions, AuditOptions
from antiphase.commands.command import Answer, Refusal
from antiphase.commands.live_objects import PREFIX
from antiphase.commands.loading import check_code
from antiphase.commands.result import read_result
from antiphase.commands.run_folder import run_folder
from antiphase.commands.verify.options import VerifyOptions
from antiphase.errors import UserError, shown
from antiphase.report.table import Field, Table
from antiphase.terminal import console, say

_ELSEWHERE = ("versions", "hardware", "warnings", "options", "command")  # of the machine, not of the models
_RATES = ("value", "low", "high", "difference")  # in shares, so that a tolerance in points applies
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Disagreement:
    """One field in which two cards differ.

    Attributes:
        field: its place, such as ``models[0].rates[1].asr.value``.
        card: what the card says.
        measured: what was measured again.
    """

    field: str
    card: Any
    measured: Any


@dataclass(frozen=True)
class Verification:
    """Whether a card is confirmed, and what speaks against it.

    Attributes:
        card: as it was read.
        reason: why nothing was measured: weights or data are others than those of the card; empty otherwise.
        differences: fields that differ.
        notes: what is not compared but differs, such as versions.
        numbers: how many numbers were compared.
    """

    card: RobustnessCard
    reason: str = ""
    differences: tuple[Disagreement, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: int = 0

    @property
    def confirmed(self) -> bool:
        """Whether weights, data and all numbers agree."""
        return not self.reason and not self.differences

    def __repr__(self) -> str:
        if self.confirmed:
            return f"confirmed: {self.numbers} numbers of {self.card.name} agree"
        if self.reason:
            return f"not confirmed: {self.reason}"
        fields = ", ".join(one.field for one in self.differences[:3])
        more = f" and {len(self.differences) - 3} more" if len(self.differences) > 3 else ""
        return f"not confirmed: {fields}{more} of {self.card.name} differ"


@validated
def verify(card: str | Path, **options: Any) -> Verification:
    """Measure again what a robustness card says and compare, as ``antiphase verify`` does.

    Hashes of weights and data come first: if one differs, nothing is attacked.

    Args:
        card: ``card.json``, or the directory of the audit that wrote it.
        **options: fields of :class:`~antiphase.commands.verify.options.VerifyOptions`.

    Raises:
        UserError: the card is damaged or was altered, or its audit cannot be repeated here.
    """
    return verified(VerifyOptions(card=Path(card), **options))


def verified(options: VerifyOptions) -> Verification:
    """Do what ``antiphase verify`` does.

    Raises:
        UserError: as :func:`verify`.
    """
    from antiphase.commands.audit.run import fingerprints

    card = read_card(options.card)
    with _place(options.out) as out:
        repeated = _repeated(card, options, out)
        if repeated.questions:
            raise UserError(
                f"card {shown(str(options.card))}: its options are of questions, which have no card"
            )
        if reason := _other_inputs(card, *fingerprints(repeated)):
            return Verification(card, reason)
        kind = "attack" if card.command == "attack" else "audit"
        with run_folder(out, kind):
            find_command(kind).function()(repeated, f"antiphase verify {options.card}")
            result: Any = read_result(out, kind)
            if options.out is not None:
                result.write_report(out)
            again = card_of_run(result)
    assert again is not None
    apart = disagreements(card, again, options.tolerance / 100)
    return Verification(card, "", tuple(apart), tuple(_notes(card, again)), count_numbers(card))


def answer(options: VerifyOptions, _: str) -> Answer:
    """Print what differs, and return it; a ``Refusal`` if the card is not confirmed."""
    verification = verified(options)
    if verification.differences:
        rows = (
            (Field(one.field, kind="name"), Field(_text(one.card)), Field(_text(one.measured)))
            for one in verification.differences
        )
        console().print(Table("differences", "", ("field", "card", "measured"), tuple(rows), "").console())
    for note in verification.notes if not verification.confirmed else ():
        say(f"note: {note}")
    say(repr(verification))
    content = {
        "card": str(options.card),
        "name": verification.card.name,
        "confirmed": verification.confirmed,
        "reason": verification.reason,
        "numbers": verification.numbers,
        "differences": [asdict(one) for one in verification.differences],
        "notes": list(verification.notes),
        "out": None if options.out is None else str(options.out),
    }
    return content if verification.confirmed else Refusal(content)


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _repeated(card: RobustnessCard, options: VerifyOptions, out: Path) -> AuditOptions:
    """Return the options of the audit, with this machine's place and device."""
    kind = AttackOptions if card.command == "attack" else AuditOptions
    mine = {"out": out, "device": options.device, "quiet": options.quiet, "sense_limit": 0}
    found = kind.from_file(card.options, **mine)
    models = [spec.strip() for spec in (*found.model, *found.against)]
    if held := [one for one in (*models, found.data or "") if one.startswith(PREFIX)]:
        raise UserError(
            f"card {shown(str(options.card))}: {held[0]} was an object of a Python session and cannot be loaded again; "
            "expected models and data given by name"
        )
    check_code(found, options.run_code, f"card {shown(str(options.card))}")
    return found


def _other_inputs(card: RobustnessCard, weights: dict[str, str], data: str) -> str:
    """Say which weights or data are not those of the card; nothing if all are."""
    expected = {model.name: model for model in card.models}
    if set(weights) != set(expected):
        return f"the card is of {', '.join(expected)}, its options name {', '.join(weights)}"
    for name, found in weights.items():
        if found != expected[name].weights:
            return (
                f"weights of {name}: {expected[name].spec} has SHA-256 {found[:12]}…, the card says "
                f"{expected[name].weights[:12]}…"
            )
    if data != card.data.fingerprint:
        return (
            f"data: {card.data.dataset} has SHA-256 {data[:12]}…, the card says {card.data.fingerprint[:12]}…"
        )
    return ""


def _notes(card: RobustnessCard, again: RobustnessCard) -> Iterator[str]:
    for name, version in card.versions.items():
        if again.versions.get(name) != version:
            yield f"{name} {version} in the card, {again.versions.get(name, 'none')} here"
    if card.hardware != again.hardware:
        yield f"hardware {card.hardware} in the card, {again.hardware} here"


@contextlib.contextmanager
def _place(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        yield Path(name) / "run"


def disagreements(card: RobustnessCard, again: RobustnessCard, tolerance: float = 0.0) -> list[Disagreement]:
    """Return every field of a card that does not agree with a second measurement.

    Machine, versions, warnings and what was filled in by hand are not compared.

    Args:
        card: as published.
        again: of the repeated audit.
        tolerance: by how much rates, differences and the ends of their intervals may differ, as a share in [0, 1].
            If it is above zero, p-values are not compared.
    """
    return [
        Disagreement(place, one, other)
        for place, one, other in _pairs(card.content(), again.content(), "")
        if not _agree(place, one, other, tolerance)
    ]


def count_numbers(card: RobustnessCard) -> int:
    """Return how many numbers of a card are compared."""
    content = card.content()
    return sum(
        isinstance(one, float | int) and not isinstance(one, bool)
        for _, one, _ in _pairs(content, content, "")
    )


def _pairs(one: Any, other: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if key not in BY_HAND and (place or key not in _ELSEWHERE):
                yield from _pairs(one.get(key), other.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        for at in range(max(len(one), len(other))):
            mine, others = (each[at] if at < len(each) else None for each in (one, other))
            yield from _pairs(mine, others, f"{place}[{at}]")
    else:
        yield place, one, other


def _agree(place: str, one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one == other
    name = place.rpartition(".")[2]
    if tolerance and name == "p_value":
        return True
    of_rates = name in _RATES and place.startswith(("models", "differences", "mean_differences"))
    return abs(one - other) <= (tolerance if of_rates else 0.0) + _ROUNDING
