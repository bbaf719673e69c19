"""The cells of studies: trainings and measurements."""

from antiphase.studies.cells.accuracy import Accuracy
from antiphase.studies.cells.answers import AttackAnswers
from antiphase.studies.cells.attack import Attack
from antiphase.studies.cells.clip import TrainClip
from antiphase.studies.cells.evaluate import Evaluate
from antiphase.studies.cells.margins import Margin
from antiphase.studies.cells.models import FACTORS, Given, Model, Own, given
from antiphase.studies.cells.radius import Radius
from antiphase.studies.cells.relevance import Relevance
from antiphase.studies.cells.sense import Sense
from antiphase.studies.cells.untrained import Untrained
from antiphase.studies.cells.variant import Variant
from antiphase.studies.cells.vit import TrainVit
from antiphase.studies.cells.vlm import TrainVlm

__all__ = [
    "FACTORS",
    "Accuracy",
    "Attack",
    "AttackAnswers",
    "Evaluate",
    "Given",
    "Margin",
    "Model",
    "Own",
    "Radius",
    "Relevance",
    "Sense",
    "TrainClip",
    "TrainVit",
    "TrainVlm",
    "Untrained",
    "Variant",
    "given",
]
