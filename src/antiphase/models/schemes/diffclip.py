"""The layout of DiffCLIP's released checkpoints: detect differential towers and translate parameter names."""

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, shown
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.checkpoints import read_state
from antiphase.models.clip import CLIP, ClipConfig, bare_clip, build_clip, configure_clip, valid_clip
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.scheme import Scheme, Wanted
from antiphase.models.transformer import attention_spec

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
        UserError: as :func:`~antiphase.models.checkpoints.read_state`.
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


RELEASED_FILE = "checkpoint_best.pt"


def load_released(name: str, lambda_init: float | Literal["depth"] | None) -> CLIP:
    """Load one of the authors' checkpoints: DiffCLIP, its baseline, or the vision-only model.

    Args:
        name: a file, a folder with ``checkpoint_best.pt``, or a repository on the Hugging Face hub.
        lambda_init: λ_init, which the file does not contain; ``"depth"`` for DiffCLIP*, None for the baseline.

    Raises:
        UserError: if the checkpoint cannot be found or read, or if λ_init is missing or has no use.
    """
    path = _released_file(name)
    state = read_released(path)
    config = stored_config(path)
    if config is not None and lambda_init is not None:
        raise UserError(f"{name}: lambda_init {lambda_init}: the file's header has it already; leave it out")
    if config is None:
        schedule = "depth" if lambda_init == "depth" else "constant"
        number = None if isinstance(lambda_init, str) else lambda_init
        config = config_of(state, str(path), lambda_init=number, schedule=schedule)
        differential = any(attention_spec(of.attention).differential for of in (config.vision, config.text))
        if lambda_init is not None and not differential:
            raise UserError(
                f"{name}: lambda_init {lambda_init}: both towers have standard attention, without λ; leave it out"
            )
        if differential:
            warnings.warn(
                f"{name}: λ_init = {lambda_init} cannot be checked, the file does not contain it; with a wrong λ_init "
                "the checkpoint loads without error but gives wrong outputs",
                stacklevel=2,
            )
    model = build_clip(config)
    checkpoints.load_into(model, from_released(state, config, str(path)), str(path))
    return model


def local_checkpoint(name: str) -> Path | None:
    """Return the file of a released checkpoint by its path or folder; None for a repository on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path / RELEASED_FILE
    return path if path.exists() or path.suffix in (".pt", ".pth") else None


def _released_file(name: str) -> Path:
    if (path := local_checkpoint(name)) is not None:
        return path
    try:
        with offline_at_once():
            return Path(hf_hub_download(name, RELEASED_FILE))
    except OFFLINE as error:
        reason = first_line(error)
        raise UserError(
            f"diffclip:{name}: not a local file, and not available from the hub ({reason}); give a path, or "
            "download it on a machine with network access"
        ) from None


def _load_released(wanted: Wanted) -> nn.Module:
    path, _, setting = wanted.name.partition("#")
    if setting and wanted.lambda_init is not None:
        raise UserError(
            f"{wanted.spec}: lambda_init {shown(wanted.lambda_init)} is given twice; leave one of them out"
        )
    chosen = read_lambda_init(wanted.spec, setting) if setting else wanted.lambda_init
    model = load_released(path, chosen)
    return with_card(model, ModelCard(path, wanted.spec, attention_kind(model), None, model.image_shape, 0))


def read_lambda_init(spec: str, setting: str) -> float | Literal["depth"]:
    """Return the λ_init behind the ``#`` of a ``diffclip:`` specification.

    Raises:
        UserError: the setting is another one, or no number.
    """
    name, _, value = setting.partition("=")
    if name == "lambda_init" and value == "depth":
        return "depth"
    try:
        if name != "lambda_init" or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    except ValueError:
        raise UserError(
            f"{spec}: expected #lambda_init=0.8 (or another number) or #lambda_init=depth"
        ) from None


DIFFCLIP = Scheme(
    "diffclip:PATH#lambda_init=0.8",
    "a released checkpoint of DiffCLIP or its baseline, a file or a hub repository",
    _load_released,
)
