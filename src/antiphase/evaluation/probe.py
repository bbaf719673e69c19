"""Linear probe of frozen features: logistic regression by L-BFGS, with the cost chosen on a validation split.

Protocol of M. El Banani, K. Desai, J. Johnson, *Learning Visual Representations via Language-Guided Sampling*, CVPR
2023, and their code, which H. A. Hammoud and B. Ghanem, *DiffCLIP* (2025), follow.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from antiphase import arguments, modules, streams, terminal
from antiphase.data.sources import PROBE_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.metrics import CLASSES_ALIKE, accuracies, accuracy_stands_for, classification_rows
from antiphase.evaluation.tasks import Protocol, Source, can_learn, image_features, labelled, make_task
from antiphase.models.card import card_of

COSTS = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6)
MOST_FITS = 17  # of train_probe: the costs of both stages at worst, and the probe itself
_HELD_OUT = 0.2  # of each class, where there is no validation split
Features = Annotated[Float[Tensor, "samples dim"], arguments.NOT_EMPTY, arguments.FINITE]
Labels = Int64[Tensor, " samples"]
Weight = Float[Tensor, "classes dim"]
Bias = Float[Tensor, " classes"]
Objective = Literal["norm", "squared"]  # of the penalty on the weights


@dataclass(frozen=True)
class Probe:
    """A linear classifier and its cost."""

    weight: Weight
    bias: Bias
    cost: float

    def scores(self, features: Float[Tensor, "n dim"]) -> Float[Tensor, "n classes"]:
        """Return the logits x·Wᵀ + b."""
        return F.linear(features, self.weight, self.bias)


def probe_loss(
    features: Features, labels: Labels, weight: Weight, bias: Bias, cost: float, objective: Objective = "norm"
) -> Float[Tensor, ""]:
    """Return the loss of a probe: the mean cross-entropy and a penalty on the weights, but not on the bias.

    L(W, b) = (1/n)·Σᵢ −log softmax(W·xᵢ + b)[yᵢ] + ½·‖W‖₂/C, or ½·‖W‖₂²/C with ``"squared"``, over all entries of W,
    with the cost C above 0. The authors' code uses the norm; its square is scikit-learn's with ``C=cost/n``.
    """
    norm = torch.linalg.vector_norm(weight)
    penalty = norm if objective == "norm" else norm.square()
    return F.cross_entropy(F.linear(features, weight, bias), labels) + penalty / (2 * cost)


@arguments.validated
def fit_probe(
    features: Features,
    labels: Labels,
    num_classes: arguments.Count,
    cost: arguments.Positive,
    *,
    objective: Objective = "norm",
    max_iter: arguments.Count = 1000,
) -> Probe:
    """Minimise :func:`probe_loss` from W = 0, b = 0 by at most ``max_iter`` steps of torch's L-BFGS.

    Like the authors' code, the search with "norm" starts with a penalty gradient of 0 and stays at W = 0, b = 0 if
    there ‖∂H/∂W‖₂/(2C) ≥ ‖∂H/∂W‖₂² + ‖∂H/∂b‖₂², H the cross-entropy; unless the classes are balanced, such a probe
    lacks the bias towards frequent classes. The features are neither centred nor scaled, and keep their precision.
    """
    _check_labels(labels, num_classes)
    weight = features.new_zeros(num_classes, features.shape[1]).requires_grad_()
    bias = features.new_zeros(num_classes).requires_grad_()
    labels = labels.to(features.device)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=max_iter, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = probe_loss(features, labels, weight, bias, cost, objective)
        loss.backward()
        return loss

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]  # a loss as a tensor, as torch's manual has it
    return Probe(weight.detach(), bias.detach(), cost)


def accuracy(predictions: Labels, labels: Labels, *, mean_per_class: bool = False) -> float:
    """Return the accuracy, or its mean over the classes that occur among the labels, in [0, 1]."""
    labels = labels.cpu()
    right = predictions.cpu() == labels
    if not mean_per_class:
        return int(right.sum()) / len(right)
    _, class_of, counts = labels.unique(return_inverse=True, return_counts=True)
    return float((class_of.bincount(right.double()) / counts).mean())


def hold_out(labels: Labels, seed: int) -> Bool[Tensor, " n"]:
    """Choose samples for validation uniformly: ⌊0.2·n_c⌋ of the n_c samples of each class c."""
    _, class_of, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    order = torch.randperm(len(class_of), generator=streams.generator(seed, "hold out"))
    order = order[class_of[order].argsort(stable=True)]  # class by class, each in the order of the permutation
    place = torch.arange(len(class_of)) - (counts.cumsum(0) - counts)[class_of[order]]
    mask = torch.zeros(len(class_of), dtype=torch.bool)
    mask[order] = place < (_HELD_OUT * counts.double()).long()[class_of[order]]
    if not mask.any():
        raise UserError(f"at most {int(counts.max())} samples a class: expected 5, or a validation split")
    return mask.to(labels.device)


def search(accuracy_at: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """Search the best cost in two stages; return it and the accuracy at each cost visited, in order.

    The first stage visits all :data:`COSTS`. The second halves a list of 29 costs, evenly spaced in logarithm over two
    decades on either side of the best and within [1e-6, 1e6]: of those at 25 %, 50 % and 75 % of it, the lower half is
    kept if the first is best, the upper half if the last is, else the middle. Ties go to the cost visited first.
    """
    visited = {cost: accuracy_at(cost) for cost in COSTS}
    middle = math.log10(max(visited, key=visited.__getitem__))
    # with the authors' rounding, which decides whether 1e-6 and round costs are on the list
    spaced = torch.logspace(middle - 2, middle + 2, 29, dtype=torch.float32)
    costs = spaced[(spaced >= COSTS[0]) & (spaced <= COSTS[-1])].tolist()
    while (count := len(costs)) > 1:
        low, half, high = count // 4, count // 2, count - math.ceil(count / 4)
        for place in (low, half, high):
            if costs[place] not in visited:
                visited[costs[place]] = accuracy_at(costs[place])
        first, second, third = (visited[costs[place]] for place in (low, half, high))
        if first == max(first, second, third):
            costs = costs[:half]
        elif third == max(second, third):
            costs = costs[half:]
        else:
            costs = costs[low:high]
    return max(visited, key=visited.__getitem__), visited


@arguments.validated
def train_probe(
    train: Features,
    train_labels: Labels,
    validation: tuple[Features, Labels] | None,
    num_classes: arguments.Count,
    *,
    seed: arguments.Seed = 0,
    objective: Objective = "norm",
    mean_per_class: bool = False,
    max_iter: arguments.Count = 1000,
    on_fit: Callable[[], object] | None = None,
) -> Probe:
    """Choose the cost with the best validation accuracy by :func:`search`, then fit a probe on both splits.

    ``validation``: None holds out a fifth of each class of the training split, drawn with ``seed``. With
    ``mean_per_class`` the accuracy is the mean over classes. ``on_fit`` is called after each of at most
    :data:`MOST_FITS` fits. The others are as for :func:`fit_probe`.
    """
    if validation is None:
        mask, samples = hold_out(train_labels, seed), (train, train_labels)
        validation = train[mask], train_labels[mask]
        train, train_labels = train[~mask], train_labels[~mask]
    else:
        samples = torch.cat([train, validation[0]]), torch.cat([train_labels, validation[1]])
    _check_labels(validation[1], num_classes)

    def fit(features: Tensor, labels: Tensor, cost: float) -> Probe:
        probe = fit_probe(features, labels, num_classes, cost, objective=objective, max_iter=max_iter)
        if on_fit:
            on_fit()
        return probe

    def accuracy_at(cost: float) -> float:
        answers = fit(train, train_labels, cost).scores(validation[0]).argmax(1)
        return accuracy(answers, validation[1], mean_per_class=mean_per_class)

    return fit(*samples, search(accuracy_at)[0])


def _check_labels(labels: Tensor, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(f"labels {low} to {high}: expected 0 to {num_classes - 1}; number the classes from 0")


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: FeatureStore) -> pl.DataFrame:
    place = modules.device_of(model)

    def features(data: Any) -> tuple[Tensor, Tensor]:
        images, labels = labelled(data)
        return image_features(model, images, protocol, store).to(place), labels.to(place)

    train = features(source.train)
    validation = None if source.validation is None else features(source.validation)
    tested, _ = features(source.test)
    test, labels = labelled(source.test)
    blocks, seeds = [], range(protocol.seeds if validation is None else 1)  # a seed draws what is held out
    data = (*train, validation, len(test.class_names))
    about = {"mean_per_class": test.name in CLASSES_ALIKE, "max_iter": protocol.iterations}
    for objective, seed in itertools.product(protocol.objectives, seeds):
        title = f"{card_of(model).name}: {test.name}, probe {objective}, seed {seed}"
        with terminal.progress_bar(title, MOST_FITS, store.progress) as advance:
            probe = train_probe(*data, objective=objective, seed=seed, on_fit=lambda: advance(1), **about)
        rows = classification_rows(probe.scores(tested).cpu(), labels, test.ids, objective, seed)
        blocks.append(rows.with_columns(cost=pl.lit(probe.cost)))
    return pl.concat(blocks)


TASK = make_task(
    "probe",
    serves=can_learn,
    measure=_measure,
    metrics=lambda setting, rows, groups: accuracies(setting, rows, groups=groups or ()),
    heading=lambda setting, metric: f"{metric}, {setting} penalty",
    stands_for=accuracy_stands_for,
    paper_data=PROBE_SETS,
)
