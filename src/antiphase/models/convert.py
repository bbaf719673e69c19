"""A vision transformer or CLIP with standard attention as a differential one that starts from the same outputs.

A variant can start there in one of two ways. Where λ may be 0 it is, and A2 is a copy of one of the A1 that it serves.
Where λ = σ(x·W), W = 0 makes it ½ everywhere, each A2 is a copy of its A1, and twice the output projection undoes the
factor 1 − λ. A norm behind the heads would change the output in both cases and is left out.
"""

import copy
import math
import re
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from antiphase.arguments import Seed, validated
from antiphase.attention import DifferentialAttention, GateLambda, VectorLambda
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models.card import ModelCard, attention_kind, square_of, with_card
from antiphase.models.checkpoints import CLASS_NAMES, State, as_config, load_into
from antiphase.models.clip import CLIP, ClipConfig, Towers, build_clip
from antiphase.models.preprocessing import Normalized
from antiphase.models.schemes.libraries import OpenClip
from antiphase.models.trained import IN_MEMORY, SQUARE
from antiphase.models.transformer import ACTIVATIONS, TextTransformer
from antiphase.models.vit import VisionTransformer, VitConfig, build
from antiphase.registry import VARIANTS, find

_SIZES = (
    "image_size patch_size in_channels num_classes mean std pre_norm vocab_size context_length dim depth num_heads "
    "mlp_ratio norm_eps activation"
).split()
# open_clip's names to ours, in this order
_OPEN_CLIP = """
transformer.resblocks. blocks.   .ln_1. .norm1.   .ln_2. .norm2.   .attn.in_proj_ .attn.qkv.
.attn.out_proj. .attn.proj.   .mlp.c_fc. .mlp.fc1.   .mlp.c_proj. .mlp.fc2.   .ls_1. .ls1.   .ls_2. .ls2.
conv1. patch_embed.proj.   ln_pre. norm_pre.   ln_post. norm.   ln_final. norm.
class_embedding cls_token   token_embedding. token_embed.   positional_embedding pos_embed
""".split()
_SCALED = {"ls1": "attn.proj", "ls2": "mlp.fc2"}  # layer scales, and the layers that can take them in
_TEXTS = ["a photo of a mug", "two"]
_GAP = 1e-6  # of outputs in float64, relative to the largest: far above rounding, far below another model


class _Tower(NamedTuple):
    """A tower with standard attention: fields of its configuration, and weights under our names."""

    fields: dict[str, Any]
    state: State


class _Parts(NamedTuple):
    """A source: one tower, or the two of a CLIP and the rest of its configuration and weights."""

    vision: _Tower
    text: _Tower | None = None
    fields: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    state: State = {}  # noqa: RUF012


