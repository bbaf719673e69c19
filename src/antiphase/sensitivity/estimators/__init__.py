"""Estimators of the local Lipschitz constant, one a file; :data:`antiphase.registry.ESTIMATORS` lists them."""

from antiphase.sensitivity.estimators.estimator import Estimator, Neighbourhood, all_estimators

__all__ = ["Estimator", "Neighbourhood", "all_estimators"]
