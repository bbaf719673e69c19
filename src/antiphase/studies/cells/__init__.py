"""The cells of studies: trainings and measurements."""

from antiphase.studies.cells.evaluate import Evaluate, Relevance
from antiphase.studies.cells.images import Accuracy, Attack, Certified, Margin, Radius, Sense, Transfer
from antiphase.studies.cells.models import FACTORS, Given, Measurement, Model, Own, given
from antiphase.studies.cells.training import TrainClip, TrainVit, Untrained, Variant
from antiphase.studies.cells.vlm import AttackAnswers, TrainVlm

__all__ = ["FACTORS", "Accuracy", "Attack", "AttackAnswers", "Certified", "Evaluate", "Given", "Margin", "Measurement"]
__all__ += ["Model", "Own", "Radius", "Relevance", "Sense", "TrainClip", "TrainVit", "TrainVlm", "Transfer"]
__all__ += ["Untrained", "Variant", "given"]
