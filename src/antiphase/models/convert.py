"""A vision transformer or CLIP with standard attention as a differential one that starts from the same outputs.

A variant can start there in one of two ways. Where λ may be 0 it is, and A2 is a copy of one of the A1 that it serves.
Where λ = σ(x·W), W = 0 makes it ½ everywhere, each A2 is a copy of its A1, and twice the output projection undoes the
factor 1 − λ. A norm behind the heads would change the output in both cases and is left out.
"""

import copy
import re
from dataclasses import asdict
from typing import Any, NamedTuple, NoReturn

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
from antiphase.models.transformer import ACTIVATIONS
from antiphase.models.vit import VisionTransformer, VitConfig, build
from antiphase.registry import VARIANTS, find

_SIZES = set(
    "image_size patch_size in_channels num_classes mean std pre_norm vocab_size context_length dim depth num_heads "
    "mlp_ratio norm_eps activation embed_dim interpolation logit_scale logit_bias".split()
)
# open_clip's names to ours, in this order
_RENAMED = """
transformer.resblocks. blocks.   .ln_1. .norm1.   .ln_2. .norm2.   .attn.in_proj_ .attn.qkv.
.attn.out_proj. .attn.proj.   .mlp.c_fc. .mlp.fc1.   .mlp.c_proj. .mlp.fc2.   .ls_1. .ls1.   .ls_2. .ls2.
conv1. patch_embed.proj.   ln_pre. norm_pre.   ln_post. norm.   ln_final. norm.
class_embedding cls_token   token_embedding. token_embed.   positional_embedding pos_embed
""".split()
_SCALED = {"ls1": "attn.proj", "ls2": "mlp.fc2"}  # layer scales, and the layers that take them in
_GAP = 1e-6  # of outputs in float64, relative to the largest: far above rounding, far below another model


class _Source(NamedTuple):
    """A tower with standard attention, or what a CLIP has besides: fields of a configuration, and our weights."""

    fields: dict[str, Any]
    state: State


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
    vision, *others = _read(model, spec)
    if not others:
        if towers != "both":
            raise UserError(f"towers {towers}: {spec} has one tower; leave it out")
        new: Any = build(as_config(VitConfig, vision.fields | settings, f"{spec}: "), seed)
        pairs = [(new, vision.state)]
    else:
        text, rest = others
        both = {
            name: source.fields | (settings if towers in ("both", name) else {"attention": "softmax"})
            for name, source in (("vision", vision), ("text", text))
        }
        new = build_clip(as_config(ClipConfig, rest.fields | both, f"{spec}: "), seed)
        pairs = [(new.visual, vision.state), (new.text, text.state)]
        for name, value in rest.state.items():
            new.get_parameter(name).data.copy_(value)
    for tower, state in pairs:
        load_into(tower, _as_differential(tower, _completed(tower, state, spec)), spec)
    _check_outputs(model, new.eval(), spec)
    recipe: dict[str, Any] = {"kind": "clip"} if others else {}
    recipe |= {"model": new.config.model_dump(mode="json"), "source": spec, "converted": to}
    name, names = type(model).__name__, None
    if isinstance(card, ModelCard):
        name, names, square = card.name, card.class_names, square_of(model)
        about = {"seed": card.seed, "data": (card.recipe or {}).get("data"), CLASS_NAMES: names and [*names]}
        recipe |= {key: value for key, value in about.items() if value is not None}
        if square != getattr(new, "square", Square(square.size)):
            recipe[SQUARE] = asdict(square)
            object.__setattr__(new, "square", square)
    own = f"{IN_MEMORY}{type(new).__name__}"
    about = (recipe.get("seed"), new.image_shape, getattr(new, "num_classes", 0), recipe, names)
    return with_card(new, ModelCard(f"{name}-{to}", own, attention_kind(new), *about))


def _settings(to: str, ratio: int | None) -> dict[str, Any]:
    """Return what a configuration says of the attention; refuse a variant that cannot give the source's outputs."""
    name = "grouped" if to == "diffvit" else to
    if name not in VARIANTS:
        raise UserError(f"to {to!r}: expected one of diffvit, {', '.join(VARIANTS)}")
    form = find(VARIANTS, name, "variant")
    if form.heads == "halved":
        why = "makes one head of two, whose maps cannot both reach the output"
        fix = "give diffvit, which has V1's λ and keeps all heads, or grouped, gated or v2"
        raise UserError(f"to {to}: {why}, whatever λ is; {fix}")
    gate = form.parameterisation == "gate"
    if gate and (form.combined == "integral" or (form.heads == "grouped" and ratio not in (None, 1))):
        why = "λ = σ(x·W) is never 0, so that each A2 has to begin as a copy of the one A1 that it serves"
        raise UserError(f"to {to} with ratio {ratio}: {why}; leave out the ratio, or give grouped")
    if form.parameterisation not in ("gate", "vector", "scalar"):
        raise UserError(f"to {to}: its λ ({form.parameterisation}) cannot start at 0 and be learned")
    settings = {"attention": name, "head_norm": False, "rescale": False, "bias": True}
    if form.heads == "grouped" and ratio is None and (gate or to == "diffvit"):
        ratio = 1
    return settings | ({} if gate else {"lambda_init": 0.0}) | ({} if ratio is None else {"ratio": ratio})


