"""A robustness card checked: the audit that it describes is done again and compared."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from antiphase import arguments, terminal
from antiphase.commands import find_command, loading, run_folder
from antiphase.commands.audit import AttackOptions, AuditOptions
from antiphase.commands.audit.card import BY_HAND, RobustnessCard, card_of_run, read_card
from antiphase.commands.command import Answer, Refusal
from antiphase.commands.verify import VerifyOptions
from antiphase.errors import UserError, shown
from antiphase.models.schemes.robustbench import leaderboard
from antiphase.report.table import Field, OnConsole, Table

# of the machine and the day, not of the models
_ELSEWHERE = ("versions", "hardware", "date", "warnings", "options", "command")
_RATES = ("value", "low", "high", "difference")  # in shares, so that a tolerance in points applies
_ROUNDING = 1e-9
SCHEME = "robustbench:"


class Disagreement(NamedTuple):
    """One field in which two cards differ: its place, such as ``models[0].rates[1].asr.value``, and both values."""

    field: str
    card: Any
    measured: Any


@dataclass(frozen=True)
class Verification:
    """Whether a card is confirmed, and what speaks against it.

    ``reason`` says why nothing was measured, such as other weights. ``notes`` differ but are not compared, such as
    versions; ``numbers`` counts those that were compared.
    """

    card: RobustnessCard
    name: str
    reason: str = ""
    differences: tuple[Disagreement, ...] = ()
    notes: tuple[str, ...] = ()
    numbers: int = 0

    @property
    def confirmed(self) -> bool:
        return not self.reason and not self.differences

    def __repr__(self) -> str:
        if self.confirmed:
            return f"confirmed: {self.numbers} numbers of {self.name} agree"
        fields = ", ".join(difference.field for difference in self.differences)
        return f"not confirmed: {self.reason or f'of {self.name} differ {fields}'}"


@arguments.validated
def verify(card: str | Path, **options: Any) -> Verification:
    """Measure again what a robustness card says and compare, as ``antiphase verify`` does with these ``options``."""
    return _verified(VerifyOptions(card=Path(card), **options))


def answer(options: VerifyOptions, _: str) -> Answer:
    """Print what differs, and return it; a ``Refusal`` if the card is not confirmed."""
    if (result := _verified(options)).differences:
        texts = ((f"{one:.6g}" if isinstance(one, float) else str(one) for one in row) for row in result.differences)
        rows = tuple(tuple(map(Field, row)) for row in texts)
        terminal.console().print(OnConsole(Table("differences", "", Disagreement._fields, rows, "")))
    for note in result.notes if not result.confirmed else ():
        terminal.say(f"note: {note}")
    terminal.say(repr(result))
    content = {"card": str(options.card), "name": result.name, "confirmed": result.confirmed}
    content |= {name: getattr(result, name) for name in ("reason", "numbers", "notes")}
    content["differences"] = [difference._asdict() for difference in result.differences]
    content["out"] = options.out and str(options.out)
    return content if result.confirmed else Refusal(content)


def _verified(options: VerifyOptions) -> Verification:
    from antiphase.commands.audit.run import fingerprints

    if options.out is not None:
        run_folder.refuse_finished(options.out)
    if str(options.card).startswith(SCHEME):
        return _of_leaderboard(options, str(options.card).removeprefix(SCHEME))
    if options.limit is not None:
        raise UserError(f"limit {options.limit}: a card says itself how many images it is of; leave it out")
    card = read_card(options.card)
    kind, stored = "attack" if card.command == "attack" else "audit", options.out is not None
    with tempfile.TemporaryDirectory(prefix="antiphase-") as temporary:
        repeated = _repeated(card, options, options.out or Path(temporary, "run"))
        if reason := _other_inputs(card, *fingerprints(repeated)):
            return Verification(card, card.name, reason)
        again = card_of_run(find_command(kind).measure(repeated, f"antiphase verify {options.card}", stored=stored))
    one, two = (dict(_numbers(made.model_dump(mode="json"))) for made in (card, again))
    differences = tuple(
        Disagreement(place, one.get(place), two.get(place))
        for place in dict.fromkeys([*one, *two])
        if not _agree(place, one.get(place), two.get(place), options.tolerance / 100)
    )
    there, here = ({**made.versions, "hardware": made.hardware} for made in (card, again))
    unequal = [(name, value) for name, value in there.items() if here.get(name) != value]
    notes = tuple(f"{name} {value} in the card, {here.get(name, 'none')} here" for name, value in unequal)
    return Verification(card, card.name, "", differences, notes, sum(map(_is_number, one.values())))


def _of_leaderboard(options: VerifyOptions, name: str) -> Verification:
    """Attack a model of RobustBench by AutoAttack, and compare both accuracies with its leaderboard's."""
    entry, stored = leaderboard(name), options.out is not None
    about: dict[str, Any] = {"data": entry.data, "norm": entry.norm, "eps": (entry.eps,), "limit": options.limit}
    about |= {"device": options.device, "quiet": options.quiet}
    with tempfile.TemporaryDirectory(prefix="antiphase-") as temporary:
        attack = AttackOptions(model=(f"{SCHEME}{name}",), out=options.out or Path(temporary, "run"), **about)
        card = card_of_run(find_command("attack").measure(attack, f"antiphase verify {options.card}", stored=stored))
    (model,) = card.models
    measured = {"clean_accuracy": model.clean_accuracy, "robust_accuracy": model.rates[0].robust_accuracy}
    printed = {"clean_accuracy": entry.clean, "robust_accuracy": entry.robust}
    differences = tuple(
        Disagreement(field, printed[field], f"{rate.value:.4f} [{rate.low:.4f}, {rate.high:.4f}]")
        for field, rate in measured.items()
        if not rate.low - options.tolerance / 100 <= printed[field] <= rate.high + options.tolerance / 100
    )
    return Verification(card, f"{entry.name} in RobustBench's leaderboard", "", differences, (), len(printed))


