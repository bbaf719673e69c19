"""Linear probe: a linear classifier of frozen features."""

import polars as pl
from torch import nn

from antiphase.data.expected_counts import PROBE_SETS
from antiphase.evaluation.metrics import Metric, accuracies
from antiphase.evaluation.outcomes import classification_rows
from antiphase.evaluation.probe import MOST_FITS, train_probe
from antiphase.evaluation.summary import CLASSES_ALIKE, accuracy_stands_for
from antiphase.evaluation.tasks.task import (
    EvaluationTask,
    Features,
    Groups,
    Protocol,
    Source,
    can_learn,
    image_features,
    labelled,
)
from antiphase.models.card import card_of
from antiphase.modules import device_of
from antiphase.progress import progress_bar


def _measure(model: nn.Module, source: Source, protocol: Protocol, store: Features) -> pl.DataFrame:
    test, labels = labelled(source.test)
    train, train_labels = labelled(source.train)
    place = device_of(model)
    features = image_features(model, train, protocol, store).to(place)
    validation = None
    if source.validation is not None:
        held, held_labels = labelled(source.validation)
        validation = (image_features(model, held, protocol, store).to(place), held_labels.to(place))
    tested = image_features(model, test, protocol, store).to(place)
    found = []
    for objective in protocol.objectives:
        # the seed draws what is held out: with a validation split there is nothing to draw
        for seed in range(protocol.seeds if validation is None else 1):
            title = f"{card_of(model).name}: {test.name}, probe {objective}, seed {seed}"
            with progress_bar(title, MOST_FITS, store.progress) as advance:
                probe = train_probe(
                    features,
                    train_labels.to(place),
                    validation,
                    len(test.class_names),
                    seed=seed,
                    objective=objective,
                    mean_per_class=test.name in CLASSES_ALIKE,
                    max_iter=protocol.iterations,
                    on_fit=lambda: advance(1),
                )
            rows = classification_rows(probe.scores(tested).cpu(), labels, test.ids, objective, seed)
            found.append(rows.with_columns(cost=pl.lit(probe.cost)))
    return pl.concat(found)


def _metrics(setting: str, rows: pl.DataFrame, groups: Groups | None) -> list[Metric]:
    return accuracies(setting, rows)


TASK = EvaluationTask(
    name="probe",
    title="Linear probe",
    summary="a linear classifier of frozen features",
    notes="A linear classifier of frozen features; C is chosen on validation images, of the seed’s draw where none "
    "are published, and the last fit is on training and validation images together. Intervals are over the images.",
    serves=can_learn,
    measure=_measure,
    metrics=_metrics,
    heading=lambda setting, metric: f"{metric}, {setting} penalty",
    stands_for=accuracy_stands_for,
    fields=("space", "objectives", "iterations", "seeds"),
    learns=True,
    paper_data=PROBE_SETS,
    passes=30.0,
)
