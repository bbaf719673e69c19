"""One dual encoder class for CLIP, DiffCLIP and its variants, which differ only in their attention modules."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import PositiveFloat, ValidationError
from torch import Tensor, nn

from antiphase.arguments import Fields, Seed, validated
from antiphase.attention.lambdas import lambda_of
from antiphase.data.decoding import Square
from antiphase.errors import UserError, invalid
from antiphase.models.transformer import (
    AttentionFactory,
    Block,
    QuickGELU,
    ScheduleName,
    Size,
    TowerConfig,
    attention_slot,
    check_memory,
    run_blocks,
)
from antiphase.models.vit import VisionTransformer, VitConfig, build_vision, draw_own
from antiphase.registry import CLIPS, find
from antiphase.streams import generator

if TYPE_CHECKING:
    from open_clip.tokenizer import SimpleTokenizer


VOCABULARY = 49_408  # of OpenAI's byte-pair encoding; the last entry is end-of-text
_STEP = 8  # lengths are rounded up to a multiple: few shapes to compile, few wasted tokens


class TextConfig(TowerConfig):
    """Architecture of a text tower."""

    vocab_size: Size = VOCABULARY
    context_length: Size = 77
    norm_eps: PositiveFloat = 1e-5


class TextTransformer(nn.Module):
    """Encode each text's token ids as one feature vector, the layer-normalised output at the end-of-text token.

    Source: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021,
    Section 2.4 (causal attention, QuickGELU).

    Args:
        attention: ``attention(layer_index)`` returns the attention module of a layer.
        vocab_size: number of token ids; the largest is end-of-text.
        context_length: maximum number of tokens per text.
        dim: token width.
        depth: number of blocks.
        mlp_ratio: hidden width of the MLP divided by ``dim``.
        norm_eps: ε of the layer norms.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        *,
        vocab_size: int,
        context_length: int,
        dim: int,
        depth: int,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.context_length = context_length
        self.checkpointing = False  # recompute each block in the backward pass: slower, less memory
        self.token_embed = nn.Embedding(vocab_size, dim)
        self.pos_embed = nn.Parameter(torch.zeros(context_length, dim))
        self.blocks = nn.ModuleList(
            Block(dim, attention(layer), mlp_ratio, QuickGELU(), norm_eps) for layer in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=norm_eps)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch dim"]:
        """Return one feature vector per text.

        Args:
            tokens: at most ``context_length`` ids per row; a text ends at the largest id of its row, and later ids
                have no effect (see :func:`trimmed`).

        Raises:
            ValueError: if there are more than ``context_length`` tokens.
        """
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(f"{length} tokens: expected at most {self.context_length}, the context length")
        x = self.token_embed(tokens) + self.pos_embed[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        x = run_blocks(self.blocks, x, mask, checkpointing=self.checkpointing)
        return self.norm(x[torch.arange(len(x), device=x.device), tokens.argmax(1)])


def trimmed(tokens: Int64[Tensor, "batch length"]) -> Int64[Tensor, "batch shorter"]:
    """Drop the columns after the last end-of-text token.

    Attention is causal, so the features do not change; captions fill about a fifth of the 77 positions.
    """
    needed = int(tokens.argmax(1).max()) + 1
    return tokens[:, : min(-(-needed // _STEP) * _STEP, tokens.shape[1])]


def tokenize(texts: Sequence[str], context_length: int = 77) -> Int64[Tensor, "batch length"]:
    """Return byte-pair ids: start, words, end, zero padding; a long text is truncated but keeps its end token.

    >>> tokenize(["a mug"], 5).tolist()
    [[49406, 320, 9722, 49407, 0]]
    """
    return _tokenizer()(list(texts), context_length)


@functools.cache
def _tokenizer() -> "SimpleTokenizer":
    from open_clip.tokenizer import SimpleTokenizer  # seconds to import

    return SimpleTokenizer()


def as_tokens(texts: "Sequence[str] | Tensor", context_length: int) -> Tensor:
    """Tokenise strings; return token ids unchanged.

    Raises:
        TypeError: for a single string, which would be read as a list of letters.
    """
    if isinstance(texts, str):
        raise TypeError(f"text {texts!r}: expected a list of strings, such as [{texts!r}]")
    return texts if isinstance(texts, Tensor) else tokenize(texts, context_length)


def text_tower(config: TextConfig, attention: AttentionFactory) -> TextTransformer:
    """Build a text tower with the constructors' weights.

    Raises:
        UserError: if it does not fit the memory.
    """
    check_memory(config, config.vocab_size + config.context_length)
    sizes: dict[str, Any] = config.model_dump(
        include={"vocab_size", "context_length", "dim", "depth", "mlp_ratio", "norm_eps"}
    )
    return TextTransformer(attention, **sizes)


Init = Literal["matched", "released"]


LOGIT_SCALE = math.log(1 / 0.07)  # CLIP, Section 2.5


class ClipConfig(Fields):
    """Architecture of a dual encoder; stored next to its weights.

    ``interpolation`` is used to resize the shorter side of an image before its centre is cropped. The mean and
    standard deviation of the pixels belong to the image tower.
    """

    vision: VitConfig
    text: TextConfig
    embed_dim: Size
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    init: Init = "matched"
    logit_scale: float = LOGIT_SCALE
    logit_bias: float | None = None


class CLIP(nn.Module):
    """Embed images in [0, 1] and texts in one space, where matching pairs have a high cosine (vectors not normalised).

    Sources: A. Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021;
    H. Hammoud, B. Ghanem, *DiffCLIP: Differential Attention Meets CLIP*, TMLR 2025, Section 3.

    Args:
        visual: image tower without a head.
        text: text tower.
        widths: feature widths of the image tower and the text tower.
        embed_dim: width of the common space.
        logit_scale: natural logarithm of the factor on the cosines.
        logit_bias: added to the logits by the sigmoid loss; None for no bias.
    """

    @validated
    def __init__(
        self,
        visual: VisionTransformer,
        text: TextTransformer,
        widths: tuple[int, int],
        embed_dim: int,
        *,
        logit_scale: float = LOGIT_SCALE,
        logit_bias: float | None = None,
    ) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.image_projection = nn.Parameter(torch.zeros(widths[0], embed_dim))
        self.text_projection = nn.Parameter(torch.zeros(widths[1], embed_dim))
        self.logit_scale = nn.Parameter(torch.tensor(float(logit_scale)))
        self.logit_bias = None if logit_bias is None else nn.Parameter(torch.tensor(float(logit_bias)))
        self.image_shape = visual.image_shape
        self.square = Square(self.image_shape[1])
        self.config: ClipConfig | None = None  # set by the factories

    def encode_image(
        self,
        images: Float[Tensor, "batch 3 height width"],
        normalize: bool = False,
        *,
        keep: Int64[Tensor, "batch kept"] | None = None,
    ) -> Float[Tensor, "batch embed"]:
        """Return image embeddings, of length 1 if ``normalize``; ``keep`` as in :class:`VisionTransformer`."""
        embeddings = self.visual(images, keep) @ self.image_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def encode_text(
        self, texts: Sequence[str] | Int64[Tensor, "batch length"], normalize: bool = False
    ) -> Float[Tensor, "batch embed"]:
        """Return text embeddings, of length 1 if ``normalize``."""
        tokens = as_tokens(texts, self.text.context_length).to(self.text_projection.device)
        embeddings = self.text(trimmed(tokens)) @ self.text_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def forward(
        self,
        images: Float[Tensor, "batch 3 height width"],
        texts: Sequence[str] | Int64[Tensor, "batch length"],
        keep: Int64[Tensor, "batch kept"] | None = None,
    ) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch embed"]]:
        return self.encode_image(images, keep=keep), self.encode_text(texts)


@validated
def build_clip(config: ClipConfig, seed: Seed = 0) -> CLIP:
    """Build a model from its configuration, with weights drawn from ``seed``.

    Raises:
        UserError: if the sizes are incompatible.
    """
    with torch.random.fork_rng(devices=[]):  # the constructors' weights are overwritten
        model = bare_clip(config)
    initialise_clip(model, config.init, seed)
    return model


def bare_clip(config: ClipConfig) -> CLIP:
    """Build a model with the constructors' default weights.

    Raises:
        UserError: if the sizes are incompatible.
    """
    if config.vision.num_classes:
        raise UserError(
            f"vision.num_classes {config.vision.num_classes}: expected 0, a CLIP's image tower has no head"
        )
    try:
        text = text_tower(config.text, attention_slot(config.text))
    except ValueError as error:
        raise UserError(f"text tower: {error}") from None
    model = CLIP(
        build_vision(config.vision),
        text,
        (config.vision.dim, config.text.dim),
        config.embed_dim,
        logit_scale=config.logit_scale,
        logit_bias=config.logit_bias,
    )
    model.config = config
    model.square = Square(config.vision.image_size, config.interpolation)
    return model


def initialise_clip(model: nn.Module, init: Init, seed: int) -> None:
    """Draw a dual encoder's weights anew; each parameter has a stream of its own.

    ``"matched"`` gives standard and differential towers the rule of the recipe's baseline, so that twins of
    a seed start from equal projections: image tower N(0, .02) with zero biases (timm's), text tower as SLIP
    and CLIP draw it. ``"released"`` differs, as the released DiffCLIP does, in differential towers: the image
    tower's blocks keep PyTorch's default, uniform within ±1/√fan_in with biases, and the text tower's
    attention keeps its biases. λ modules draw their own.

    Args:
        model: a :class:`~antiphase.models.clip.CLIP`.
        init: which of the two.
        seed: any integer.
    """
    drawn = draw_own(model, seed)
    for name, parameter in model.named_parameters():
        if name in drawn:
            continue
        tower, _, rest = name.partition(".")
        stream = generator(seed, "initialise", name)
        with torch.no_grad():
            if tower == "visual":
                _image_tower(model, rest, parameter, stream, init)
            elif tower == "text":
                _text_tower(model, rest, parameter, stream, init)
            elif name.endswith("_projection"):
                parameter.normal_(0.0, parameter.shape[0] ** -0.5, generator=stream)


def _image_tower(model: nn.Module, name: str, p: Tensor, stream: torch.Generator, init: Init) -> None:
    visual = model.get_submodule("visual")
    linear = name.rpartition(".")[0]
    default = name.startswith("patch_embed.") or (
        init == "released" and name.startswith("blocks.") and _differential(visual)
    )
    if "norm" in name:
        p.fill_(1.0 if name.endswith("weight") else 0.0)
    elif default:
        _torch_default(visual.get_submodule(linear), p, stream)
    elif name.endswith("bias"):
        p.zero_()
    else:
        std = 1e-6 if name == "cls_token" else 0.02
        nn.init.trunc_normal_(p, std=std, generator=stream)


def _text_tower(model: nn.Module, name: str, p: Tensor, stream: torch.Generator, init: Init) -> None:
    text = model.get_submodule("text")
    dim, depth = text.get_parameter("pos_embed").shape[1], len(text.get_submodule("blocks")._modules)
    stds = {
        "token_embed.weight": 0.02,
        "pos_embed": 0.01,
        "attn.qkv.weight": dim**-0.5,
        "attn.proj.weight": dim**-0.5 * (2 * depth) ** -0.5,
        "mlp.fc1.weight": (2 * dim) ** -0.5,
        "mlp.fc2.weight": dim**-0.5 * (2 * depth) ** -0.5,
    }
    key = ".".join(name.split(".")[2:]) if name.startswith("blocks.") else name
    kept = key.startswith("mlp.") or (init == "released" and _differential(text))
    if "norm" in name:
        p.fill_(1.0 if name.endswith("weight") else 0.0)
    elif key in stds:
        p.normal_(0.0, stds[key], generator=stream)
    elif kept:
        _torch_default(text.get_submodule(name.rpartition(".")[0]), p, stream)
    else:
        p.zero_()


def _torch_default(module: nn.Module, parameter: Tensor, stream: torch.Generator) -> None:
    """Draw uniformly within ±1/√fan_in, as PyTorch's linear and convolutional layers do."""
    weight = module.get_parameter("weight")
    bound = weight[0].numel() ** -0.5
    parameter.uniform_(-bound, bound, generator=stream)


def _differential(tower: nn.Module) -> bool:
    return any(lambda_of(module) is not None for module in tower.modules())


Towers = Literal["both", "vision", "text"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the recipe's, not OpenAI's
IMAGENET_STD = (0.229, 0.224, 0.225)

# b16: the model of both papers; small: 64-pixel images, for a laptop (tuned on openmoji)
PRESETS: dict[str, dict[str, Any]] = {
    "b16": {
        "vision": {"image_size": 224, "patch_size": 16, "dim": 768, "depth": 12, "num_heads": 12},
        "text": {"dim": 512, "depth": 12, "num_heads": 8},
        "embed_dim": 512,
    },
    "small": {
        "vision": {"image_size": 64, "patch_size": 8, "dim": 192, "depth": 4, "num_heads": 6},
        "text": {"dim": 192, "depth": 3, "num_heads": 6, "context_length": 32},
        "embed_dim": 192,
    },
}


@dataclass(frozen=True)
class ClipVariant:
    """A kind of CLIP, as registered in :data:`antiphase.registry.CLIPS`.

    Attributes:
        label: what reports call it; * and † are the DiffCLIP paper's (Sections 4.5 and 4.6).
        fields: arguments of :func:`configure_clip` that make it what it is.
    """

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schedule(self) -> str | None:
        """The schedule of its λ_init; None for standard attention in both towers."""
        return self.fields.get("schedule", "constant") if self.fields.get("towers") else None


CLIP_VARIANT = ClipVariant("CLIP")
DIFFCLIP = ClipVariant("DiffCLIP", {"towers": "both"})
DIFFCLIP_DEPTH = ClipVariant("DiffCLIP*", {"towers": "both", "schedule": "depth"})
DIFFCLIP_VISION = ClipVariant("DiffCLIP†", {"towers": "vision"})
DIFFCLIP_TEXT = ClipVariant("DiffCLIP, text only", {"towers": "text"})


def find_clip(variant: str) -> ClipVariant:
    """Return the registered kind of CLIP of a name, such as ``"diffclip-depth"``."""
    return find(CLIPS, variant, "model")


@validated
def clip(preset: str = "small", *, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build a CLIP with standard attention in both towers.

    Args:
        preset: ``"b16"`` or ``"small"``.
        seed: random seed of the initial weights.
        **fields: ``vision`` and ``text`` (dictionaries of sizes that differ from the preset), ``embed_dim``
            and the other fields of :class:`~antiphase.models.clip.ClipConfig`.

    Raises:
        UserError: for an unknown preset or field, or incompatible sizes.
    """
    return build_clip(configure_clip(preset, **fields), seed)


@validated
def diffclip(preset: str = "small", *, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build a DiffCLIP: the same class as :func:`clip`, with differential attention.

    Args:
        preset: ``"b16"`` or ``"small"``.
        seed: random seed of the initial weights.
        **fields: as in :func:`clip`, and ``lambda_init`` (0.8), ``schedule`` (``"constant"``, or ``"depth"``
            for the paper's DiffCLIP*) and ``towers`` (``"both"``, ``"text"``, or ``"vision"`` for DiffCLIP†) and
            ``attention``, another registered differential attention.

    Raises:
        UserError: for an unknown preset or field, or incompatible sizes.
    """
    values: dict[str, Any] = {"towers": "both"} | fields
    return build_clip(configure_clip(preset, **values), seed)


@validated
def clip_vit_b16(*, seed: Seed = 0, **fields: Any) -> CLIP:
    """Build the papers' baseline, ViT-B/16 at 224 pixels (149,619,969 parameters); arguments as for :func:`clip`."""
    return clip("b16", seed=seed, **fields)


@validated
def diffclip_vit_b16(
    lambda_init: float = 0.8,
    schedule: ScheduleName = "constant",
    towers: Towers = "both",
    init: Init = "matched",
    *,
    seed: Seed = 0,
    **fields: Any,
) -> CLIP:
    """Build the paper's DiffCLIP at ViT-B/16 (DiffCLIP, Section 4).

    Args:
        lambda_init: λ_init of every layer; used by the constant schedule.
        schedule: ``"constant"``, or ``"depth"``: 0.8 − 0.6·exp(−0.3·layer), the paper's DiffCLIP*.
        towers: towers with differential attention; ``"vision"`` is the paper's DiffCLIP†.
        init: ``"matched"`` to the baseline, or ``"released"``, see :mod:`antiphase.models.clip`.
        seed: random seed of the initial weights.
        **fields: as in :func:`clip`.
    """
    fields |= {"lambda_init": lambda_init, "schedule": schedule, "towers": towers, "init": init}
    return diffclip("b16", seed=seed, **fields)


@validated
def configure_clip(
    preset: str = "small",
    *,
    towers: Towers | None = None,
    lambda_init: float = 0.8,
    schedule: ScheduleName = "constant",
    attention: str = "differential",
    init: Init = "matched",
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    **fields: Any,
) -> ClipConfig:
    """Return a validated configuration.

    The ``towers`` have the registered ``attention``, other towers have standard attention; ``towers=None`` means
    standard attention in both.

    Raises:
        UserError: naming the first field that is unknown or out of range.
    """
    if preset not in PRESETS:
        raise UserError(f"preset {preset!r}: expected one of {', '.join(PRESETS)}")
    if towers not in (None, "both", "vision", "text"):
        raise UserError(f"towers {towers!r}: expected one of both, vision, text")
    sizes = PRESETS[preset]
    lam = {"attention": attention, "lambda_init": lambda_init, "lambda_schedule": schedule}
    standard = {"attention": "softmax"}
    # the released DiffCLIP uses PyTorch's layer-norm eps in its image tower, the baseline timm's
    eps = 1e-5 if init == "released" and towers in ("both", "vision") else 1e-6
    fixed = {"in_channels": 3, "num_classes": 0, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "norm_eps": eps}
    values = {
        "vision": fixed
        | sizes["vision"]
        | (lam if towers in ("both", "vision") else standard)
        | (vision or {}),
        "text": sizes["text"] | (lam if towers in ("both", "text") else standard) | (text or {}),
        "embed_dim": sizes["embed_dim"],
        "init": init,
        **fields,
    }
    return valid_clip(values)


def valid_clip(values: Any, source: str = "", at: tuple[str, ...] = ()) -> ClipConfig:
    """Validate ``values`` and return them as a configuration.

    Raises:
        UserError: naming ``source`` and the first invalid field.
    """
    try:
        return ClipConfig.model_validate(values)
    except ValidationError as error:
        raise invalid(error, source, at) from None
