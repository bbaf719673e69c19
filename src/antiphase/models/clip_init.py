"""How a dual encoder's weights start: alike for both twins, or as in the released pair."""

from typing import Literal

import torch
from torch import Tensor, nn

from antiphase.attention.lambdas import lambda_of
from antiphase.models.initial import draw_own
from antiphase.streams import generator

Init = Literal["matched", "released"]


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
