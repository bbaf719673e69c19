"""Recipes and training of classifiers."""

from antiphase.training.adversarial import Adversary, robust_accuracy
from antiphase.training.classifier import accuracy, train_classifier
from antiphase.training.recipe import Recipe, fastest_precision, make_recipe

__all__ = ["Adversary", "Recipe", "accuracy", "fastest_precision", "make_recipe", "robust_accuracy", "train_classifier"]