@validated
def converted(
    model: nn.Module, to: str, *, ratio: int | None = None, towers: Towers = "both", seed: Seed = 0
) -> VisionTransformer | CLIP:
    """Return a loaded model with standard attention as a new one with differential attention and the same outputs.

    Args:
        model: of :func:`~antiphase.models.load_model`: a vision transformer or CLIP of ours, timm's or open_clip's.
        to: ``"diffvit"`` (V1's λ and a second map with keys of its own for each of the source's heads), ``"v2"``,
            ``"grouped"`` or ``"gated"``.
        ratio: for ``"diffvit"`` and ``"grouped"``: heads that share one A2.
        towers: of a CLIP, which get differential attention.
        seed: of λ's vectors.

    Raises:
        UserError: the variant cannot give the source's outputs, or the source has a part that ours lacks.
    """
    card = getattr(model, "card", None)
    spec = card.spec if isinstance(card, ModelCard) else type(model).__name__
    settings = _settings(to, ratio)
    source = _read(model, spec)
    standard = {"attention": "softmax"}
    if source.text is None:
        if towers != "both":
            raise UserError(f"towers {towers}: {spec} has one tower; leave it out")
        config = as_config(VitConfig, source.vision.fields | settings, f"{spec}: ")
        new: VisionTransformer | CLIP = build(config, seed)
        pairs: list[tuple[Any, State]] = [(new, source.vision.state)]
    else:
        in_vision, in_text = (settings if towers in ("both", one) else standard for one in ("vision", "text"))
        both = {"vision": source.vision.fields | in_vision, "text": source.text.fields | in_text}
        config = as_config(ClipConfig, {**source.fields, **both}, f"{spec}: ")
        new = build_clip(config, seed)
        pairs = [(new.visual, source.vision.state), (new.text, source.text.state)]
        with torch.no_grad():
            for name, value in source.state.items():
                new.get_parameter(name).copy_(value)
    for tower, state in pairs:
        load_into(tower, _as_differential(tower, _completed(tower, state, spec)), spec)
    recipe: dict[str, Any] = {"kind": "clip"} if isinstance(new, CLIP) else {}
    recipe |= {"model": config.model_dump(mode="json"), "source": spec, "converted": to}
    name, about = type(model).__name__, {}
    if isinstance(card, ModelCard):
        name, square = card.name, square_of(model)
        about = {"seed": card.seed, "data": (card.recipe or {}).get("data")}
        about |= {CLASS_NAMES: None if card.class_names is None else [*card.class_names]}
        if square != square_of(new) if isinstance(new, CLIP) else square != Square(square.size):
            about[SQUARE] = asdict(square)
            object.__setattr__(new, "square", square)
    recipe |= {key: value for key, value in about.items() if value is not None}
    classes = 0 if isinstance(new, CLIP) else new.num_classes
    names = None if not recipe.get(CLASS_NAMES) else tuple(recipe[CLASS_NAMES])
    kind, seed_of = attention_kind(new), recipe.get("seed")
    own = f"{IN_MEMORY}{type(new).__name__}"
    with_card(new, ModelCard(f"{name}-{to}", own, kind, seed_of, new.image_shape, classes, recipe, names))
    _check_outputs(model, new.eval(), spec)
    return new


def _settings(to: str, ratio: int | None) -> dict[str, Any]:
    """Return what a configuration says of the attention; refuse a variant that cannot give the source's outputs."""
    name = "grouped" if to == "diffvit" else to
    if name not in VARIANTS:
        raise UserError(f"to {to!r}: expected one of diffvit, {', '.join(VARIANTS)}")
    form = find(VARIANTS, name, "variant")
    if form.heads == "halved":
        why = "makes one head of two, whose maps cannot both reach the output"
        fix = "give --to diffvit, which has V1's λ and keeps all heads, or grouped, gated or v2"
        raise UserError(f"to {to}: {why}, whatever λ is; {fix}")
    gate = form.parameterisation == "gate"
    if gate and (form.combined == "integral" or (form.heads == "grouped" and ratio not in (None, 1))):
        why = "λ = σ(x·W) is never 0, so that each A2 has to begin as a copy of the one A1 that it serves"
        raise UserError(f"to {to} with ratio {ratio}: {why}; leave out --ratio, or give --to grouped")
    if not gate and form.parameterisation not in ("vector", "scalar"):
        raise UserError(f"to {to}: its λ ({form.parameterisation}) cannot start at 0 and be learned")
    settings = {"attention": name, "head_norm": False, "rescale": False, "bias": True}
    if form.heads == "grouped" and ratio is None and (gate or to == "diffvit"):
        ratio = 1
    return settings | ({} if gate else {"lambda_init": 0.0}) | ({} if ratio is None else {"ratio": ratio})


