"""Models that open_clip lists, of few weights: ``tiny-vit`` (images of 32 pixels, 16 patches) and ``tiny-resnet``."""

import json
import tempfile
from pathlib import Path

import open_clip

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
VISION = {
    "tiny-vit": {"image_size": 32, "layers": 3, "width": 48, "head_width": 24, "patch_size": 8},
    "tiny-resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
}

with tempfile.TemporaryDirectory() as folder:
    for name, vision in VISION.items():
        config = {"embed_dim": 16, "quick_gelu": name == "tiny-vit", "vision_cfg": vision, "text_cfg": TEXT}
        Path(folder, f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
