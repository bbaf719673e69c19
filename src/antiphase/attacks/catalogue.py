"""Attacks by name, with what the command line, the studies and the reports need to know besides the function."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from antiphase import arguments, registry
from antiphase.attacks.engine.checks import ALL_TARGETS, LIKELY
from antiphase.attacks.sweep import AttackFunction, Ensemble, Stage
from antiphase.errors import UserError, shown

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class AttackSpec:
    """An attack as ``antiphase.registry.ATTACKS`` lists it."""

    attack: AttackFunction  # with pgd's signature; its own keyword-only parameters are the settings
    label: str  # in tables, figures and sentences
    # settings that make it another attack than the function's own defaults do; they are stored with its rows
    defaults: Settings = field(default_factory=dict)
    nearest: bool = False  # whether it looks for the nearest adversarial example whatever ε is
    black_box: bool = False  # whether it uses no gradients
    control: str | None = "noise"  # attack whose result shows what this one adds; None for the control itself
    # from all settings to what those mean that are None, for people
    unset: Callable[[Settings], Settings] = lambda settings: {}
    # from the settings given to those that follow from them and are stored with the rows
    implied: Callable[[Settings], Settings] = lambda settings: {}
    stages: Callable[..., Ensemble] | None = None  # makes an ensemble of the settings, if it has several stages


def find_spec(name: str) -> AttackSpec:
    """Return what is known about an attack."""
    return registry.find(registry.ATTACKS, name, "attack")


def find_attack(name: str, **settings: Any) -> Ensemble:
    """Return an attack as an ensemble, of one stage where it is a single attack; its settings are checked."""
    spec = find_spec(name)
    known = keywords(spec.attack)
    for setting in settings:
        if setting not in known:
            raise UserError(f"attack {name!r} has no setting {setting!r}: expected {', '.join(known) or 'none'}")
    settings = {setting: arguments.check_argument(spec.attack, setting, value) for setting, value in settings.items()}
    if spec.stages is not None:
        return spec.stages(**settings)
    stored = {**spec.defaults, **settings, **spec.implied(settings)}
    return Ensemble(name, (Stage(name, arguments.unchecked(spec.attack), stored, spec.nearest, spec.black_box),))


def add_attack(name: str, attack: AttackFunction) -> None:
    """Register an attack of your own in this process, with pgd's signature; registering it again replaces it."""
    if isinstance(registry.ATTACKS.get(name), str):
        raise UserError(f"attack {name!r}: is one of the package's; give your own another name")
    registry.ATTACKS[name] = AttackSpec(attack, name)


def keywords(attack: AttackFunction) -> dict[str, Any]:
    """Return the settings of an attack function with their defaults; None for one that must be given."""
    parameters = [one for one in inspect.signature(attack).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return {one.name: None if one.default is one.empty else one.default for one in parameters}


def settings_of(stage: Stage) -> dict[str, Any]:
    """Return all settings of a stage, defaults included; None only where it means "none"."""
    settings = keywords(stage.attack) | stage.settings
    meant = find_spec(stage.name).unset(settings)
    settings = {name: meant.get(name) if value is None else value for name, value in settings.items()}
    plain = bool | int | float | str | None  # what JSON can hold
    named = {name: getattr(value, "__name__", None) or str(value) for name, value in settings.items()}
    return {name: value if isinstance(value, plain) else named[name] for name, value in settings.items()}


def most_passes(stage: Stage, classes: int) -> tuple[int, int] | None:
    """Return how many forward and backward passes a stage takes at most to search for one sample.

    None for an attack that is not one of the package's, whose settings may have other meanings.
    """
    if not isinstance(registry.ATTACKS.get(stage.name), str):
        return None
    settings = keywords(stage.attack) | stage.settings

    def product(*names: str) -> int:
        return math.prod(settings.get(name) or 1 for name in names)

    averaged = product("passes", "eot")
    count = averaged * product("steps", "search_steps", "queries", "draws", "restarts")
    targets = settings.get("targets")
    malt = targets == "malt"
    count *= min(ALL_TARGETS if malt else targets, classes - 1) if targets else 1
    gradients = classes - 1 if stage.name == "fab" else 1  # untargeted, FAB needs the gradient of every class
    choice = averaged * min(LIKELY, classes - 1) * malt
    return count + choice, 0 if stage.black_box else count * gradients + choice


def parse_settings(name: str, texts: Iterable[str]) -> dict[str, Any]:
    """Return the settings that texts ``NAME=VALUE`` give an attack, checked; fractions such as 1/255 are numbers."""
    attack = find_spec(name).attack
    known, hints = keywords(attack), get_type_hints(arguments.unchecked(attack))
    settings: dict[str, Any] = {}
    for text in texts:
        setting, equals, value = (part.strip() for part in text.partition("="))
        if not equals or setting not in known:
            wrong = f"attack {name!r} has no setting {setting!r}" if equals else f"setting {shown(text)}"
            raise UserError(f"{wrong}: expected NAME=VALUE with a NAME of {', '.join(known) or 'none'}")
        settings[setting] = arguments.check_argument(attack, setting, _read(value, hints[setting]))
    return settings


def _read(text: str, hint: Any) -> Any:
    """Return the value of a type that a text stands for; the text itself if it stands for none."""
    if text.lower() == "none":
        return None
    try:
        return TypeAdapter(hint).validate_python(float(Fraction(text)) if "/" in text else text)
    except (ValueError, ZeroDivisionError):
        return text
