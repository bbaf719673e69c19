"""Attacks by name, with what the command line, the studies and the reports need to know besides the function."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from antiphase.arguments import check_argument, unchecked
from antiphase.attacks.sweep import AttackFunction, Ensemble, Stage
from antiphase.errors import UserError, shown
from antiphase.registry import ATTACKS, find

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class AttackSpec:
    """An attack as ``antiphase.registry.ATTACKS`` lists it.

    Attributes:
        attack: function with the signature of :func:`~antiphase.attacks.pgd`; its own keyword-only parameters
            are the settings.
        label: name in tables, figures and sentences.
        defaults: settings that make it another attack than the function's own defaults do. They are stored with
            its rows; the caller may override them.
        nearest: whether it looks for the nearest adversarial example whatever ε is.
        black_box: whether it uses no gradients.
        control: attack whose result shows what this one adds to it; None for the control itself.
        unset: from all settings to what those mean that are None, for people.
        implied: from the settings given to those that follow from them and are stored with the rows.
        stages: makes an ensemble of the settings given; None where the attack is one stage.
    """

    attack: AttackFunction
    label: str
    defaults: Settings = field(default_factory=dict)
    nearest: bool = False
    black_box: bool = False
    control: str | None = "noise"
    unset: Callable[[Settings], Settings] = lambda settings: {}
    implied: Callable[[Settings], Settings] = lambda settings: {}
    stages: Callable[..., Ensemble] | None = None


class Setting(NamedTuple):
    """A setting of an attack, from the signature and docstring of its function."""

    kind: type | tuple[str, ...]  # int, float, bool, str, or the texts that it may be
    default: Any  # where that is None, what None means, if it is known
    help: str


def find_spec(name: str) -> AttackSpec:
    """Return what is known about an attack."""
    return find(ATTACKS, name, "attack")


def find_attack(name: str, **settings: Any) -> Ensemble:
    """Return an attack as an ensemble, of one stage where it is a single attack; its settings are checked.

    Raises:
        UserError: for an unknown name, a setting that the attack does not have, or one that is out of range.

    >>> [stage.name for stage in find_attack("autoattack").stages]
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """
    spec = find_spec(name)
    known = keywords(spec.attack)
    for setting in settings:
        if setting not in known:
            wanted = f"expected {', '.join(known) or 'none'}"
            raise UserError(f"attack {name!r} has no setting {setting!r}: {wanted}")
    settings = {setting: check_argument(spec.attack, setting, value) for setting, value in settings.items()}
    if spec.stages is not None:
        return spec.stages(**settings)
    stored = {**spec.defaults, **settings, **spec.implied(settings)}
    return Ensemble(name, (Stage(name, unchecked(spec.attack), stored, spec.nearest, spec.black_box),))


def add_attack(name: str, attack: AttackFunction) -> None:
    """Register an attack of your own in this process; registering it again replaces it.

    It has the signature of :func:`~antiphase.attacks.pgd`; its own settings are keyword-only arguments.

    Raises:
        UserError: The package has an attack of this name.
    """
    if isinstance(ATTACKS.get(name), str):
        raise UserError(f"attack {name!r}: is one of the package's; give your own another name")
    ATTACKS[name] = AttackSpec(attack, name)


def keywords(attack: AttackFunction) -> dict[str, Any]:
    """Return the settings of an attack function with their defaults; None for one that must be given."""
    parameters = inspect.signature(attack).parameters.values()
    own = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.name != "budgets"]
    return {one.name: None if one.default is one.empty else one.default for one in own}


def settings_of(stage: Stage) -> dict[str, Any]:
    """Return all settings of a stage, defaults included; None only where it means "none".

    >>> settings_of(find_attack("fgsm").stages[0])
    {'objective': 'cross_entropy'}
    """
    settings = keywords(stage.attack) | stage.settings
    meant = find_spec(stage.name).unset(settings)
    return {name: _plain(meant.get(name) if value is None else value) for name, value in settings.items()}


def attack_settings(name: str) -> dict[str, Setting]:
    """Return the settings of an attack, by name.

    >>> attack_settings("pgd")["steps"]
    Setting(kind=<class 'int'>, default=20, help='gradient steps, at least 1')
    >>> attack_settings("noise")["kind"].kind
    ('uniform', 'gaussian', 'sign')
    """
    spec = find_spec(name)
    function = unchecked(spec.attack)
    defaults = keywords(function) | dict(spec.defaults)
    meant, hints, text = spec.unset(defaults), get_type_hints(function), inspect.getdoc(function) or ""
    return {
        setting: Setting(
            next(kind for kind in _kinds(hints.get(setting, str)) if kind is not None),
            _plain(meant.get(setting) if default is None else default),
            _help(text, setting),
        )
        for setting, default in defaults.items()
    }


def parse_settings(name: str, texts: Iterable[str]) -> dict[str, Any]:
    """Return the settings that texts ``NAME=VALUE`` give an attack, checked; fractions such as 1/255 are numbers.

    >>> parse_settings("pgd", ["momentum=0.9", "random_start=no"])
    {'momentum': 0.9, 'random_start': False}
    """
    known = attack_settings(name)
    spec = find_spec(name)
    hints = get_type_hints(unchecked(spec.attack))
    settings: dict[str, Any] = {}
    for text in texts:
        setting, equals, value = (part.strip() for part in text.partition("="))
        if not equals or setting not in known:
            said = f"attack {name!r} has no setting {setting!r}" if equals else f"setting {shown(text)}"
            raise UserError(f"{said}: expected NAME=VALUE with a NAME of {', '.join(known) or 'none'}")
        given = _read(setting, value, _kinds(hints[setting]))
        settings[setting] = check_argument(spec.attack, setting, given)
    return settings


def _read(setting: str, text: str, kinds: list[Any]) -> Any:
    """Return the value that a text stands for, of the first of some kinds that it fits."""
    for kind in kinds:
        try:
            if kind is bool:
                return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
            if kind is None:
                return {"none": None}[text.lower()]
            if kind is float:
                return float(Fraction(text) if "/" in text else text)
            return int(text) if kind is int else text
        except (KeyError, ValueError, ZeroDivisionError):
            continue
    words = {int: "an integer", float: "a number", bool: "true or false", None: "none"}
    raise UserError(f"{setting} {shown(text)}: expected {' or '.join(words[kind] for kind in kinds)}")


def _kinds(hint: Any) -> list[Any]:
    """Return the kinds of value of an annotation that a text can stand for: types, choices, None."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for part in parts for kind in _kinds(part)]
        return sorted(kinds, key=lambda kind: kind is str)  # any text would do
    if origin is Annotated:
        return _kinds(parts[0])
    if origin is Literal:
        return [parts]
    return [None] if hint is type(None) else [hint] if hint in (bool, int, float, str) else []


def _help(docstring: str, setting: str) -> str:
    """Return what a docstring's list of arguments says of one, in one line."""
    lines, words = docstring.splitlines(), ""
    for number, line in enumerate(lines):
        if line.startswith(f"    {setting}: "):
            words = line.partition(": ")[2]
            for more in lines[number + 1 :]:
                if not more.startswith("        "):
                    break
                words += f" {more.strip()}"
            break
    return words.replace("``", "").rstrip(".")


def _plain(value: Any) -> Any:
    """Return what JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", None) or str(value)
