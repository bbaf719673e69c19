"""Training: recipes, one loop, classifiers."""

from antiphase.training.classifier import accuracy, train_classifier
from antiphase.training.recipe import Recipe, fastest_precision, make_recipe

__all__ = ["Recipe", "accuracy", "fastest_precision", "make_recipe", "train_classifier"]