def _repeated(card: RobustnessCard, options: VerifyOptions, out: Path) -> AuditOptions:
    kind = AttackOptions if card.command == "attack" else AuditOptions
    here = {"out": out, "device": options.device, "quiet": options.quiet, "sense_limit": 0}
    repeated, name = kind.from_file(card.options, **here), f"card {shown(str(options.card))}"
    for spec in (*repeated.model, *repeated.against, repeated.data or ""):
        if spec.strip().startswith(loading.PREFIX):
            raise UserError(f"{name}: {spec} was an object of a Python session; expected models and data given by name")
    if repeated.questions:
        raise UserError(f"{name}: its options are of questions, which have no card")
    loading.check_code(repeated, options.run_code, name)
    return repeated


def _other_inputs(card: RobustnessCard, weights: dict[str, str], data: str) -> str:
    expected = {model.name: model for model in card.models}
    if set(weights) != set(expected):
        return f"the card is of {', '.join(expected)}, its options name {', '.join(weights)}"
    prints = {f"weights of {name}: {one.spec}": (weights[name], one.weights) for name, one in expected.items()}
    prints[f"data: {card.data.dataset}"] = data, card.data.fingerprint
    for label, (here, there) in prints.items():
        if here != there:
            return f"{label} has SHA-256 {here[:12]}…, the card says {there[:12]}…"
    return ""


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of a card that is compared: its place, such as ``models[0].seed``, and its value."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in (*BY_HAND, "images") and (place or name not in _ELSEWHERE):
                yield from _numbers(part, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _numbers(part, f"{place}[{index}]")
    else:
        yield place, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _agree(place: str, one: Any, other: Any, tolerance: float) -> bool:
    """Return whether a field agrees; above a tolerance of 0, p-values are not compared."""
    if not (_is_number(one) and isinstance(other, int | float)):
        return one == other
    name = place.rpartition(".")[2]
    of_rates = name in _RATES and place.startswith(("models", "differences", "mean_differences"))
    allowed = tolerance if of_rates else 2.0 if name == "p_value" and tolerance else 0.0
    return abs(one - other) <= allowed + _ROUNDING
