"""The fast gradient sign method: one step of the whole budget."""

from collections.abc import Callable
from dataclasses import replace

from jaxtyping import Float, Int64
from torch import Tensor

from antiphase.attacks.objectives import Objective
from antiphase.attacks.oracle import Classifier
from antiphase.attacks.pgd import pgd
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat


def fgsm(
    model: Classifier,
    images: Float[Tensor, "samples ..."],
    labels: Int64[Tensor, " samples"] | None,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    objective: str | Objective = "cross_entropy",
    seed: int = 0,
    ids: Int64[Tensor, " samples"] | None = None,
    batch_size: int | None = None,
    progress: bool | str = False,
    on_finished: Callable[[Tensor, dict[str, Tensor]], None] | None = None,
) -> AttackResult:
    """Take one step of length ε from the clean image: x + ε·sign(∇loss) in linf, x + ε·∇loss/‖∇loss‖ in l2.

    This is :func:`~antiphase.attacks.pgd.pgd` of one step without a random start; its arguments are those.

    Source: I. Goodfellow, J. Shlens, C. Szegedy, *Explaining and Harnessing Adversarial Examples*, ICLR 2015.

    Raises:
        UserError: for images out of range.
    """
    result = pgd(
        model, images, labels, threat, steps=1, step_size=threat.eps, random_start=False, objective=objective,
        seed=seed, ids=ids, batch_size=batch_size, progress="fgsm" if progress is True else progress,
        on_finished=on_finished,
    )  # fmt: skip
    name = objective if isinstance(objective, str) else "custom"
    return replace(result, attack="fgsm", settings={"objective": name, "seed": seed})
