"""Attacks by name, as the command line and the studies call them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from antiphase.attacks.apgd import apgd
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.attacks.carlini_wagner import carlini_wagner
from antiphase.attacks.ensemble import Ensemble, Stage
from antiphase.attacks.fab import fab
from antiphase.attacks.fgsm import fgsm
from antiphase.attacks.noise import noise
from antiphase.attacks.patch import patch_pgd
from antiphase.attacks.pgd import pgd
from antiphase.attacks.square import AUTOATTACK_QUERIES, rescales, square
from antiphase.errors import UserError


def _single(name: str, attack: Callable, nearest: bool = False, **fixed: object) -> Callable[..., Ensemble]:
    return lambda **settings: Ensemble(name, (Stage(name, attack, {**fixed, **settings}, nearest),))


def _square(**settings: Any) -> Ensemble:
    """Say in the settings that the schedule is rescaled: rows stored before it was have other settings."""
    if rescales(settings.get("queries", AUTOATTACK_QUERIES), settings.get("rescale_schedule")):
        settings |= {"rescale_schedule": True}
    return _single("square", square)(**settings)


CATALOGUE: dict[str, Callable[..., Ensemble]] = {
    "pgd": _single("pgd", pgd),
    "patch": _single("patch", patch_pgd),
    "fgsm": _single("fgsm", fgsm),
    "apgd-ce": _single("apgd-ce", apgd),
    "apgd-dlr": _single("apgd-dlr", apgd, objective="dlr"),
    "apgd-t": _single("apgd-t", apgd, targets=9),
    "fab": _single("fab", fab, nearest=True),
    "fab-t": _single("fab-t", fab, nearest=True, targets=9),
    "square": _square,
    "carlini-wagner": _single("carlini-wagner", carlini_wagner, nearest=True),
    "noise": _single("noise", noise),
    "autoattack": autoattack_ensemble,
}

_ADDED: set[str] = set()


def find_attack(name: str, **settings: object) -> Ensemble:
    """Return an attack as an ensemble, of one stage where it is a single attack.

    Args:
        name: a key of the catalogue.
        **settings: keyword arguments of the attack.

    Raises:
        UserError: for an unknown name, or a setting that the attack does not have.

    >>> [stage.name for stage in find_attack("autoattack").stages]
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    """
    if name not in CATALOGUE:
        raise UserError(f"attack {name!r}: expected one of {', '.join(CATALOGUE)}")
    plain = CATALOGUE[name]()
    if name == "autoattack":
        known = list(inspect.signature(autoattack_ensemble).parameters)
    else:
        known = list(_defaults(plain.stages[0]))
    if odd := [setting for setting in settings if setting not in known]:
        raise UserError(f"attack {name!r} has no setting {odd[0]!r}: expected {', '.join(known) or 'none'}")
    found = CATALOGUE[name](**settings)
    if name == "autoattack":
        _check_used(found, settings)
    return found


def _check_used(ensemble: Ensemble, settings: Mapping[str, object]) -> None:
    """Refuse a setting of AutoAttack that none of the version's stages takes."""
    for setting in ("queries", "targets"):
        if setting in settings and not any(setting in stage.settings for stage in ensemble.stages):
            raise UserError(
                f"{setting} {settings[setting]!r}: no stage of {ensemble.name} takes it; expected another version"
            )


def add_attack(name: str, attack: Callable) -> None:
    """Add an attack of your own to the catalogue, as one stage; a second time replaces it.

    Args:
        name: under which ``find_attack`` finds it.
        attack: a function with the signature of :func:`~antiphase.attacks.pgd`; its own settings are keyword arguments.

    Raises:
        UserError: if the name is one of the package's.
    """
    if name in CATALOGUE and name not in _ADDED:
        raise UserError(f"attack {name!r}: is one of the package's; give your own another name")
    _ADDED.add(name)
    CATALOGUE[name] = _single(name, attack)


def settings_of(stage: Stage) -> str:
    """Return a stage's settings, those left at their defaults included, as one line.

    >>> settings_of(find_attack("fgsm").stages[0])
    'objective cross_entropy'
    """
    objective = "dlr" if stage.settings.get("targets") else "cross_entropy"  # APGD's
    unsaid = {"step_size": "ε/4", "targets": "none", "objective": objective, "rescale_schedule": False}
    return ", ".join(
        f"{name} {unsaid[name] if value is None else value}"
        for name, value in (_defaults(stage) | stage.settings).items()
    )


def _defaults(stage: Stage) -> dict[str, object]:
    parameters = inspect.signature(stage.attack).parameters.values()
    keywords = {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    keywords.pop("budgets", None)  # is of the samples
    return keywords
