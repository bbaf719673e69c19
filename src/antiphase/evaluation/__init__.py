"""Metrics from features and rows: probes, few-shot episodes, retrieval ranks, and rates with intervals."""

from antiphase.evaluation.few_shot import draw_episodes, few_shot_accuracies
from antiphase.evaluation.mmvp import right_pairs
from antiphase.evaluation.probe import fit_probe, train_probe
from antiphase.evaluation.retrieval import ranks
from antiphase.evaluation.zero_shot import class_prompts

__all__ = ["class_prompts", "draw_episodes", "few_shot_accuracies", "fit_probe", "ranks", "right_pairs", "train_probe"]
