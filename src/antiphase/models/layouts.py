"""CLIPs of ours as open_clip stores them: directories that it loads without antiphase."""

from pathlib import Path

from safetensors.torch import save_file

from antiphase.errors import UserError
from antiphase.files import replacing, write_json
from antiphase.models.clip import CLIP
from antiphase.models.schemes import diffclip, libraries

_OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
_TRUNK = "image-tower"  # folder of timm's configuration
_B16_NAME = "vit_base_patch16_224"  # in timm
_B16 = {"image_size": 224, "patch_size": 16, "dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_TIMM_EPS = 1e-6
_HALF = (0.5, 0.5, 0.5)  # what a vision transformer of ours normalises with unless told otherwise


def write_open_clip(model: CLIP, directory: Path) -> Path:
    """Write a CLIP with standard attention for open_clip; return the path of its weights.

    ``create_model_and_transforms("local-dir:DIRECTORY")`` loads it. An image tower of other sizes than ViT-B/16 is in a
    folder of its own, which ``open_clip_config.json`` names by its absolute path.
    """
    config = model.config
    assert config is not None
    for tower, kind in (("image", config.vision.attention), ("text", config.text.attention)):
        if kind != "softmax":
            fix = "expected standard attention in both towers; export it in layout antiphase or released"
            raise UserError(f"layout 'open_clip': the {tower} tower has {kind} attention; {fix}")
    if model.logit_bias is not None:
        raise UserError("layout 'open_clip': cannot store a logit bias; expected a model of the CLIP loss")
    vision, text = config.vision, config.text
    if vision.norm_eps != _TIMM_EPS:
        eps = f"norm_eps {vision.norm_eps:g} of the image tower: expected {_TIMM_EPS:g}"
        raise UserError(f"layout 'open_clip': {eps}, as timm's have")
    trunk = _B16_NAME
    if vision.model_dump(include=set(_B16)) != _B16:
        trunk = f"local-dir:{directory.resolve() / _TRUNK}"
        args = {"img_size": vision.image_size, "embed_dim": vision.dim}
        args |= vision.model_dump(include={"patch_size", "depth", "num_heads", "mlp_ratio"})
        about = {"architecture": _B16_NAME, "num_classes": 0, "model_args": args, "pretrained_cfg": {}}
        write_json(directory / _TRUNK / "config.json", about)
    image = {"image_size": vision.image_size, "timm_model_name": trunk, "timm_model_pretrained": False}
    words = text.model_dump(include={"context_length", "vocab_size", "mlp_ratio"})
    words |= {"width": text.dim, "heads": text.num_heads, "layers": text.depth}
    # quick_gelu: of the text tower; timm's towers have GELU
    sizes: dict[str, object] = {"embed_dim": config.embed_dim, "quick_gelu": True}
    sizes |= {"vision_cfg": image | {"timm_pool": "", "timm_proj": "linear"}}
    sizes |= {"text_cfg": words | {"norm_kwargs": {"eps": text.norm_eps}}}
    pixels = {"mean": vision.mean or _HALF, "std": vision.std or _HALF, "resize_mode": "shortest"}
    pixels |= {"interpolation": config.interpolation}
    write_json(directory / libraries.OPEN_CLIP_CONFIG, {"model_cfg": sizes, "preprocess_cfg": pixels})
    state = {name.replace("visual.", "visual.trunk.", 1): value for name, value in diffclip.to_released(model).items()}
    state["visual.head.proj.weight"] = state.pop("image_projection").T
    with replacing(directory / _OPEN_CLIP_WEIGHTS) as temporary:
        save_file({name: value.detach().contiguous() for name, value in state.items()}, temporary)
    return directory / _OPEN_CLIP_WEIGHTS
