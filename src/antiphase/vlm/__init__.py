"""Vision-language models: an image tower, a projector and a causal language model of transformers."""

from antiphase.vlm.checkpoint import VlmConfig, load_language, load_vlm, save_vlm
from antiphase.vlm.model import Projector, Prompt, VisionLanguageModel, YesNo, image_tokens

__all__ = ["Projector", "Prompt", "VisionLanguageModel", "VlmConfig", "YesNo", "image_tokens", "load_language"]
__all__ += ["load_vlm", "save_vlm"]
