"""A vision transformer or CLIP with standard attention as a differential one that starts from the same outputs.

Where λ may be 0 it is, and A2 is a copy of one of the A1 that it serves. Where λ = σ(x·W), W = 0 makes it ½ everywhere,
each A2 is a copy of its A1, and twice the output projection undoes the factor 1 − λ. There is no norm behind the heads.
"""

import importlib
import re
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from antiphase import arguments, modules, registry
from antiphase.attention import DifferentialAttention, GateLambda, VectorLambda
from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models import preprocessing, trained
from antiphase.models.card import ModelCard, attention_kind, square_of, with_card
from antiphase.models.checkpoints import CLASS_NAMES, State, as_config, load_into
from antiphase.models.clip import CLIP, ClipConfig, Towers, build_clip
from antiphase.models.schemes.libraries import OpenClip
from antiphase.models.vit import VisionTransformer, VitConfig, build

_NAMES = """
transformer.resblocks. blocks.  attn.in_proj_ attn.qkv.  attn.out_proj. attn.proj.  mlp.c_fc. mlp.fc1.
mlp.c_proj. mlp.fc2.  ls_ ls  ln_pre. norm_pre.  ln_post. norm.  ln_final. norm.  ln_ norm  conv1. patch_embed.proj.
class_embedding cls_token  token_embedding. token_embed.  positional_embedding pos_embed
"""
_RENAMED = dict(re.findall(r"(\S+) (\S+)", _NAMES))  # open_clip's to ours
_ACTIVATIONS = {"GELU": "gelu", "QuickGELU": "quick_gelu"}
_GAP = 1e-6  # of outputs in float64, relative to the largest: far above rounding, far below another model

_Source = tuple[dict[str, Any], State]  # of a tower: fields of its configuration, and weights under our names


@arguments.validated
def converted(
    model: nn.Module, to: str, *, ratio: int | None = None, towers: Towers = "both", seed: arguments.Seed = 0
) -> VisionTransformer | CLIP:
    """Return a loaded model with standard attention as a new one with differential attention and the same outputs.

    Args:
        model: of :func:`~antiphase.models.load_model`: a vision transformer or CLIP of ours, timm's or open_clip's.
        to: ``"diffvit"`` (V1's λ and a second map, with keys of its own, for each head), or a variant.
        ratio: for ``"diffvit"`` and ``"grouped"``: heads that share one A2.
        towers: of a CLIP, which get differential attention.
        seed: of λ's vectors.

    A UserError refuses a variant that cannot give the source's outputs, and names a part that our transformer lacks.
    """
    card = getattr(model, "card", None) or ModelCard(type(model).__name__, "", "none", None, (0, 0, 0), 0)
    spec = card.spec or card.name
    settings, sources = _settings(to, ratio), _read(model, spec)
    chosen = [settings if towers in ("both", name) else {} for name in ("vision", "text")]
    fields = [one | other for (one, _), other in zip(sources, chosen, strict=False)]
    if len(sources) == 1:
        if towers != "both":
            raise UserError(f"towers {towers}: {spec} has one tower; leave it out")
        new: Any = build(as_config(VitConfig, fields[0], f"{spec}: "), seed)
        parts = [new]
    else:
        rest = sources[2][0] | {"vision": fields[0], "text": fields[1]}
        new = build_clip(as_config(ClipConfig, rest, f"{spec}: "), seed)
        parts = [new.visual, new.text]
        for name, value in sources[2][1].items():
            new.get_parameter(name).data.copy_(value)
    for tower, (_, state) in zip(parts, sources, strict=False):
        load_into(tower, _as_differential(tower, _completed(tower, state, spec)), spec)
    _check_outputs(model, new.eval(), spec)
    recipe = {"model": new.config.model_dump(mode="json"), "source": spec, "converted": to, "seed": card.seed}
    recipe |= {"data": (card.recipe or {}).get("data"), CLASS_NAMES: card.class_names and [*card.class_names]}
    recipe |= {"kind": "clip"} if isinstance(new, CLIP) else {}
    square = square_of(model) if hasattr(model, "card") else Square(new.image_shape[1])
    if square != getattr(new, "square", Square(square.size)):
        recipe[trained.SQUARE] = asdict(square)
        object.__setattr__(new, "square", square)
    about = (card.seed, new.image_shape, getattr(new, "num_classes", 0), recipe, card.class_names)
    name = f"{trained.IN_MEMORY}{type(new).__name__}"
    return with_card(new, ModelCard(f"{card.name}-{to}", name, attention_kind(new), *about))


