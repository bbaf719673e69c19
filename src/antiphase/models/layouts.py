"""CLIPs of ours as open_clip and transformers store them: directories that these libraries load without antiphase."""

import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphase.errors import UserError
from antiphase.files import write_json, write_text
from antiphase.models.checkpoints import State
from antiphase.models.clip import CLIP, ClipConfig, tokenizer
from antiphase.models.schemes.diffclip import to_released
from antiphase.models.schemes.libraries import OPEN_CLIP_CONFIG, import_extra, quiet

_OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
_TRUNK = "image-tower"  # folder of timm's configuration
_B16_NAME = "vit_base_patch16_224"  # in timm
_B16 = {"image_size": 224, "patch_size": 16, "dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_SMALL = 2.0**-32  # of an image token: its variance vanishes next to any ε of a layer norm
_TIMM_EPS = 1e-6
_HALF = (0.5, 0.5, 0.5)  # what a vision transformer of ours normalises with unless told otherwise
# ours to those of transformers, in this order
_TABLE = """
visual. vision_model.   vision_model.norm. vision_model.post_layernorm.   blocks. encoder.layers.
text. text_model.       text_model.norm. text_model.final_layer_norm.     .norm .layer_norm
.attn.proj. .self_attn.out_proj.   .attn. .self_attn.
"""
_RENAMED = _TABLE.split()


def write_foreign(model: CLIP, directory: Path, layout: str) -> Path:
    """Write a CLIP for another library, ``"open_clip"`` or ``"transformers"``; return the path of its weights.

    open_clip: ``create_model_and_transforms("local-dir:DIRECTORY")``. An image tower of other sizes than ViT-B/16 is in
    a folder of its own, which ``open_clip_config.json`` names by its absolute path.

    transformers: ``CLIPModel.from_pretrained(DIRECTORY)``. Tokens are scaled down by 2^32 before its first layer norm,
    which ours lacks, so that its ε counts and not their variance; float16 cannot hold them.
    """
    config = model.config
    assert config is not None
    for tower, kind in (("image", config.vision.attention), ("text", config.text.attention)):
        if kind != "softmax":
            fix = "expected standard attention in both towers; export it in layout antiphase or released"
            raise UserError(f"layout {layout!r}: the {tower} tower has {kind} attention; {fix}")
    if model.logit_bias is not None:
        raise UserError(f"layout {layout!r}: cannot store a logit bias; expected a model of the CLIP loss")
    write = {"open_clip": _write_open_clip, "transformers": _write_transformers}[layout]
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as staging, torch.no_grad():
        weights = write(model, config, Path(staging), directory)
        for path in sorted(Path(staging).rglob("*")):
            target = directory / path.relative_to(staging)
            target.mkdir(exist_ok=True) if path.is_dir() else os.replace(path, target)
    return directory / weights


def _write_open_clip(model: CLIP, config: ClipConfig, folder: Path, final: Path) -> str:
    vision, text = config.vision, config.text
    if vision.norm_eps != _TIMM_EPS:
        eps = f"norm_eps {vision.norm_eps:g} of the image tower: expected {_TIMM_EPS:g}"
        raise UserError(f"layout 'open_clip': {eps}, as timm's have")
    trunk = _B16_NAME
    if vision.model_dump(include=set(_B16)) != _B16:
        trunk = f"local-dir:{final.resolve() / _TRUNK}"
        args = {"img_size": vision.image_size, "embed_dim": vision.dim}
        args |= vision.model_dump(include={"patch_size", "depth", "num_heads", "mlp_ratio"})
        (folder / _TRUNK).mkdir()
        about = {"architecture": _B16_NAME, "num_classes": 0, "model_args": args, "pretrained_cfg": {}}
        write_json(folder / _TRUNK / "config.json", about)
    image = {"image_size": vision.image_size, "timm_model_name": trunk, "timm_model_pretrained": False}
    words = text.model_dump(include={"context_length", "vocab_size", "mlp_ratio"})
    words |= {"width": text.dim, "heads": text.num_heads, "layers": text.depth}
    sizes = {
        "embed_dim": config.embed_dim,
        "quick_gelu": True,  # of the text tower; timm's towers have GELU
        "vision_cfg": image | {"timm_pool": "", "timm_proj": "linear"},
        "text_cfg": words | {"norm_kwargs": {"eps": text.norm_eps}},
    }
    pixels = {"mean": vision.mean or _HALF, "std": vision.std or _HALF, "resize_mode": "shortest"}
    pixels |= {"interpolation": config.interpolation}
    write_json(folder / OPEN_CLIP_CONFIG, {"model_cfg": sizes, "preprocess_cfg": pixels})
    state = {name.replace("visual.", "visual.trunk.", 1): value for name, value in to_released(model).items()}
    state["visual.head.proj.weight"] = state.pop("image_projection").T
    save_file({name: value.contiguous() for name, value in state.items()}, folder / _OPEN_CLIP_WEIGHTS)
    return _OPEN_CLIP_WEIGHTS


def _write_transformers(model: CLIP, config: ClipConfig, folder: Path, final: Path) -> str:
    transformers = import_extra("transformers", "layout 'transformers'")
    vision, text, end = config.vision, config.text, config.text.vocab_size - 1
    names = "hidden_size num_hidden_layers num_attention_heads layer_norm_eps intermediate_size hidden_act"
    towers = ((vision, "gelu"), (text, "quick_gelu"))
    fields = [(one.dim, one.depth, one.num_heads, one.norm_eps, int(one.dim * one.mlp_ratio), f) for one, f in towers]
    both = {"projection_dim": config.embed_dim}
    image, words = (both | dict(zip(names.split(), sizes, strict=True)) for sizes in fields)
    image |= {"image_size": vision.image_size, "patch_size": vision.patch_size}
    words |= {"vocab_size": text.vocab_size, "max_position_embeddings": text.context_length}
    words |= {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    about = transformers.CLIPConfig(vision_config=image, text_config=words, projection_dim=config.embed_dim)
    side = vision.image_size
    with quiet(transformers):
        with torch.device("meta"):
            theirs = transformers.CLIPModel(about)
        theirs.load_state_dict(_to_transformers(model, vision.norm_eps), assign=True)
        theirs.save_pretrained(folder)
        pixels = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
        pixels |= {"image_mean": list(vision.mean or _HALF), "image_std": list(vision.std or _HALF)}
        resample = {"bilinear": 2, "bicubic": 3}[config.interpolation]
        transformers.CLIPImageProcessor(**pixels, resample=resample).save_pretrained(folder)
    # open_clip's byte pairs, of which a CLIPTokenizer calls the first and the last token otherwise
    ours, start, end_text = tokenizer(), "<|startoftext|>", "<|endoftext|>"
    special: dict[int, str] = {ours.sot_token_id: start, ours.eot_token_id: end_text}
    write_json(folder / "vocab.json", {special.get(number, word): number for word, number in ours.encoder.items()})
    pairs = sorted(ours.bpe_ranks, key=ours.bpe_ranks.get)
    write_text(folder / "merges.txt", "\n".join(["#version: 0.2", *map(" ".join, pairs), ""]))
    tokens = {"bos_token": start} | dict.fromkeys(("eos_token", "unk_token", "pad_token"), end_text)
    about = {"tokenizer_class": "CLIPTokenizer", "model_max_length": text.context_length}
    write_json(folder / "tokenizer_config.json", about | tokens)
    return "model.safetensors"


def _to_transformers(model: CLIP, eps: float) -> State:
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    shift = own.pop("visual.patch_embed.proj.bias")  # of every patch: becomes part of its position
    positions = own.pop("visual.pos_embed")[0]
    positions[1:] += shift
    image, words = "vision_model.embeddings.", "text_model.embeddings."
    state = {
        f"{image}class_embedding": own.pop("visual.cls_token").flatten() * _SMALL,
        f"{image}patch_embedding.weight": own.pop("visual.patch_embed.proj.weight") * _SMALL,
        f"{image}position_embedding.weight": positions * _SMALL,
        "vision_model.pre_layrnorm.weight": torch.full_like(shift, eps**0.5 / _SMALL),
        "vision_model.pre_layrnorm.bias": torch.zeros_like(shift),
        f"{words}token_embedding.weight": own.pop("text.token_embed.weight"),
        f"{words}position_embedding.weight": own.pop("text.pos_embed"),
        "visual_projection.weight": own.pop("image_projection").T.contiguous(),
        "text_projection.weight": own.pop("text_projection").T.contiguous(),
        "logit_scale": own.pop("logit_scale"),
    }
    for name, weight in own.items():
        for ours, theirs in zip(_RENAMED[::2], _RENAMED[1::2], strict=True):
            name = name.replace(ours, theirs)
        parts = [name.replace(".qkv.", f".{part}_proj.") for part in "qkv"] if ".qkv." in name else [name]
        state |= {part: values.contiguous() for part, values in zip(parts, weight.chunk(len(parts)), strict=True)}
    return state