def _as_differential(tower: Any, state: State) -> State:
    """Return weights of standard attention as those of a tower, where its attention is differential."""
    own = {name: weight for name, weight in tower.state_dict().items() if ".lam." in name}
    state = {**own, **state}
    for index, block in enumerate(tower.blocks):
        attention = block.attn
        if not isinstance(attention, DifferentialAttention):
            continue
        layout, place = attention.layout, f"blocks.{index}.attn."
        served = slice(None, None, layout.signal // layout.noise)  # the first of the heads that share an A2
        for kind in ("weight", "bias"):
            parts = state[f"{place}qkv.{kind}"].chunk(3)
            q, k, v = (part.unflatten(0, (layout.signal, layout.width)) for part in parts)
            if layout.shared:
                q = q.repeat_interleave(2, 0)
            else:
                q, k = torch.cat([q, q[served]]), torch.cat([k, k[served]])
            state[f"{place}qkv.{kind}"] = torch.cat([q, k, v]).flatten(0, 1)
        if isinstance(attention.lam, GateLambda):  # λ = ½
            state[f"{place}lam.gate.weight"] = torch.zeros_like(own[f"{place}lam.gate.weight"])
            state[f"{place}proj.weight"] = 2 * state[f"{place}proj.weight"]
        elif isinstance(attention.lam, VectorLambda):  # λ = 0; vectors of zeros would have no gradient
            state |= {f"{place}lam.{name}2": own[f"{place}lam.{name}1"].clone() for name in "qk"}
    return state


def _completed(tower: nn.Module, state: State, spec: str) -> State:
    """Return weights with zeros for biases that the source lacks and layer scales taken in; refuse other differences."""
    state = {name: weight.detach().float().cpu() for name, weight in state.items()}
    for name in [name for name in state if name.endswith(".gamma")]:
        block, scale, _ = name.rsplit(".", 2)
        if (layer := _SCALED.get(scale)) is None:
            continue
        gamma = state.pop(name)
        for kind in ("weight", "bias"):
            if (inner := f"{block}.{layer}.{kind}") in state:
                weight = state[inner]
                state[inner] = weight * gamma.view(-1, *[1] * (weight.ndim - 1))
    needed = [name for name in tower.state_dict() if ".lam." not in name]
    for name in needed:
        weight = state.get(name.removesuffix("bias") + "weight")
        if name not in state and name.endswith(".bias") and weight is not None:
            state[name] = torch.zeros(len(weight))
    if more := sorted(state.keys() - needed):
        _refuse(spec, f"{more[0]} has no place in antiphase's transformer")
    if lacking := [name for name in needed if name not in state]:
        _refuse(spec, f"it has no {lacking[0]}")
    return state


def _read(model: nn.Module, spec: str) -> _Parts:
    """Return the towers of a model of a known kind."""
    if isinstance(model, VisionTransformer | CLIP):
        return _ours(model, spec)
    if isinstance(model, OpenClip):
        return _open_clip(model, spec)
    net, normalize = (model.model, model.normalize) if isinstance(model, Normalized) else (model, None)
    channels = getattr(net, "in_chans", 3)
    colours = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    if normalize is not None:
        if normalize.bgr:
            _refuse(spec, "it takes the channels in reverse order")
        colours = _colours(normalize)
    return _Parts(_timm(net, spec, colours))


def _colours(normalize: Any) -> dict[str, tuple[float, ...]]:
    return {name: tuple(getattr(normalize, name).flatten().tolist()) for name in ("mean", "std")}


def _ours(model: VisionTransformer | CLIP, spec: str) -> _Parts:
    if model.config is None:
        _refuse(spec, "it was built with attention of its own, not from a configuration")
    towers = [("", model)] if isinstance(model, VisionTransformer) else [("visual.", model.visual), ("text.", model.text)]
    configs: list[Any] = [model.config]
    if isinstance(model, CLIP):
        configs = [model.config.vision, model.config.text]  # pyright: ignore
    parts = []
    for config, (name, tower) in zip(configs, towers, strict=True):
        if config.attention != "softmax":
            _refuse(spec, f"{name or 'its '}attention is {config.attention}; expected standard attention")
        parts.append(_Tower(config.model_dump(include={*_SIZES}), dict(tower.state_dict())))
    if isinstance(model, VisionTransformer):
        return _Parts(*parts)
    rest = {name: value for name, value in model.named_parameters() if "." not in name}
    about = model.config.model_dump(include={"embed_dim", "interpolation", "init", "logit_scale", "logit_bias"})  # pyright: ignore
    return _Parts(*parts, about, rest)


def _timm(net: Any, spec: str, colours: dict[str, Any]) -> _Tower:
    """Return timm's vision transformer; its names are ours."""
    from timm.models.vision_transformer import Attention, Block
    from timm.models.vision_transformer import VisionTransformer as TimmTransformer

    if type(net) is not TimmTransformer:
        kinds = "expected a vision transformer of antiphase or timm, or a CLIP of antiphase or open_clip"
        raise UserError(f"{spec}: {type(net).__name__} cannot be converted; {kinds}")
    if net.global_pool != "token":
        _refuse(spec, f"its global_pool is {net.global_pool!r}; expected 'token', the class token")
    for index, block in enumerate(net.blocks):
        for part, kind in ((block, Block), (getattr(block, "attn", None), Attention)):
            if type(part) is not kind:
                _refuse(spec, f"blocks.{index} has a {type(part).__name__}; expected timm's {kind.__name__}")
    state = dict(net.state_dict())
    if net.no_embed_class and "pos_embed" in state:
        place = state["pos_embed"]
        state["pos_embed"] = torch.cat([place.new_zeros(1, 1, place.shape[2]), place], 1)
    heads = net.blocks[0].attn.num_heads
    fields = colours | {"num_classes": net.num_classes}
    return _tower(spec, state, fields, heads, net.blocks[0].mlp.act, net)


def _open_clip(model: OpenClip, spec: str) -> _Parts:
    """Return open_clip's CLIP, whose image tower is its own vision transformer or one of timm."""
    import open_clip

    net: Any = model.model
    visual = net.visual
    if type(net) is not open_clip.CLIP:
        _refuse(spec, f"it is a {type(net).__name__}; expected open_clip's CLIP, with its own text tower")
    if net.text_pool_type != "argmax" or net.attn_mask is None:
        _refuse(spec, f"its text tower pools by {net.text_pool_type!r}; expected 'argmax' and a causal mask")
    rest = {name: getattr(net, name) for name in ("logit_scale", "logit_bias") if getattr(net, name) is not None}
    rest = {name: value.detach().reshape(()) for name, value in rest.items()}
    theirs, colours = dict(net.state_dict()), _colours(model.normalize)
    images = {name.removeprefix("visual."): x for name, x in theirs.items() if name.startswith("visual.")}
    words = {name: x for name, x in theirs.items() if not name.startswith(("visual.", "logit_"))}
    colours["num_classes"] = 0  # type: ignore[assignment]
    if hasattr(visual, "trunk"):
        tower = _timm(visual.trunk, spec, colours)
        head = {name: x for name, x in images.items() if not name.startswith("trunk.")}
        if {*head} != {"head.proj.weight"}:
            _refuse(spec, f"the head of its image tower has {', '.join(head)}; expected head.proj.weight")
        rest["image_projection"] = head["head.proj.weight"].T
    else:
        if type(visual) is not open_clip.transformer.VisionTransformer or visual.attn_pool is not None:
            what = "pools by attention" if hasattr(visual, "attn_pool") else f"is a {type(visual).__name__}"
            _refuse(spec, f"its image tower {what}; expected a vision transformer with a class token")
        if visual.pool_type != "tok":
            _refuse(spec, f"its image tower pools by {visual.pool_type!r}; expected 'tok', the class token")
        rest["image_projection"] = images.pop("proj")
        state = _renamed(images)
        state["cls_token"], state["pos_embed"] = state["cls_token"].view(1, 1, -1), state["pos_embed"][None]
        tower = _tower(spec, state, colours, *_of_blocks(visual, spec), visual)
    projection = [words.pop(name) for name in [*words] if name == "text_projection"]
    rest |= {"text_projection": one for one in projection}
    rest |= {"text_projection": words.pop(name).T for name in [*words] if name == "text_projection.weight"}
    state = _renamed(words)
    text = nn.ModuleList([net.transformer, net.ln_final])
    sizes = dict(zip(("vocab_size", "context_length"), map(len, (state["token_embed.weight"], state["pos_embed"]))))
    about = {"embed_dim": rest["image_projection"].shape[1], "interpolation": model.square.interpolation}
    about |= {name: float(value) for name, value in rest.items() if name.startswith("logit_")}
    return _Parts(tower, _tower(spec, state, sizes, *_of_blocks(net, spec), text), about, rest)


def _of_blocks(net: Any, spec: str) -> tuple[int, nn.Module]:
    """Return heads and activation of open_clip's blocks."""
    first = net.transformer.resblocks[0]
    if type(first).__name__ != "ResidualAttentionBlock":
        _refuse(spec, f"its blocks are of {type(first).__name__}; expected ResidualAttentionBlock")
    return first.attn.num_heads, first.mlp.gelu


def _renamed(state: State) -> State:
    renamed = State()
    for name, weight in state.items():
        for theirs, ours in zip(_OPEN_CLIP[::2], _OPEN_CLIP[1::2], strict=True):
            name = name.replace(theirs, ours)
        renamed[name] = weight
    return renamed


def _tower(
    spec: str, state: State, fields: dict[str, Any], heads: int, activation: nn.Module, net: nn.Module
) -> _Tower:
    """Return a tower, with the fields that its weights tell: sizes, and the ε of its layer norms."""
    hidden, dim = state["blocks.0.mlp.fc1.weight"].shape
    depth = len({match[1] for name in state if (match := re.match(r"blocks\.(\d+)\.", name))})
    ratio = hidden / dim
    ratio = ratio if int(dim * ratio) == hidden else math.nextafter(ratio, math.inf)
    epsilons = sorted({part.eps for part in net.modules() if isinstance(part, nn.LayerNorm)})
    if len(epsilons) != 1:
        _refuse(spec, f"its layer norms have ε {', '.join(f'{eps:g}' for eps in epsilons)}; expected one ε for all")
    x = torch.linspace(-5, 5, 101)
    known = [name for name, kind in ACTIVATIONS.items() if torch.allclose(activation(x), kind()(x), atol=1e-6)]
    if not known:
        _refuse(spec, f"its activation is {activation}; expected {' or '.join(ACTIVATIONS)}")
    fields = fields | {"dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": ratio}
    fields |= {"norm_eps": epsilons[0], "activation": known[0]}
    if "patch_embed.proj.weight" in state:
        _, channels, size, width = state["patch_embed.proj.weight"].shape
        if size != width or "pos_embed" not in state:
            _refuse(spec, "it has no positions" if size == width else f"its patches are of {size}×{width} pixels")
        side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
        fields |= {"image_size": side * size, "patch_size": size, "in_channels": channels}
        fields |= {"pre_norm": "norm_pre.weight" in state}
    return _Tower(fields, state)


@torch.no_grad()
def _check_outputs(source: nn.Module, new: VisionTransformer | CLIP, spec: str) -> None:
    """Refuse a conversion with other outputs; both are run in float64, where rounding does not count."""
    one, two = (copy.deepcopy(model).cpu().double().eval() for model in (source, new))
    images = torch.rand(2, *new.image_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls: list[tuple[str, Any]] = [("logits", lambda model: model(images))]
    if isinstance(new, CLIP):
        calls = [("embeddings of images", lambda model: model.encode_image(images, normalize=True))]
        calls += [("embeddings of texts", lambda model: model.encode_text(_TEXTS, normalize=True))]
    for what, call in calls:
        expected: Tensor = call(one)
        gap = float((call(two) - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not gap <= _GAP:
            _refuse(spec, f"its {what} would differ by {gap:.2g} of the largest: it computes something else")


def _refuse(spec: str, part: str) -> Any:
    raise UserError(f"{spec}: cannot be converted exactly: {part}")
