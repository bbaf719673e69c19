"""Rows of episodes and of pairs, as the tasks make them."""

from antiphase.evaluation.metrics import outcome_rows


def episode_rows(accuracies, setting, seed):
    return outcome_rows(setting=setting, seed=seed, unit=range(len(accuracies)), score=accuracies)


def answer_rows(right, patterns):
    return outcome_rows(unit=range(len(right)), group=list(patterns), score=right.double())
