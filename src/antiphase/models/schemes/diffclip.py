"""The released checkpoints of DiffCLIP and its baseline: their layout, and the model that it tells of."""

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open
from torch import nn

from antiphase.data.hub import offline_at_once
from antiphase.errors import UserError
from antiphase.models import checkpoints, transformer
from antiphase.models.clip import CLIP, ClipConfig, bare_clip, build_clip, configure_clip
from antiphase.models.schemes.scheme import Wanted, downloading, scheme

RELEASED_FILE = "checkpoint_best.pt"
CONFIG = "config"  # of the model, in the header of the files that we write in this layout
_ANCHORS = ("visual.patch_embed.proj.weight", "token_embedding.weight", "image_projection")  # in all of them
_HEAD = 64  # head width of the standard twin in all released checkpoints
_LAYOUT = "expected the layout of DiffCLIP's released checkpoints"
_BLOCKS = {"visual": "visual.blocks", "text": "transformer.resblocks"}
_TOWERS = {("visual", "text"): "both", ("visual",): "vision", ("text",): "text", (): None}

# ours to theirs in the text tower, outside the attention modules; the image tower has timm's names, as ours
_TABLE = """
text.token_embed. token_embedding.    text.pos_embed positional_embedding       text.norm. ln_final.
text.blocks.      transformer.resblocks.
.norm1.           .ln_1.              .norm2.        .ln_2.
.mlp.fc1.         .mlp.c_fc.          .mlp.fc2.      .mlp.c_proj.
"""
_NAMES = tuple(zip(_TABLE.split()[::2], _TABLE.split()[1::2], strict=True))
# ours to theirs inside the attention modules; `qkv` may map to three parameters
_OUT = {"proj.weight": "out_proj.weight", "proj.bias": "out_proj.bias"}
_STANDARD = {"visual": {}, "text": {"qkv.weight": "in_proj_weight", "qkv.bias": "in_proj_bias", **_OUT}}
_DIFFERENTIAL: dict[str, Any] = {
    **{f"qkv.{part}": [f"{name}_proj.{part}" for name in "qkv"] for part in ("weight", "bias")},
    **_OUT,
    "norm.weight": "diff_norm.weight",
    **{f"lam.{name}": f"lambda_{name}" for name in ("q1", "k1", "q2", "k2")},
}
# of differential towers, what the authors' code computes
_EXPRESSED = {"attention": "differential", "parameterisation": "vector", "head_norm": True, "rescale": True}
_EXPRESSED |= {"bias": True, "lambda_max": None, "temperature": 1.0, "output_gate": False}


def read_released(name: str | Path) -> checkpoints.State:
    """Read the weights of a released checkpoint under the names that the authors gave them."""
    return checkpoints.read_state(name, dict.fromkeys(_ANCHORS, torch.empty(0)), sized=False)


def stored_config(path: Path) -> ClipConfig | None:
    """Return the configuration in the header of a file written by antiphase; None for the authors' files."""
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(CONFIG)
        return None if text is None else checkpoints.as_config(ClipConfig, json.loads(text), f"{path}: ")
    except (OSError, SafetensorError):  # a pickle
        return None
    except (json.JSONDecodeError, RecursionError):
        raise UserError(f"{path}: its header is damaged; export the model again") from None


