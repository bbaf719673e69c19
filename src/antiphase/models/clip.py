"""CLIP and DiffCLIP: one dual encoder whose variants differ only in their attention modules, by size and variant."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase import arguments, registry
from antiphase.attention.lambdas import lambda_of
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models import checkpoints, preprocessing, transformer
from antiphase.models.transformer import ScheduleName, Size, TextConfig, TextTransformer
from antiphase.models.vit import Kept, VisionTransformer, VitConfig, build_vision, draw_own, draw_uniform

Init = Literal["matched", "released"]
Towers = Literal["both", "vision", "text"]
TokenIds = Int64[Tensor, "batch length"]
Texts = Sequence[str] | TokenIds
Embeddings = Float[Tensor, "batch embed"]

LOGIT_SCALE = math.log(1 / 0.07)  # CLIP, Section 2.5
_STEP = 8  # lengths are rounded up to a multiple: few shapes to compile, few wasted tokens
IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the recipe's, not OpenAI's
IMAGENET_STD = (0.229, 0.224, 0.225)
PRESETS: dict[str, dict[str, Any]] = transformer.PRESETS_OF["clip"]


def trimmed(tokens: TokenIds) -> Int64[Tensor, "batch shorter"]:
    """Drop the columns after the last end-of-text token; attention is causal, so the features do not change."""
    needed = int(tokens.argmax(1).max()) + 1
    return tokens[:, : min(-(-needed // _STEP) * _STEP, tokens.shape[1])]


def tokenize(texts: Sequence[str], context_length: int = 77) -> TokenIds:
    """Return byte-pair ids: start, words, end, zero padding; a long text is truncated but keeps its end token.

    >>> tokenize(["a mug"], 5).tolist()
    [[49406, 320, 9722, 49407, 0]]
    """
    return tokenizer()(list(texts), context_length)


@functools.cache
def tokenizer() -> Any:
    """Return open_clip's byte-pair tokenizer."""
    from open_clip.tokenizer import SimpleTokenizer  # seconds to import

    return SimpleTokenizer()


class ClipConfig(arguments.Fields):
    """Architecture of a dual encoder; stored next to its weights."""

    vision: VitConfig  # with mean and standard deviation of the pixels
    text: TextConfig
    embed_dim: Size
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"  # of images, before their centre is cropped
    init: Init = "matched"
    logit_scale: float = LOGIT_SCALE
    logit_bias: float | None = None


class CLIP(nn.Module):
    """Embed images in [0, 1] and texts in one space, where matching pairs have a high cosine (vectors not normalised).

    ``widths`` are the feature widths of the towers, ``logit_scale`` is the natural logarithm of the factor on the
    cosines, and ``logit_bias`` is added to the logits by the sigmoid loss. Sources: A. Radford et al., *Learning
    Transferable Visual Models From Natural Language Supervision*, 2021; H. Hammoud, B. Ghanem, *DiffCLIP: Differential
    Attention Meets CLIP*, TMLR 2025, Section 3.
    """

    @arguments.validated
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

    def encode_image(self, images: preprocessing.Images, normalize: bool = False, *, keep: Kept = None) -> Embeddings:
        """Return image embeddings, of length 1 if ``normalize``; ``keep`` as in :class:`VisionTransformer`."""
        embeddings = self.visual(images, keep) @ self.image_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def encode_text(self, texts: Texts, normalize: bool = False) -> Embeddings:
        """Return embeddings of strings or token ids, of length 1 if ``normalize``."""
        if isinstance(texts, str):  # would be read as a list of letters
            raise TypeError(f"text {texts!r}: expected a list of strings, such as [{texts!r}]")
        tokens = texts if isinstance(texts, Tensor) else tokenize(texts, self.text.context_length)
        embeddings = self.text(trimmed(tokens.to(self.text_projection.device))) @ self.text_projection
        return F.normalize(embeddings, dim=-1) if normalize else embeddings

    def forward(self, images: preprocessing.Images, texts: Texts, keep: Kept = None) -> tuple[Embeddings, Embeddings]:
        return self.encode_image(images, keep=keep), self.encode_text(texts)


