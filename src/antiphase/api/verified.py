"""A robustness card checked: the audit that it describes is done again and compared."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.arguments import validated
from antiphase.commands.live_objects import PREFIX
from antiphase.commands.loading import check_code
from antiphase.commands.run_folder import run_folder
from antiphase.errors import UserError, shown
from antiphase.report.card.comparing import Disagreement, count_numbers, disagreements
from antiphase.report.card.model import RobustnessCard
from antiphase.report.card.reading import read_card
from antiphase.report.card.writer import card_of_run, write_card
from antiphase.report.runs.page import write_report
from antiphase.runs.options.attack import AttackOptions, AuditOptions
from antiphase.runs.options.verify import VerifyOptions


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
        **options: fields of :class:`~antiphase.runs.options.verify.VerifyOptions`.

    Raises:
        UserError: the card is damaged or was altered, or its audit cannot be repeated here.
    """
    return verified(VerifyOptions(card=Path(card), **options))


def verified(options: VerifyOptions) -> Verification:
    """Do what ``antiphase verify`` does.

    Raises:
        UserError: as :func:`verify`.
    """
    from antiphase.runs.audit import Audit, prepare

    card = read_card(options.card)
    with _place(options.out) as out:
        audit = prepare(_repeated(card, options, out), f"antiphase verify {options.card}")
        if not isinstance(audit, Audit):
            raise UserError(f"card {shown(str(options.card))}: its options are of POPE, which has no card")
        reason = _other_inputs(card, *audit.fingerprints())
        if reason:
            return Verification(card, reason)
        kind = "attack" if card.command == "attack" else "audit"
        with run_folder(out, kind):
            audit.run()
            if options.out is not None:
                write_report(out)
                write_card(out)
            again = card_of_run(out)
    assert again is not None
    apart = disagreements(card, again, options.tolerance / 100)
    return Verification(card, "", tuple(apart), tuple(_notes(card, again)), count_numbers(card))


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
