"""Adversarial patches: PGD within a square at a random position."""

from functools import partial
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from antiphase.arguments import Count, Positive, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Labels, Rows, RunOptions
from antiphase.attacks.objectives import Objective
from antiphase.attacks.pgd import PgdSearch
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError
from antiphase.streams import sample_keys, uniform


@validated
def patch_pgd(
    model: Classifier,
    images: Float[Tensor, "samples channels height width"],
    labels: Labels,
    threat: Threat = Threat("linf", 1.0),  # noqa: B008 (frozen)
    *,
    width: int = 8,
    steps: Count = 20,
    step_size: Positive | None = None,
    restarts: Count = 1,
    objective: str | Objective = "cross_entropy",
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Perturb one square of each image by PGD with a random start.

    With m the indicator of a ``width`` × ``width`` square, drawn uniformly within the image for each sample and
    restart: x_{t+1} = Π(x_t + α·sign(m ⊙ ∇loss)), x₀ uniform in the square.

    Source: robustness paper, Appendix C.2.1, which sets ε = 1 (any pixel value) and varies the width; α and
    the number of steps are those of :func:`~antiphase.attacks.pgd.pgd`.

    Args:
        threat: norm linf, finite ε and bounds.
        width: side of the square in pixels, from 1 to the shorter side of the image.
        steps: gradient steps, at least 1.
        step_size: α; ε/4 by default.
        restarts: random restarts per sample, each with another square, at least 1.
        objective: loss to maximise, as in :func:`~antiphase.attacks.pgd.pgd`.
    """
    if not 1 <= width <= min(images.shape[2:]):
        wanted = f"expected at least 1 and at most the shorter side of images {tuple(images.shape[1:])}"
        raise UserError(f"patch width {width}: {wanted}")
    if threat.norm != "linf" or threat.eps == float("inf"):
        raise UserError(f"norm {threat.norm!r}, eps {threat.eps}: a patch needs 'linf' and a finite ε")
    alpha = threat.eps / 4 if step_size is None else step_size
    settings: Any = dict(steps=steps, step_size=alpha, restarts=restarts, objective=objective)
    search = PgdSearch(threat, **settings, name=f"patch-{width}", mask=partial(squares, width))
    return run_search(model, images, labels, threat, search, run, settings={"width": width} | settings)


def squares(width: int, rows: Rows) -> Bool[Tensor, "batch 1 height width"]:
    """Return the indicator of one square per row, drawn uniformly within the image."""
    (height, breadth), keys = rows["clean"].shape[2:], rows["key"]
    # a separate stream: the random start draws from that of the row
    draw = uniform(sample_keys(keys, torch.full_like(keys, width)), 2).double()
    room = torch.tensor([height - width + 1, breadth - width + 1], device=keys.device)
    top, left = (draw * room).long().unbind(1)
    down = torch.arange(height, device=keys.device)[None] - top[:, None]
    across = torch.arange(breadth, device=keys.device)[None] - left[:, None]
    inside_down, inside_across = ((far >= 0) & (far < width) for far in (down, across))
    return (inside_down[:, :, None] & inside_across[:, None, :])[:, None]


PATCH = AttackSpec(patch_pgd, "Patch PGD", unset=lambda settings: {"step_size": "ε/4"})