@arguments.validated
def build_clip(config: ClipConfig, seed: arguments.Seed = 0) -> CLIP:
    """Build a model from its configuration, with weights drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):  # the constructors' weights are overwritten
        model = bare_clip(config)
    _initialise(model, config.init, seed)
    return model


def bare_clip(config: ClipConfig) -> CLIP:
    """Build a model with the constructors' default weights."""
    vision, text = config.vision, config.text
    if vision.num_classes:
        raise UserError(f"vision.num_classes {vision.num_classes}: expected 0, a CLIP's tower has no head")
    try:
        transformer.check_memory(text, text.vocab_size + text.context_length)
        text_tower = TextTransformer(transformer.attention_slot(text), text)
    except ValueError as error:
        raise UserError(f"text tower: {error}") from None
    scale = {"logit_scale": config.logit_scale, "logit_bias": config.logit_bias}
    model = CLIP(build_vision(vision), text_tower, (vision.dim, text.dim), config.embed_dim, **scale)
    model.config = config
    model.square = Square(vision.image_size, config.interpolation)
    return model


def _initialise(model: CLIP, init: Init, seed: int) -> None:
    """Draw the weights: ``"matched"`` twins start from equal projections, ``"released"`` as in DiffCLIP's code."""
    dim, depth = model.text.pos_embed.shape[1], len(model.text.blocks)
    out = dim**-0.5 * (2 * depth) ** -0.5
    stds = {"text.token_embed.weight": 0.02, "text.pos_embed": 0.01, "text.attn.qkv.weight": dim**-0.5}
    stds |= {"text.mlp.fc1.weight": (2 * dim) ** -0.5}
    stds |= dict.fromkeys(("text.attn.proj.weight", "text.mlp.fc2.weight"), out)
    # where PyTorch's default is kept, unless there is a standard deviation above
    kept = ["visual.patch_embed.", "text.mlp."]
    if init == "released":
        towers = {"visual.blocks.": model.visual, "text.": model.text}
        kept += [name for name, tower in towers.items() if any(map(lambda_of, tower.modules()))]

    def draw(name: str, parameter: Tensor, stream: torch.Generator) -> None:
        tower, _, rest = name.partition(".")
        key = re.sub(r"^text\.blocks\.\d+\.", "text.", name)
        if not rest:  # logit scale and bias are as they were constructed
            if name.endswith("_projection"):
                parameter.normal_(0.0, parameter.shape[0] ** -0.5, generator=stream)
        elif "norm" in rest:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        elif key in stds:
            parameter.normal_(0.0, stds[key], generator=stream)
        elif key.startswith(tuple(kept)):
            draw_uniform(parameter, model.get_submodule(name.rpartition(".")[0]).get_parameter("weight"), stream)
        elif tower == "text" or name.endswith("bias"):
            parameter.zero_()
        else:
            nn.init.trunc_normal_(parameter, std=1e-6 if rest == "cls_token" else 0.02, generator=stream)

    draw_own(model, seed, draw)


@dataclass(frozen=True)
class ClipVariant:
    """A kind of CLIP, as registered in :data:`antiphase.registry.CLIPS`."""

    label: str  # what reports call it; * and † are the DiffCLIP paper's (Sections 4.5 and 4.6)
    fields: Mapping[str, Any] = field(default_factory=dict)  # arguments of configure_clip

    @property
    def schedule(self) -> str | None:
        return self.fields.get("schedule", "constant") if self.fields.get("towers") else None


CLIP_VARIANT = ClipVariant("CLIP")
DIFFCLIP = ClipVariant("DiffCLIP", {"towers": "both"})
DIFFCLIP_DEPTH = ClipVariant("DiffCLIP*", {"towers": "both", "schedule": "depth"})
DIFFCLIP_VISION = ClipVariant("DiffCLIP†", {"towers": "vision"})
DIFFCLIP_TEXT = ClipVariant("DiffCLIP, text only", {"towers": "text"})


