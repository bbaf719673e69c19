"""Vision-language models: an image tower, a projector and a causal language model of transformers."""

from antiphase.vlm.checkpoint import load_vlm, save_vlm
from antiphase.vlm.language import load_language
from antiphase.vlm.model import Projector, VisionLanguageModel, YesNo
from antiphase.vlm.prompt import Prompt
from antiphase.vlm.recipe import VlmConfig
from antiphase.vlm.towers import image_tokens

__all__ = [
    "Projector",
    "Prompt",
    "VisionLanguageModel",
    "VlmConfig",
    "YesNo",
    "image_tokens",
    "load_language",
    "load_vlm",
    "save_vlm",
]
