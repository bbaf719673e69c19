"""The fast gradient sign method: one gradient step of length ε."""

from typing import Unpack

from jaxtyping import Float, Integer
from torch import Tensor

from antiphase.arguments import validated
from antiphase.attacks import objectives
from antiphase.attacks.engine.options import RunOptions
from antiphase.attacks.engine.oracle import Classifier
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.objectives import Objective
from antiphase.attacks.pgd import PgdSearch
from antiphase.attacks.result import AttackResult
from antiphase.attacks.spec import AttackSpec
from antiphase.attacks.threat import Threat


@validated
def fgsm(
    model: Classifier,
    images: Float[Tensor, "samples ..."],
    labels: Integer[Tensor, " samples"] | None,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    objective: str | Objective = "cross_entropy",
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Take one step of length ε from the clean image: x + ε·sign(∇loss) in linf, x + ε·∇loss/‖∇loss‖ in l2.

    This is :func:`~antiphase.attacks.pgd.pgd` with one step and no random start; see there for the arguments.

    Source: I. Goodfellow, J. Shlens, C. Szegedy, *Explaining and Harnessing Adversarial Examples*, ICLR 2015.

    Raises:
        UserError: An image is out of range.
    """
    search = PgdSearch(threat, objectives.resolve(objective), 1, threat.eps, random_start=False, name="fgsm")
    settings = {"objective": objective if isinstance(objective, str) else "custom"}
    return run_search(model, images, labels, threat, search, settings, run)


FGSM = AttackSpec(fgsm, "FGSM", passes=lambda settings: 1.0)
