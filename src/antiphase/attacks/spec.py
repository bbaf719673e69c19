"""What the command line, the studies and the reports need to know about an attack besides its function."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphase.attacks.ensemble import AttackFunction, Ensemble, Stage
from antiphase.errors import UserError

Settings = Mapping[str, Any]
_USUAL_PASSES = 100


def passes_by_steps(settings: Settings) -> float:
    """Return steps × restarts × targets, with 100 for the steps of an attack that has none."""
    counts = {"steps": _USUAL_PASSES, "restarts": 1, "targets": 1} | {
        name: value for name, value in settings.items() if isinstance(value, int)
    }
    return float(counts["steps"] * counts["restarts"] * counts["targets"])


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
        passes: from all settings to the forward and backward passes over an image that stays robust, roughly.
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
    passes: Callable[[Settings], float] = passes_by_steps
    unset: Callable[[Settings], Settings] = lambda settings: {}
    implied: Callable[[Settings], Settings] = lambda settings: {}
    stages: Callable[..., Ensemble] | None = None

    def ensemble(self, name: str, settings: Settings) -> Ensemble:
        """Return the attack as an ensemble, of one stage where it is a single attack.

        Args:
            name: under which it is registered; its rows are stored under this name.
            settings: keyword arguments of the attack.

        Raises:
            UserError: for a setting that the attack does not have.
        """
        known = keywords(self.attack)
        if odd := [setting for setting in settings if setting not in known]:
            raise UserError(
                f"attack {name!r} has no setting {odd[0]!r}: expected {', '.join(known) or 'none'}"
            )
        if self.stages is not None:
            return self.stages(**settings)
        stored = {**self.defaults, **settings, **self.implied(settings)}
        return Ensemble(name, (Stage(name, self.attack, stored, self.nearest, self.black_box),))


def keywords(attack: AttackFunction) -> dict[str, Any]:
    """Return the settings of an attack function with their defaults; None for one that must be given."""
    found: dict[str, Any] = {}
    for each in inspect.signature(attack).parameters.values():
        if each.kind is each.KEYWORD_ONLY and each.name != "budgets":  # an ε for each sample is no setting
            found[each.name] = None if each.default is each.empty else each.default
    return found