def _settings(to: str, ratio: int | None) -> dict[str, Any]:
    """Return what a configuration says of the attention; refuse a variant that cannot give the source's outputs."""
    name = "grouped" if to == "diffvit" else to
    form = registry.find(registry.VARIANTS, name, "variant")
    if form.heads == "halved":
        why = "makes one head of two, whose maps cannot both reach the output"
        raise UserError(f"to {to}: {why}; give diffvit, which has V1's λ and keeps all heads, or v2")
    gate = form.parameterisation == "gate"
    if form.heads == "grouped" and (gate or to == "diffvit"):
        ratio = ratio or 1
    if gate and ratio not in (None, 1):
        why = "λ = σ(x·W) is never 0, so that each A2 has to begin as a copy of the one A1 that it serves"
        raise UserError(f"to {to} with ratio {ratio}: {why}; leave out the ratio, or give grouped")
    settings = {"attention": name, "parameterisation": form.parameterisation, "bias": True, "ratio": ratio}
    settings |= {"lambda_init": 0.8 if gate else 0.0, "lambda_schedule": "constant"}
    return settings | {"head_norm": False, "rescale": False}


def _as_differential(tower: Any, state: State) -> State:
    lambdas = {name: weight for name, weight in tower.state_dict().items() if ".lam." in name}
    state = lambdas | state
    for index, block in enumerate(tower.blocks):
        attention, place = block.attn, f"blocks.{index}.attn."
        if not isinstance(attention, DifferentialAttention):
            continue
        layout = attention.layout
        q, k, v = torch.arange(3 * layout.signal * layout.width).view(3, layout.signal, layout.width)
        if layout.shared:
            q = q.repeat_interleave(2, 0)
        else:  # each A2 is that of the first of the heads that share it
            q, k = (torch.cat([x, x[:: layout.signal // layout.noise]]) for x in (q, k))
        rows = torch.cat([q, k, v]).flatten()
        state |= {name: state[name][rows] for name in (f"{place}qkv.weight", f"{place}qkv.bias")}
        if isinstance(attention.lam, GateLambda):  # λ = ½
            state[f"{place}lam.gate.weight"] = torch.zeros_like(lambdas[f"{place}lam.gate.weight"])
            state[f"{place}proj.weight"] = 2 * state[f"{place}proj.weight"]
        elif isinstance(attention.lam, VectorLambda):  # λ = 0; vectors of zeros would have no gradient
            state |= {f"{place}lam.{name}2": lambdas[f"{place}lam.{name}1"].clone() for name in "qk"}
    return state


def _completed(tower: nn.Module, state: State, spec: str) -> State:
    """Return weights with zeros for biases that the source lacks and layer scales taken in; refuse all else."""
    state = {name: weight.detach().float().cpu() for name, weight in state.items()}
    for name in [name for name in state if name.endswith((".ls1.gamma", ".ls2.gamma"))]:
        gamma, layer = state.pop(name), name.replace("ls1.gamma", "attn.proj").replace("ls2.gamma", "mlp.fc2")
        for one in {f"{layer}.weight", f"{layer}.bias"} & state.keys():
            state[one] = (state[one].t() * gamma).t()
    needed = [name for name in tower.state_dict() if ".lam." not in name]
    for name in needed:
        if (weight := state.get(f"{name.removesuffix('bias')}weight")) is not None and name.endswith(".bias"):
            state.setdefault(name, torch.zeros(len(weight)))
    if wrong := sorted(state.keys() ^ {*needed}):
        _refuse(spec, f"{wrong[0]} is {'not in our' if wrong[0] in state else 'only in our'} transformer")
    return state


def _read(model: Any, spec: str) -> list[_Source]:
    """Return the tower of a model of a known kind; for a CLIP its image tower, its text tower and the rest."""
    if isinstance(model, OpenClip):
        return _open_clip(model, spec)
    if not isinstance(model, VisionTransformer | CLIP):
        whole = (model.model, model.normalize) if isinstance(model, preprocessing.Normalized) else (model, None)
        return [_timm(*whole, spec)]
    config: Any = model.config
    if config is None:
        _refuse(spec, "its attention is its own; expected that of a configuration")
    pairs = [(model, config)]
    if isinstance(model, CLIP):
        pairs = [(model.visual, config.vision), (model.text, config.text)]
    for _, one in pairs:
        if one.attention != "softmax":
            _refuse(spec, f"its attention is {one.attention}; expected standard attention")
    rest: State = {name: value for name, value in model.named_parameters() if "." not in name}
    both: list[_Source] = [(one.model_dump(), tower.state_dict()) for tower, one in pairs]
    return both if len(both) == 1 else [*both, (config.model_dump(exclude={"vision", "text"}), rest)]


def _timm(net: Any, normalize: Any, spec: str) -> _Source:
    timm: Any = importlib.import_module("timm.models.vision_transformer")  # seconds
    if type(net) is not timm.VisionTransformer:
        known = "expected a vision transformer of antiphase or timm, or a CLIP of antiphase or open_clip"
        raise UserError(f"{spec}: {type(net).__name__} cannot be converted; {known}")
    if net.global_pool != "token":
        _refuse(spec, f"its global_pool is {net.global_pool!r}; expected 'token', the class token")
    kinds = {"": timm.Block, ".attn": timm.Attention, ".mlp": timm.Mlp}
    blocks = {f"blocks.{n}{part}": kind for n in range(len(net.blocks)) for part, kind in kinds.items()}
    for name, kind in ({"patch_embed": timm.PatchEmbed} | blocks).items():
        if type(part := net.get_submodule(name)) is not kind:
            _refuse(spec, f"{name} is a {type(part).__name__}; expected timm's {kind.__name__}")
    state = net.state_dict()
    if "blocks.0.mlp.fc1.weight" not in state:
        _refuse(spec, "it has no blocks with ordinary weights, as of depth 0 or quantised layers")
    if net.no_embed_class and "pos_embed" in state:
        state["pos_embed"] = nn.functional.pad(state["pos_embed"], (0, 0, 1, 0))
    fields = _fields(spec, state, net, net.blocks[0], (normalize, net.patch_embed.img_size))
    return fields | {"num_classes": net.num_classes}, state


def _open_clip(model: OpenClip, spec: str) -> list[_Source]:
    import open_clip.transformer

    net: Any = model.model
    if (kinds := (type(net), type(net.visual))) != (open_clip.CLIP, open_clip.transformer.VisionTransformer):
        words = " with a ".join(kind.__name__ for kind in kinds)
        _refuse(spec, f"it is a {words}; expected open_clip's CLIP with its own VisionTransformer")
    if (pools := (net.visual.pool_type, net.text_pool_type)) != ("tok", "argmax"):
        _refuse(spec, f"its towers pool by {' and '.join(pools)}; expected tok and argmax")
    renamed = partial(re.sub, "|".join(map(re.escape, _RENAMED)), lambda match: _RENAMED[match[0]])
    state = {renamed(name): x for name, x in net.state_dict().items()}
    if "text_projection.weight" in state:
        state["text_projection"] = state.pop("text_projection.weight").T
    if "text_projection" not in state:
        _refuse(spec, "it has no text_projection")
    rest = {"image_projection": state.pop("visual.proj"), "text_projection": state.pop("text_projection")}
    scale = {name: state.pop(name).reshape(()) for name in ("logit_scale", "logit_bias") if name in state}
    fields = {"embed_dim": rest["image_projection"].shape[1], "interpolation": model.square.interpolation}
    images = {name.removeprefix("visual."): x for name, x in state.items() if name.startswith("visual.")}
    images |= {"cls_token": images["cls_token"].view(1, 1, -1), "pos_embed": images["pos_embed"][None]}
    words = {name: x for name, x in state.items() if not name.startswith("visual.")}
    visual, first = net.visual, net.visual.transformer.resblocks[0]
    sizes = {"vocab_size": net.vocab_size, "context_length": net.context_length}
    image = _fields(spec, images, visual, first, (model.normalize, visual.image_size))
    text = _fields(spec, words, net.transformer, net.transformer.resblocks[0]) | sizes
    fields |= {name: float(value) for name, value in scale.items()}
    return [(image | {"num_classes": 0}, images), (text, words), (fields, rest | scale)]


def _fields(spec: str, state: State, net: Any, first: Any, pixels: Any = None) -> dict[str, Any]:
    """Return the fields of a tower that its weights and first block tell, and normalisation and size of its images."""
    activation = getattr(first.mlp, "act", None) or first.mlp.gelu
    if (kind := _ACTIVATIONS.get(type(activation).__name__)) is None:
        _refuse(spec, f"its activation is {activation}; expected {' or '.join(_ACTIVATIONS)}")
    hidden, dim = state["blocks.0.mlp.fc1.weight"].shape
    fields = {"attention": "softmax", "dim": dim, "num_heads": first.attn.num_heads, "activation": kind}
    # half a unit more, so that the integer part of dim · mlp_ratio is right
    fields["mlp_ratio"] = hidden / dim if hidden % dim == 0 else (hidden + 0.5) / dim
    fields["depth"] = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    fields["norm_eps"] = next((part.eps for part in net.modules() if isinstance(part, nn.LayerNorm)), 1e-6)
    if pixels is None:
        return fields
    normalize, size = pixels
    _, channels, patch, _ = state["patch_embed.proj.weight"].shape
    colours = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    if normalize is not None:
        colours = {name: tuple(getattr(normalize, name).flatten().tolist()) for name in colours}
    sizes = {"image_size": size[0], "patch_size": patch, "in_channels": channels}
    return fields | colours | sizes | {"pre_norm": "norm_pre.weight" in state}


@torch.no_grad()
def _check_outputs(source: nn.Module, new: Any, spec: str) -> None:
    """Refuse a conversion with other outputs; both are run in float64, where rounding does not count."""
    models = [modules.copied(model).cpu().double().eval() for model in (source, new)]
    images = torch.rand(2, *new.image_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls: list[Any] = [lambda one: one(images)]
    if isinstance(new, CLIP):
        calls = [lambda one: one.encode_image(images), lambda one: one.encode_text(["a mug", "two"])]
    for call in calls:
        expected, outputs = map(call, models)
        gap = float((outputs - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not gap <= _GAP:
            _refuse(spec, f"its outputs would differ by {gap:.2g} of the largest; a part does something else")
        if torch.equal(expected[0], expected[1]):
            _refuse(spec, "its outputs do not depend on its inputs, as of a last layer that is 0")


def _refuse(spec: str, part: str) -> NoReturn:
    raise UserError(f"{spec}: cannot be converted exactly: {part}")
