"""Models: one vision transformer with attention as a slot, and all else that loads as a classifier."""

from antiphase.models.factories import VitConfig, build, diffvit, vit
from antiphase.models.lambdas import layer_lambdas, mean_lambdas
from antiphase.models.vit import VisionTransformer
from antiphase.models.zoo import ModelCard, load_model

__all__ = [
    "ModelCard",
    "VisionTransformer",
    "VitConfig",
    "build",
    "diffvit",
    "layer_lambdas",
    "load_model",
    "mean_lambdas",
    "vit",
]