def _as_differential(tower: Any, state: State) -> State:
    """Return weights of standard attention as those of a tower, where its attention is differential."""
    own = {name: weight for name, weight in tower.state_dict().items() if ".lam." in name}
    state = own | state
    for index, block in enumerate(tower.blocks):
        attention, place = block.attn, f"blocks.{index}.attn."
        if not isinstance(attention, DifferentialAttention):
            continue
        layout = attention.layout
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
        for inner in (f"{block}.{_SCALED.get(scale)}.{kind}" for kind in ("weight", "bias")):
            if inner in state:
                state[inner] = (
                    (state[inner].mT * state[name]).mT
                    if state[inner].ndim > 1
                    else state[inner] * state[name]
                )
        if scale in _SCALED:
            del state[name]
    needed = [name for name in tower.state_dict() if ".lam." not in name]
    for name in needed:
        weight = state.get(f"{name.removesuffix('bias')}weight")
        if name.endswith(".bias") and weight is not None:
            state.setdefault(name, torch.zeros(len(weight)))
    if more := sorted(state.keys() - needed):
        _refuse(spec, f"{more[0]} has no place in antiphase's transformer")
    if lacking := [name for name in needed if name not in state]:
        _refuse(spec, f"it has no {lacking[0]}")
    return state


def _read(model: nn.Module, spec: str) -> list[_Source]:
    """Return the tower of a model of a known kind; for a CLIP its image tower, its text tower and the rest."""
    if isinstance(model, CLIP):
        rest = {name: value for name, value in model.named_parameters() if "." not in name}
        towers = [_ours(model.visual, model.config and model.config.vision, spec)]
        towers += [_ours(model.text, model.config and model.config.text, spec)]
        assert model.config is not None
        return [*towers, _Source(model.config.model_dump(include=_SIZES), rest)]
    if isinstance(model, VisionTransformer):
        return [_ours(model, model.config, spec)]
    if isinstance(model, OpenClip):
        return _open_clip(model, spec)
    if isinstance(model, Normalized):
        if model.normalize.bgr:
            _refuse(spec, "it takes the channels in reverse order")
        return [_timm(model.model, spec, _colours(model.normalize))]
    channels = getattr(model, "in_chans", 3)
    return [_timm(model, spec, {"mean": (0.0,) * channels, "std": (1.0,) * channels})]


def _colours(normalize: Any) -> dict[str, Any]:
    return {name: tuple(getattr(normalize, name).flatten().tolist()) for name in ("mean", "std")}


def _ours(tower: nn.Module, config: Any, spec: str) -> _Source:
    if config is None or config.attention != "softmax":
        kind = "of its own" if config is None else config.attention
        _refuse(spec, f"its attention is {kind}; expected standard attention")
    return _Source(config.model_dump(include=_SIZES), tower.state_dict())


def _timm(net: Any, spec: str, colours: dict[str, Any]) -> _Source:
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
    state = net.state_dict()
    if net.no_embed_class and "pos_embed" in state:
        state["pos_embed"] = nn.functional.pad(state["pos_embed"], (0, 0, 1, 0))
    first = net.blocks[0]
    return _tower(spec, state, colours | {"num_classes": net.num_classes}, first.attn, first.mlp.act, net)


