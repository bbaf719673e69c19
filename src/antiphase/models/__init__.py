"""Models: transformers with exchangeable attention modules, and loaders for other classifiers and dual encoders."""

from antiphase.models.card import ModelCard, layer_lambdas, mean_lambdas
from antiphase.models.clip import CLIP, ClipConfig, build_clip, clip, diffclip
from antiphase.models.vit import VisionTransformer, VitConfig, build, diffvit, vit
from antiphase.models.zeroshot import ZeroShotClassifier, zero_shot_classifier
from antiphase.models.zoo import load_model, push, write_model

__all__ = ["CLIP", "ClipConfig", "ModelCard", "VisionTransformer", "VitConfig", "ZeroShotClassifier", "build"]
__all__ += ["build_clip", "clip", "diffclip", "diffvit", "layer_lambdas"]
__all__ += ["load_model", "mean_lambdas", "push", "vit", "write_model", "zero_shot_classifier"]