def find_clip(variant: str) -> ClipVariant:
    """Return the registered kind of CLIP of a name, such as ``"diffclip-depth"``."""
    return registry.find(registry.CLIPS, variant, "model")


@arguments.validated
def clip(preset: str = "small", *, seed: arguments.Seed = 0, **fields: Any) -> CLIP:
    """Build a CLIP with standard attention in both towers, of the preset ``"small"`` or ``"b16"``.

    ``"b16"`` is the papers' baseline, ViT-B/16 at 224 pixels (149,619,969 parameters). ``fields`` are those of
    :class:`ClipConfig`; ``vision`` and ``text`` are dictionaries of what differs from the preset.
    """
    return build_clip(configure_clip(preset, **fields), seed)


@arguments.validated
def diffclip(preset: str = "small", *, seed: arguments.Seed = 0, **fields: Any) -> CLIP:
    """Build a DiffCLIP: the same class as :func:`clip`, with differential attention.

    ``fields`` also take ``lambda_init`` (0.8), ``schedule`` (``"constant"``, or ``"depth"`` for the paper's DiffCLIP*),
    ``towers`` (``"both"``, ``"text"``, or ``"vision"`` for DiffCLIP†), ``variant`` (as of
    :func:`~antiphase.models.diffvit`) and ``attention``, another registered one.
    """
    return clip(preset, seed=seed, **{"towers": "both"} | fields)


def clip_sizes(
    preset: str, *, dim: int | None = None, depth: int | None = None, image_size: int | None = None
) -> dict[str, dict[str, int]]:
    """Return ``vision`` and ``text`` of :func:`configure_clip` with other sizes; heads keep their width."""
    towers: dict[str, dict[str, int]] = {"vision": {}, "text": {}}
    for name, sizes in towers.items():
        width = PRESETS[preset][name]["dim"] // PRESETS[preset][name]["num_heads"]
        if dim is not None and dim % (2 * width):
            raise UserError(f"dim {dim}: expected a multiple of {2 * width}, two heads of {width}")
        sizes |= {} if dim is None else {"dim": dim, "num_heads": dim // width}
        sizes |= {} if depth is None else {"depth": depth}
    towers["vision"] |= {} if image_size is None else {"image_size": image_size}
    return {name: sizes for name, sizes in towers.items() if sizes}


@arguments.validated
def configure_clip(
    preset: str = "small",
    *,
    towers: Towers | None = None,
    lambda_init: float = 0.8,
    schedule: ScheduleName = "constant",
    attention: str = "differential",
    variant: str | None = None,
    init: Init = "matched",
    vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    **fields: Any,
) -> ClipConfig:
    """Return a validated configuration; only the ``towers`` have the registered ``attention``, others the standard."""
    if preset not in PRESETS:
        raise UserError(f"preset {preset!r}: expected one of {', '.join(PRESETS)}")
    registry.find(registry.SCHEDULES, schedule, "schedule")  # refused even where no tower has a λ
    sizes, attention = PRESETS[preset], transformer.attention_named(attention, variant)
    lam = {"attention": attention, "lambda_init": lambda_init, "lambda_schedule": schedule}
    in_vision, in_text = (lam if towers in ("both", one) else {"attention": "softmax"} for one in ("vision", "text"))
    # the released DiffCLIP uses PyTorch's layer-norm eps in its image tower, the baseline timm's
    eps = 1e-5 if init == "released" and in_vision is lam else 1e-6
    fixed = {"in_channels": 3, "num_classes": 0, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "norm_eps": eps}
    vision = fixed | sizes["vision"] | in_vision | (vision or {})
    text = sizes["text"] | in_text | (text or {})
    both = {"embed_dim": sizes["embed_dim"], "init": init, "vision": vision, "text": text}
    return checkpoints.as_config(ClipConfig, both | fields)
