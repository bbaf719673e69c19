"""Run a :class:`~antiphase.attacks.engine.search.Search` on every sample."""

import time
from typing import Any

import torch
from torch import Tensor

from antiphase.attacks.engine.checks import inspect_model, inspect_search
from antiphase.attacks.engine.goal import run_towards
from antiphase.attacks.engine.inputs import check_budgets, check_inputs
from antiphase.attacks.engine.options import RunOptions, read_options
from antiphase.attacks.engine.oracle import Classifier, attacked
from antiphase.attacks.engine.progress import bar
from antiphase.attacks.engine.search import Search
from antiphase.attacks.engine.work import Work
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat
from antiphase.errors import UserError


def run_search(
    model: Classifier,
    images: Tensor,
    labels: Tensor | None,
    threat: Threat,
    search: Search,
    settings: dict[str, Any],
    options: RunOptions,
    budgets: Tensor | None = None,
) -> AttackResult:
    """Attack every sample.

    Args:
        model: classifier of images within the threat's bounds.
        images: clean images, ``(samples, C, H, W)``.
        labels: classes to attack; None attacks the clean predictions.
        threat: norm, ε and bounds.
        search: the attack.
        settings: parameters of the attack, for the record.
        options: seed, batch size and others.
        budgets: one ε per sample, at most the threat's.

    Raises:
        UserError: Images are outside the bounds, labels or ids do not fit, or the model's logits are not finite.
    """
    began = time.monotonic()
    chosen = read_options(options, search.name)
    ids = torch.arange(len(images)) if chosen.ids is None else chosen.ids
    if chosen.goal is not None:
        if search.targets:
            raise UserError(
                f"goal and targets {search.targets}: they exclude each other; expected targets=None"
            )

        def towards(model: Classifier, labels: Tensor, options: RunOptions) -> AttackResult:
            return run_search(model, images, labels, threat, search, settings, options, budgets)

        return run_towards(towards, model, images, labels, chosen, options)
    images = check_inputs(images, labels, threat, ids, chosen.context)
    if budgets is None:
        budgets = torch.full((len(images),), threat.eps, dtype=torch.float64)
    else:
        check_budgets(budgets, len(images), threat)
        settings = settings | {"budgets": budgets.tolist()}
    ids = ids.cpu()
    with attacked(model, chosen.precision, chosen.compile, chosen.passes, images.device) as oracle:
        warnings = inspect_model(oracle, images, chosen.context)
        work = Work(oracle, images, labels, threat, budgets, search, chosen, ids)
        with bar(search.name, len(images), chosen.progress) as show:
            shown = -1
            while lane := work.next_lane():
                if len(lane.batch):  # none if all that is left waits to be confirmed
                    search.step(lane.batch, lane.oracle)
                work.collect(lane)
                if work.resolved != shown:
                    shown = work.resolved
                    show(shown, work.broken)
        warnings += inspect_search(oracle, work.failed, work.stuck)
    settings = settings | {"seed": chosen.seed, "early_stop": chosen.early_stop}
    settings |= {"precision": chosen.precision} if chosen.precision != "float32" else {}
    settings |= {"passes": chosen.passes} if chosen.passes > 1 else {}
    arrays: dict[str, Any] = work.results
    return AttackResult(
        search.name,
        threat,
        settings,
        ids,
        **arrays,
        warnings=tuple(warnings),
        seconds=time.monotonic() - began,
    )
