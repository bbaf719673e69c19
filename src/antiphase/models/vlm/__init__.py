"""Vision-language models: an image tower, a projector and a causal language model of transformers."""

from antiphase.models.vlm.language import load_language
from antiphase.models.vlm.model import VisionLanguageModel
from antiphase.models.vlm.projector import Projector
from antiphase.models.vlm.prompt import Prompt
from antiphase.models.vlm.store import VlmConfig, load_vlm, save_vlm
from antiphase.models.vlm.towers import image_tokens
from antiphase.models.vlm.yes_no import YesNo

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
