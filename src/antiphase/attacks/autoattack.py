"""AutoAttack: an ensemble of complementary attacks, each run on the samples that are still robust."""

from functools import partial
from typing import Any, Literal, Unpack

from antiphase.arguments import Count, unchecked, validated
from antiphase.attacks.apgd import apgd
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine import oracle, search
from antiphase.attacks.engine.checks import ALL_TARGETS
from antiphase.attacks.fab import MOST_CLASSES, fab
from antiphase.attacks.result import AttackResult
from antiphase.attacks.square import square
from antiphase.attacks.sweep import Ensemble, Stage, sweep
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError

Version = Literal["standard", "2020", "plus", "rand", "malt"]
_MOST_CLASSES = {"2020": MOST_CLASSES, "plus": MOST_CLASSES}  # untargeted FAB takes a backward pass for each
_PASSES = 20  # of a randomised model, averaged


@validated
def autoattack(
    model: oracle.Classifier,
    images: search.Images,
    labels: search.Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    version: Version = "standard",
    steps: Count = 100,
    queries: Count = 5000,
    targets: Count = 9,
    **run: Unpack[search.RunOptions],
) -> AttackResult:
    """Run a parameter-free ensemble of attacks; each attacks only the samples that those before it failed to break.

    - ``"standard"``: APGD-CE, APGD-T, FAB-T, Square: "AutoAttack" since August 2020;
    - ``"2020"``: APGD-CE, APGD-DLR, FAB, Square: the ensemble of the sensitivity paper;
    - ``"plus"``: APGD-CE, APGD-DLR and FAB with five restarts each, Square, APGD-T, FAB-T;
    - ``"malt"``: the standard attacks, APGD-T with the targets of MALT: for many classes;
    - ``"rand"``: APGD-CE and APGD-DLR on the mean logits of 20 passes, for randomised models.

    The result's ``stages`` holds the result of each attack, ``settings["felled"]`` how many samples each broke.

    Source: F. Croce, M. Hein, *Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
    Parameter-free Attacks*, ICML 2020, Section 6; the defaults are the official implementation's, whose standard
    version in l1 takes 5 restarts of APGD-CE and 5 targets of APGD-T.

    Args:
        version: name of the ensemble.
        steps: steps of APGD and FAB, at least 1.
        queries: queries of Square, at least 1.
        targets: target classes of APGD-T and FAB-T, at most the number of other classes; for ``"malt"`` 9.
    """
    ensemble = autoattack_ensemble(version, steps, queries, targets)
    return unchecked(sweep)(ensemble, model, images, labels, threat, [threat.eps], nested="off", **run)[0]


def autoattack_ensemble(version: str = "standard", steps: int = 100, queries: int = 5000, targets: int = 9) -> Ensemble:
    """Return the stages of :func:`autoattack`."""
    if version == "malt" and targets != ALL_TARGETS:
        fix = f"MALT chooses {ALL_TARGETS}; leave it out, or choose another version"
        raise UserError(f"targets {targets}: version malt takes no other number, {fix}")
    restarts = 5 if version == "plus" else 1
    first = {"steps": steps, "restarts": restarts} | ({"passes": _PASSES} if version == "rand" else {})
    gradient = unchecked(apgd)  # this function's caller has checked the settings
    ce, dlr = Stage("apgd-ce", gradient, first), Stage("apgd-dlr", gradient, first | {"objective": "dlr"})
    apgd_t = Stage("apgd-t", gradient, {"steps": steps, "targets": targets})
    malt = Stage("apgd-t", gradient, {"steps": steps, "targets": "malt"})
    # as in the official ensemble; not among the settings, which name stored rows
    boundary = partial(unchecked(fab), final_search=False)
    blind = Stage("square", partial(unchecked(square), rescale_schedule=False), {"queries": queries}, black_box=True)
    # with restarts, FAB starts within ε / 2 of the image and one search no longer serves every ε
    plain_fab = Stage("fab", boundary, {"steps": steps, "restarts": restarts}, nearest=restarts == 1)
    fab_t = Stage("fab-t", boundary, {"steps": steps, "targets": targets}, nearest=True)
    stages = {
        "standard": (ce, apgd_t, fab_t, blind),
        "2020": (ce, dlr, plain_fab, blind),
        "plus": (ce, dlr, plain_fab, blind, apgd_t, fab_t),
        "malt": (ce, malt, fab_t, blind),
        "rand": (ce, dlr),
    }[version]
    name = "autoattack" if version == "standard" else f"autoattack-{version}"
    return Ensemble(name, stages, _MOST_CLASSES.get(version))


def _stages(**settings: Any) -> Ensemble:
    ensemble = autoattack_ensemble(**settings)
    for setting in ("queries", "targets"):
        if setting in settings and not any(setting in stage.settings for stage in ensemble.stages):
            none = f"no stage of {ensemble.name} takes it; expected another version"
            raise UserError(f"{setting} {settings[setting]!r}: {none}")
    return ensemble


AUTOATTACK = AttackSpec(autoattack, "AutoAttack", stages=_stages)
