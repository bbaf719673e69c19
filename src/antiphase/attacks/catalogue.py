"""Attacks by name, as the command line and the studies call them."""

from typing import Any

from antiphase.attacks.ensemble import AttackFunction, Ensemble, Stage
from antiphase.attacks.spec import AttackSpec, keywords
from antiphase.errors import UserError
from antiphase.registry import ATTACKS, find


def find_attack(name: str, **settings: object) -> Ensemble:
    """Return an attack as an ensemble, of one stage where it is a single attack.

    Args:
        name: a key of ``antiphase.registry.ATTACKS``.
        **settings: keyword arguments of the attack.

    Raises:
        UserError: for an unknown name, or a setting that the attack does not have.

    >>> [stage.name for stage in find_attack("autoattack").stages]
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """
    return find_spec(name).ensemble(name, settings)


def find_spec(name: str) -> AttackSpec:
    """Return what is known about an attack.

    Raises:
        UserError: for an unknown name.
    """
    return find(ATTACKS, name, "attack")


def add_attack(name: str, attack: AttackFunction) -> None:
    """Register an attack of your own in this process; registering it again replaces it.

    Args:
        name: under which ``find_attack`` finds it.
        attack: a function with the signature of :func:`~antiphase.attacks.pgd`; its own settings are keyword-only
            arguments.

    Raises:
        UserError: if the package has an attack of this name.
    """
    if isinstance(ATTACKS.get(name), str):
        raise UserError(f"attack {name!r}: is one of the package's; give your own another name")
    ATTACKS[name] = AttackSpec(attack, name)


def settings_of(stage: Stage) -> dict[str, Any]:
    """Return all settings of a stage, defaults included; None only where it means "none".

    >>> settings_of(find_attack("fgsm").stages[0])
    {'objective': 'cross_entropy'}
    """
    settings = keywords(stage.attack) | stage.settings
    meant = find_spec(stage.name).unset(settings)
    return {name: _plain(meant.get(name) if value is None else value) for name, value in settings.items()}


def passes_of(ensemble: Ensemble) -> float:
    """Return how many forward and backward passes an ensemble makes over an image that stays robust, roughly.

    >>> passes_of(find_attack("pgd", steps=50))
    50.0
    """
    return sum(_passes(stage) for stage in ensemble.stages)


def _passes(stage: Stage) -> float:
    passes = find_spec(stage.name).passes(keywords(stage.attack) | stage.settings)
    return passes * stage.settings.get("passes", 1)  # those for one answer of a randomised model


def _plain(value: Any) -> Any:
    """Return what JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", None) or str(value)