def _open_clip(model: OpenClip, spec: str) -> list[_Source]:
    """Return open_clip's CLIP, whose image tower is its own vision transformer or one of timm."""
    import open_clip

    net: Any = model.model
    visual, colours = net.visual, _colours(model.normalize) | {"num_classes": 0}
    if type(net) is not open_clip.CLIP:
        _refuse(spec, f"it is a {type(net).__name__}; expected open_clip's CLIP, with its own text tower")
    images, words = visual.state_dict(), net.state_dict()
    words = {name: x for name, x in words.items() if not name.startswith("visual.")}
    rest = {name: words.pop(name).reshape(()) for name in ("logit_scale", "logit_bias") if name in words}
    numbers = {name: float(value) for name, value in rest.items()}
    if hasattr(visual, "trunk"):
        tower = _timm(visual.trunk, spec, colours)
        if head := {name for name in images if not name.startswith("trunk.")} - {"head.proj.weight"}:
            _refuse(spec, f"its image tower has {min(head)}; expected a linear projection")
        rest["image_projection"] = images["head.proj.weight"].T
    else:
        if type(visual) is not open_clip.transformer.VisionTransformer or visual.pool_type != "tok":
            _refuse(
                spec, "its image tower has no class token at its end; expected a vision transformer with one"
            )
        rest["image_projection"] = images.pop("proj")
        state = _renamed(images)
        state |= {"cls_token": state["cls_token"].view(1, 1, -1), "pos_embed": state["pos_embed"][None]}
        first = visual.transformer.resblocks[0]
        tower = _tower(spec, state, colours, first.attn, first.mlp.gelu, visual)
    if "text_projection.weight" in words:
        words["text_projection"] = words.pop("text_projection.weight").T
    if "text_projection" not in words or net.text_pool_type != "argmax" or net.attn_mask is None:
        _refuse(
            spec, "its text tower is not OpenAI's: causal, read at the end-of-text token, with a projection"
        )
    rest["text_projection"] = words.pop("text_projection")
    state, first = _renamed(words), net.transformer.resblocks[0]
    sizes = {"vocab_size": len(state["token_embed.weight"]), "context_length": len(state["pos_embed"])}
    parts = nn.ModuleList([net.transformer, net.ln_final])
    fields = {"embed_dim": rest["image_projection"].shape[1], "interpolation": model.square.interpolation}
    text = _tower(spec, state, sizes, first.attn, first.mlp.gelu, parts)
    return [tower, text, _Source(fields | numbers, rest)]


def _renamed(state: State) -> State:
    renamed = State()
    for name, weight in state.items():
        for theirs, ours in zip(_RENAMED[::2], _RENAMED[1::2], strict=True):
            name = name.replace(theirs, ours)
        renamed[name] = weight
    return renamed


def _tower(
    spec: str, state: State, fields: dict[str, Any], attention: Any, activation: Any, net: nn.Module
) -> _Source:
    """Return a tower, with the fields that its weights tell: sizes, and the ε of its layer norms."""
    hidden, dim = state["blocks.0.mlp.fc1.weight"].shape
    depth = len({match[1] for name in state if (match := re.match(r"blocks\.(\d+)\.", name))})
    epsilons = sorted({part.eps for part in net.modules() if isinstance(part, nn.LayerNorm)})
    if len(epsilons) != 1:
        _refuse(
            spec,
            f"ε of its layer norms is {', '.join(map(str, epsilons)) or 'unknown'}; expected one for all",
        )
    x = torch.linspace(-5, 5, 101)
    known = [
        name for name, kind in ACTIVATIONS.items() if torch.allclose(activation(x), kind()(x), atol=1e-6)
    ]
    if not known:
        _refuse(spec, f"its activation is {activation}; expected {' or '.join(ACTIVATIONS)}")
    # half a unit more, so that the integer part of dim · mlp_ratio is right
    ratio = hidden / dim if hidden % dim == 0 else (hidden + 0.5) / dim
    fields |= {"dim": dim, "depth": depth, "num_heads": attention.num_heads, "mlp_ratio": ratio}
    fields |= {"norm_eps": epsilons[0], "activation": known[0]}
    if "patch_embed.proj.weight" in state:
        if "pos_embed" not in state:
            _refuse(spec, "it has no positions that are learned")
        _, channels, size, _ = state["patch_embed.proj.weight"].shape
        side = size * round((state["pos_embed"].shape[1] - 1) ** 0.5)
        fields |= {"image_size": side, "patch_size": size, "in_channels": channels}
        fields |= {"pre_norm": "norm_pre.weight" in state}
    return _Source(fields, state)


@torch.no_grad()
def _check_outputs(source: nn.Module, new: Any, spec: str) -> None:
    """Refuse a conversion with other outputs; both are run in float64, where rounding does not count."""
    one, two = (copy.deepcopy(model).cpu().double().eval() for model in (source, new))
    images = torch.rand(2, *new.image_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls: dict[str, Any] = {"logits": lambda model: model(images)}
    if isinstance(new, CLIP):
        calls = {
            "embeddings of images": lambda model: model.encode_image(images, normalize=True),
            "embeddings of texts": lambda model: model.encode_text(
                ["a photo of a mug", "two"], normalize=True
            ),
        }
    for what, call in calls.items():
        expected: Tensor = call(one)
        gap = float((call(two) - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not gap <= _GAP:
            _refuse(
                spec, f"its {what} would differ by {gap:.2g} of the largest; a part computes something else"
            )


def _refuse(spec: str, part: str) -> NoReturn:
    raise UserError(f"{spec}: cannot be converted exactly: {part}")
