"""From features and rows to numbers: probes, episodes, ranks, and every rate with its interval."""

from antiphase.evaluation.fewshot import draw_episodes, few_shot_accuracies
from antiphase.evaluation.mmvp import right_pairs
from antiphase.evaluation.probe import fit_probe, train_probe
from antiphase.evaluation.retrieval import ranks
from antiphase.evaluation.templates import class_prompts

__all__ = [
    "class_prompts",
    "draw_episodes",
    "few_shot_accuracies",
    "fit_probe",
    "ranks",
    "right_pairs",
    "train_probe",
]
