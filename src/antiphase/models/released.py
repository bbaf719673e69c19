"""The layout of DiffCLIP's released checkpoints: detect differential towers and translate parameter names."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from antiphase.errors import UserError
from antiphase.models.clip import CLIP, ClipConfig, bare_clip
from antiphase.models.clip_factories import configure_clip, valid_clip
from antiphase.models.weight_files import read_state

State = dict[str, Tensor]
_ANCHORS = ("visual.patch_embed.proj.weight", "token_embedding.weight", "image_projection")  # in all of them
CONFIG = "config"  # of the model, in the header of the files that we write in this layout
_HEAD = 64  # head width of the standard twin in all released checkpoints
Attention = Literal["softmax", "differential"]

# ours to theirs, outside the attention modules
_NAMES = (
    (r"^text\.token_embed\.", "token_embedding."),
    (r"^text\.pos_embed$", "positional_embedding"),
    (r"^text\.norm\.", "ln_final."),
    (r"^text\.blocks\.(\d+)\.norm1\.", r"transformer.resblocks.\1.ln_1."),
    (r"^text\.blocks\.(\d+)\.norm2\.", r"transformer.resblocks.\1.ln_2."),
    (r"^text\.blocks\.(\d+)\.mlp\.fc1\.", r"transformer.resblocks.\1.mlp.c_fc."),
    (r"^text\.blocks\.(\d+)\.mlp\.fc2\.", r"transformer.resblocks.\1.mlp.c_proj."),
    (r"^text\.blocks\.(\d+)\.attn\.", r"transformer.resblocks.\1.attn."),
)
# ours to theirs inside the attention modules, by tower and kind; `qkv` may map to three parameters
_ATTENTION: dict[tuple[str, str], dict[str, str | tuple[str, ...]]] = {
    ("visual", "softmax"): {},
    ("text", "softmax"): {
        "qkv.weight": "in_proj_weight",
        "qkv.bias": "in_proj_bias",
        "proj.weight": "out_proj.weight",
        "proj.bias": "out_proj.bias",
    },
} | {
    (tower, "differential"): {
        **{f"qkv.{part}": tuple(f"{name}_proj.{part}" for name in "qkv") for part in ("weight", "bias")},
        "proj.weight": "out_proj.weight",
        "proj.bias": "out_proj.bias",
        "norm.weight": "diff_norm.weight",
        **{f"lam.{name}": f"lambda_{name}" for name in ("q1", "k1", "q2", "k2")},
    }
    for tower in ("visual", "text")
}


def read_released(name: str | Path) -> State:
    """Read the weights of a released checkpoint under the names that the authors gave them.

    Raises:
        UserError: as :func:`~antiphase.models.weight_files.read_state`.
    """
    return read_state(name, dict.fromkeys(_ANCHORS, torch.empty(0)), sized=False)


def stored_config(path: Path) -> ClipConfig | None:
    """Return the configuration in the header of a file written by antiphase; None for the authors' files.

    Raises:
        UserError: if it is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(CONFIG)
        return None if text is None else valid_clip(json.loads(text), f"{path}: ")
    except (OSError, SafetensorError):  # a pickle
        return None
    except (json.JSONDecodeError, RecursionError):
        raise UserError(f"{path}: its header is damaged; export the model again") from None


def towers_of(state: State, source: str) -> dict[str, Attention]:
    """Detect the kind of attention of the image and the text tower from the parameter names.

    Raises:
        UserError: if a tower has no known kind of attention.
    """
    found: dict[str, Attention] = {}
    for tower, prefix in (("visual", "visual.blocks.0.attn."), ("text", "transformer.resblocks.0.attn.")):
        if f"{prefix}lambda_q1" in state:
            found[tower] = "differential"
        elif f"{prefix}qkv.weight" in state or f"{prefix}in_proj_weight" in state:
            found[tower] = "softmax"
        else:
            raise UserError(
                f"{source}: no attention under {prefix}*; expected the layout of DiffCLIP's released checkpoints"
            )
    return found


