"""How much of DiffViT's higher ASR comes from the subtraction, and how much from its company.

The paper attributes it to the subtraction: the gradients of the two maps point in opposite directions (Section 4).
DiffViT differs from ViT in more than that. Each head passes an RMSNorm and the factor 1 − λ_init. Heads are merged in
pairs: half as many heads with values twice as wide, and with λ = 0 one narrow map each. Training ends at another loss
with other clean margins, and smaller margins alone raise the ASR. Three comparisons:

- interventions on trained DiffViTs: λ times 0 to 1.25; A2 replaced by its mean over 1,000 training images or by uniform
  attention; an attacker whose gradient passes A1 or A2 by;
- trained controls: λ frozen at 0, no norm or factor, ViT with norm and factor, one more hidden unit for ViT (+129
  weights on the laptop, where DiffViT has +96 of 50,000), and blocks that start from N(0, 0.02), like timm's, instead
  of uniform within ±1/√fan_in;
- standardisation: ASR at one distribution of clean margins, and at one training loss.

The least perturbation d of an image is that of FAB-T (20 steps, 3 classes). With m the clean margin and g its gradient
by the image, d = c·m / ‖g‖₁, and c = 1 for a linear model.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100 | not run |
| laptop | 10 a seed, 2 of them those of Figure 2(a), Fashion-MNIST | 23 core-minutes a seed, 14 of them training |

antiphase study run causes --profile laptop
"""

from collections.abc import Callable

import numpy as np

from antiphase.budgets import eps_label
from antiphase.statistics.intervals import Estimate
from antiphase.studies.checks import each_data
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
from antiphase.studies.own.causes.models import (
    BARE,
    BARE_ZERO,
    DIFFVIT,
    EPS,
    NORMAL,
    NORMED,
    STOPPED,
    VIT,
    WIDER,
    ZERO,
    cells,
)
from antiphase.studies.own.causes.page import draw
from antiphase.studies.own.causes.parts import (
    ANGLE,
    AT_LOSS,
    AT_MARGINS,
    MARGINS,
    SUBTRACTION,
    Measured,
    mean_of,
)
from antiphase.studies.papers.robustness.bench import settings
from antiphase.studies.spec import RowsByTable, Study

_SMALL = EPS[:3]


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims about each cause: the paper's explanation, and the alternatives to it."""
    return each_data(rows["attack"], lambda attacks: _claims(Measured(rows, attacks["data"][0])))


def _claims(found: Measured) -> list[Claim]:
    def at_each_eps(what: str, values: Callable[[float], np.ndarray]) -> list[Check]:
        def estimate(eps: float) -> Estimate | None:
            return mean_of(values(eps)) if found.seeds else None

        return [Check(f"{what} at {eps_label(eps)}", estimate(eps)) for eps in _SMALL]

    def above(first: str, second: str) -> list[Check]:
        def values(eps: float) -> np.ndarray:
            return found.broken(first, eps).astype(float) - found.broken(second, eps)

        return at_each_eps(f"ASR({first}) − ASR({second})", values)

    def part(name: str) -> list[Check]:
        return at_each_eps(f"part: {name},", lambda eps: found.parts(eps)[name])

    def remains(name: str) -> list[Check]:
        return at_each_eps(f"ASR(DiffViT) − ASR(ViT), {name},", lambda eps: found.differences(eps)[name])

    without_a2, without_a1, _ = STOPPED
    statements = {
        "subtraction-raises-asr": (
            "Section 4.1",
            "Between models with the same norm, factor and heads, the subtraction raises the ASR.",
            above(DIFFVIT, ZERO),
        ),
        "subtraction-raises-asr-bare": (
            "Section 4.1",
            "Between models without norm and factor, too, the subtraction raises the ASR.",
            above(BARE, BARE_ZERO),
        ),
        "fragile-at-equal-margins": (
            NOT_IN_PAPER,
            "At equal clean margins, the subtraction raises the ASR.",
            part(SUBTRACTION),
        ),
        "angle-raises-asr": (
            "Section 4.1, Theorem 1",
            "Opposed gradients of the two maps, the paper's explanation, raise the ASR of DiffViT.",
            part(ANGLE),
        ),
        "gradient-of-a2": (
            "Section 4.1",
            "Without the gradient through A2 the attacker succeeds less often than without that through A1.",
            above(without_a1, without_a2),
        ),
        "margins-raise-asr": (
            NOT_IN_PAPER,
            "Smaller clean margins are part of DiffViT's higher ASR.",
            part(MARGINS),
        ),
        "remains-at-equal-margins": (
            NOT_IN_PAPER,
            "At equal clean margins, DiffViT has a higher ASR than ViT.",
            remains(AT_MARGINS),
        ),
        "remains-at-equal-loss": (
            NOT_IN_PAPER,
            "At equal training loss, DiffViT has a higher ASR than ViT.",
            remains(AT_LOSS),
        ),
        "norm-raises-asr": (
            NOT_IN_PAPER,
            "The normalisation of each head and its factor 1 − λ_init alone raise the ASR of ViT.",
            above(NORMED, VIT),
        ),
        "parameters-raise-asr": (
            NOT_IN_PAPER,
            "A ViT with DiffViT's number of parameters has a higher ASR than ViT.",
            above(WIDER, VIT),
        ),
        "other-initial-weights": (
            NOT_IN_PAPER,
            "With blocks that start from N(0, 0.02), too, DiffViT has a higher ASR than ViT.",
            above(NORMAL[DIFFVIT], NORMAL[VIT]),
        ),
    }
    return [
        Claim(name, source, words, checks, paper="robustness" if source != NOT_IN_PAPER else "")
        for name, (source, words, checks) in statements.items()
    ]


study = Study(
    "causes",
    "own",
    "Causes",
    "Where the higher ASR of DiffViT comes from",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