def config_of(state: checkpoints.State, source: str, lambda_init: float | Literal["depth"] | None) -> ClipConfig:
    """Infer a configuration from the names and shapes in a released checkpoint, and from λ_init."""
    differential: list[str] = []
    for tower, blocks in _BLOCKS.items():
        prefix = f"{blocks}.0.attn."
        if f"{prefix}lambda_q1" in state:
            differential.append(tower)
        elif f"{prefix}qkv.weight" not in state and f"{prefix}in_proj_weight" not in state:
            raise UserError(f"{source}: no attention under {prefix}*; {_LAYOUT}")
    if differential and lambda_init is None:
        fix = "write #lambda_init=0.8 behind its name for a constant λ_init, or #lambda_init=depth for DiffCLIP*"
        raise UserError(f"{source}: λ_init missing, the file does not contain it; {fix}")

    def shape(name: str, axes: int) -> tuple[int, ...]:
        sizes = tuple(state[name].shape) if name in state else ()
        if len(sizes) != axes or 0 in sizes:
            words = f"{name!r} has shape {sizes}, expected {axes} non-empty axes"
            words = words if name in state else f"parameter {name!r} is missing"
            raise UserError(f"{source}: {words}; {_LAYOUT}")
        return sizes

    def sizes(tower: str, dim: int) -> dict[str, int]:
        layers = (re.match(rf"{re.escape(_BLOCKS[tower])}\.(\d+)\.", name) for name in state)
        return {"dim": dim, "num_heads": dim // _HEAD, "depth": 1 + max(int(layer[1]) for layer in layers if layer)}

    dim, _, _, patch = shape("visual.patch_embed.proj.weight", 4)
    grid = round((shape("visual.pos_embed", 3)[1] - 1) ** 0.5)
    context, text_dim = shape("positional_embedding", 2)
    _, embed = shape("image_projection", 2)
    words, _ = shape("token_embedding.weight", 2)
    vision = {"image_size": grid * patch, "patch_size": patch, **sizes("visual", dim)}
    text = {"context_length": context, "vocab_size": words, **sizes("text", text_dim)}
    how: Any = {"embed_dim": embed, "init": "released", "towers": _TOWERS[tuple(differential)]}
    if lambda_init is not None:
        how |= {"schedule": "depth"} if lambda_init == "depth" else {"lambda_init": lambda_init}
    return configure_clip("b16", vision=vision, text=text, **how)


def from_released(state: checkpoints.State, config: ClipConfig, source: str = "checkpoint") -> checkpoints.State:
    """Rename weights from the released layout to ours; unknown names are kept, so that loading refuses them."""
    renamed: checkpoints.State = {}
    left = dict(state)
    for key, names in _translation(config).items():
        if all(name in left for name in names):
            parts = [left.pop(name) for name in names]
            if len(parts) > 1 and (len({part.shape for part in parts}) > 1 or not parts[0].ndim):
                raise UserError(f"{source}: {', '.join(names)} have different shapes; {_LAYOUT}")
            renamed[key] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return renamed | left


def to_released(model: CLIP) -> checkpoints.State:
    """Return a model's weights in the released layout, for the authors' own code; refuse what it cannot express."""
    if model.config is None or model.logit_bias is not None:
        raise UserError("the released layout cannot store a logit bias; expected a model of the CLIP loss")
    for tower in (model.config.vision, model.config.text):
        for name, value in _EXPRESSED.items() if tower.attention != "softmax" else ():
            if (setting := getattr(tower, name)) != value:
                why = f"cannot store {name} {setting}, expected {value}"
                raise UserError(f"the released layout {why}; use layout antiphase")
    state, released = model.state_dict(), checkpoints.State()
    for key, names in _translation(model.config).items():
        parts = state[key].chunk(len(names)) if len(names) > 1 else [state[key]]
        released |= {name: part.clone() for name, part in zip(names, parts, strict=True)}
    return released


def _translation(config: ClipConfig) -> dict[str, list[str]]:
    with torch.device("meta"):
        names = list(bare_clip(config).state_dict())
    kinds = {"visual": config.vision.attention, "text": config.text.attention}
    table: dict[str, list[str]] = {}
    for name in names:
        tower = name.partition(".")[0]
        prefix, attn, inside = name.partition(".attn.")
        for old, new in _NAMES if tower == "text" else ():
            prefix = prefix.replace(old, new)
        if attn:
            inside = (_DIFFERENTIAL if kinds[tower] == "differential" else _STANDARD[tower]).get(inside, inside)
        several = [inside] if isinstance(inside, str) else inside
        table[name] = [f"{prefix}{attn}{part}" for part in several]
    return table


def local_checkpoint(name: str) -> Path | None:
    """Return the file of a released checkpoint by its path or folder; None for a repository on the hub."""
    if (path := Path(name).expanduser()).is_dir():
        return path / RELEASED_FILE
    return path if path.exists() or path.suffix in (".pt", ".pth") else None


def read_lambda_init(spec: str, setting: str) -> float | Literal["depth"]:
    """Return the λ_init behind the ``#`` of a ``diffclip:`` specification."""
    name, _, value = setting.partition("=")
    if name == "lambda_init" and value == "depth":
        return "depth"
    try:
        if name != "lambda_init" or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    except ValueError:
        raise UserError(f"{spec}: expected #lambda_init=0.8 (or another number), or =depth") from None


@scheme("diffclip:PATH#lambda_init=0.8", "a released DiffCLIP or its baseline, a file or a hub repository")
def _diffclip(request: Wanted) -> nn.Module:
    name, _, setting = request.name.partition("#")
    lambda_init = read_lambda_init(request.spec, setting) if setting else None
    if (path := local_checkpoint(name)) is None:
        fix = "give a path, or download it on a machine with network access"
        with downloading(f"diffclip:{name}: not a local file, and not available from the hub", fix), offline_at_once():
            path = Path(hf_hub_download(name, RELEASED_FILE))
    state, config = read_released(path), stored_config(path)
    if config is not None and lambda_init is not None:
        raise UserError(f"{name}: lambda_init {lambda_init}: the file's header has it already; leave it out")
    if config is None:
        config = config_of(state, str(path), lambda_init)
        if any(transformer.attention_spec(tower.attention).differential for tower in (config.vision, config.text)):
            told = f"{name}: λ_init = {lambda_init} cannot be checked, the file does not contain it"
            wrong = "with a wrong λ_init the checkpoint loads without error but gives wrong outputs"
            warnings.warn(f"{told}; {wrong}", stacklevel=2)
        elif lambda_init is not None:
            raise UserError(f"{name}: lambda_init {lambda_init}: no tower has a λ; leave it out")
    model = build_clip(config)
    checkpoints.load_into(model, from_released(state, config, str(path)), str(path))
    return request.loaded(model, name, image_shape=model.image_shape)