def config_of(
    state: State, source: str, *, lambda_init: float | None, schedule: str = "constant"
) -> ClipConfig:
    """Infer a configuration from the names and shapes in a released checkpoint, and from λ_init.

    Heads are 64 wide, as in all released checkpoints; layer norms are as in the released code.

    Raises:
        UserError: if a parameter is missing or has the wrong number of axes, or if λ_init is missing.
    """
    towers = towers_of(state, source)
    differential = tuple(tower for tower, kind in towers.items() if kind == "differential")
    if differential and lambda_init is None and schedule == "constant":
        raise UserError(
            f"{source}: λ_init missing, the file does not contain it; pass lambda_init=0.8 for a constant "
            "λ_init, or lambda_init='depth' for DiffCLIP*"
        )
    dim, _, _, patch = _shape(state, "visual.patch_embed.proj.weight", 4, source)
    grid = round((_shape(state, "visual.pos_embed", 3, source)[1] - 1) ** 0.5)
    context, text_dim = _shape(state, "positional_embedding", 2, source)
    _, embed = _shape(state, "image_projection", 2, source)
    words, _ = _shape(state, "token_embedding.weight", 2, source)
    named = {("visual", "text"): "both", ("visual",): "vision", ("text",): "text", (): None}[
        tuple(differential)
    ]
    chosen: dict[str, Any] = {"towers": named, "schedule": schedule, "init": "released"}
    if lambda_init is not None:
        chosen["lambda_init"] = lambda_init
    return configure_clip(
        "b16",
        vision={
            "image_size": grid * patch,
            "patch_size": patch,
            "dim": dim,
            "num_heads": dim // _HEAD,
            "depth": _depth(state, r"visual\.blocks\.(\d+)\."),
        },
        text={
            "dim": text_dim,
            "context_length": context,
            "vocab_size": words,
            "num_heads": text_dim // _HEAD,
            "depth": _depth(state, r"transformer\.resblocks\.(\d+)\."),
        },
        embed_dim=embed,
        **chosen,
    )


def from_released(state: State, config: ClipConfig, source: str = "checkpoint") -> State:
    """Rename weights from the released layout to ours; unknown names are kept, so that loading refuses them.

    Raises:
        UserError: if the shapes of query, key and value weights differ.
    """
    mine: State = {}
    left = dict(state)
    for ours, theirs in _translation(config).items():
        if all(name in left for name in theirs):
            parts = [left.pop(name) for name in theirs]
            if len(parts) > 1 and (len({part.shape for part in parts}) > 1 or not parts[0].ndim):
                raise UserError(
                    f"{source}: {', '.join(theirs)} have different shapes; the architecture does not match"
                )
            mine[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return mine | left


def to_released(model: CLIP) -> State:
    """Return a model's weights in the released layout, for the authors' own code.

    Raises:
        UserError: if the layout cannot express the model.
    """
    if model.config is None or model.logit_bias is not None:
        raise UserError(
            "the released layout cannot store a logit bias; expected a model trained with the CLIP loss"
        )
    state = model.state_dict()
    return {
        one: part.clone()
        for ours, theirs in _translation(model.config).items()
        for one, part in zip(
            theirs, state[ours].chunk(len(theirs)) if len(theirs) > 1 else [state[ours]], strict=True
        )
    }


def _translation(config: ClipConfig) -> dict[str, tuple[str, ...]]:
    """Map each of our parameter names to theirs; several if their layout splits the parameter."""
    with torch.device("meta"):
        names = list(bare_clip(config).state_dict())
    kinds = {"visual": config.vision.attention, "text": config.text.attention}
    table: dict[str, tuple[str, ...]] = {}
    for name in names:
        theirs = name
        for pattern, replacement in _NAMES:
            theirs = re.sub(pattern, replacement, theirs)
        before, attn, rest = theirs.partition(".attn.")
        tower = name.partition(".")[0]
        inside = _ATTENTION[tower, kinds[tower]].get(rest, rest) if attn else rest
        several = (inside,) if isinstance(inside, str) else inside
        table[name] = tuple(f"{before}{attn}{one}" for one in several)
    return table


def _shape(state: State, name: str, axes: int, source: str) -> tuple[int, ...]:
    layout = "expected the layout of DiffCLIP's released checkpoints"
    if name not in state:
        raise UserError(f"{source}: parameter {name!r} is missing; {layout}")
    shape = tuple(state[name].shape)
    if len(shape) != axes or 0 in shape:
        raise UserError(f"{source}: {name!r} has shape {shape}, expected {axes} non-empty axes; {layout}")
    return shape


def _depth(state: State, pattern: str) -> int:
    return 1 + max(int(match[1]) for name in state if (match := re.match(pattern, name)))
