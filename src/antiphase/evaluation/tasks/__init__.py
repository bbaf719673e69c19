"""The evaluation tasks, one a file; :data:`antiphase.registry.TASKS` lists them."""

from antiphase.evaluation.tasks.task import (
    EvaluationTask,
    Features,
    Protocol,
    Source,
    all_tasks,
    can_learn,
    find_task,
    has_labels,
    image_features,
    labelled,
)

__all__ = [
    "EvaluationTask",
    "Features",
    "Protocol",
    "Source",
    "all_tasks",
    "can_learn",
    "find_task",
    "has_labels",
    "image_features",
    "labelled",
]
