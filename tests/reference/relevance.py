"""Chefer et al.'s relevance of one image for one text, written out: every map is a leaf, R is a whole matrix.

The leaves are zeros that are added to the maps, so that autograd gives the whole derivative by each of them while the
maps go on depending on the layers before. Parameter names are the package's; attention is by tests/reference's layout:
rows of the q and k projections belong to A1 of head 0, A2 of head 0, A1 of head 1, …
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, weights: dict[str, Tensor], name: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def softmax_map(q: Tensor, k: Tensor) -> Tensor:
    scores = (q @ k.T / math.sqrt(q.shape[-1])).exp()
    return scores / scores.sum(-1, keepdim=True)


def attend(x: Tensor, weights: dict[str, Tensor], *, num_heads: int, lambda_init: float | None):
    """Return a layer's output for tokens (tokens, dim), and (A1 leaf, A2 leaf, A1, A2, λ) of each head."""
    dim = x.shape[1]
    width = dim // num_heads
    q, k, v = (x @ weights["qkv.weight"].T + weights["qkv.bias"]).split(dim, dim=1)
    slots = [slice(i * width, (i + 1) * width) for i in range(num_heads)]
    columns, heads = [], []
    if lambda_init is None:
        for one in slots:
            leaf = torch.zeros(len(x), len(x), dtype=x.dtype, requires_grad=True)
            a = softmax_map(q[:, one], k[:, one]) + leaf
            columns.append(a @ v[:, one])
            heads.append((leaf, None, a, None, 0.0))
    else:
        first, second = ((weights[f"lam.q{i}"] * weights[f"lam.k{i}"]).sum().exp() for i in (1, 2))
        lam = first - second + lambda_init
        for one, two in zip(slots[::2], slots[1::2], strict=True):
            leaves = [torch.zeros(len(x), len(x), dtype=x.dtype, requires_grad=True) for _ in range(2)]
            maps = [softmax_map(q[:, slot], k[:, slot]) + leaf for slot, leaf in zip((one, two), leaves, strict=True)]
            values = torch.cat([v[:, one], v[:, two]], 1)
            y = (maps[0] - lam * maps[1]) @ values
            y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights["norm.weight"]
            columns.append(y * (1 - lambda_init))
            heads.append((*leaves, *maps, lam))
    return torch.cat(columns, 1) @ weights["proj.weight"].T + weights["proj.bias"], heads


def encode_image(image: Tensor, weights: dict[str, Tensor], config):
    """Return the embedding of one image (channels, height, width) and the heads of every layer."""
    patch, side = config.patch_size, config.image_size // config.patch_size
    # the model keeps both in float32
    mean, std = (torch.tensor(part).to(image.dtype)[:, None, None] for part in (config.mean, config.std))
    image = (image - mean) / std
    tokens = [weights["cls_token"][0, 0]]
    for row in range(side):
        for column in range(side):
            square = image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            kernel = weights["patch_embed.proj.weight"].flatten(1)
            tokens.append(kernel @ square.flatten() + weights["patch_embed.proj.bias"])
    x = torch.stack(tokens) + weights["pos_embed"][0]
    layers = []
    for layer in range(config.depth):
        block = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        inner = {name.removeprefix("attn."): value for name, value in block.items() if name.startswith("attn.")}
        scheduled = 0.8 - 0.6 * math.exp(-0.3 * layer)
        lambda_init = {"constant": config.lambda_init, "depth": scheduled}[config.lambda_schedule]
        y, heads = attend(
            layer_norm(x, block, "norm1", config.norm_eps),
            inner,
            num_heads=config.num_heads,
            lambda_init=None if config.attention == "softmax" else lambda_init,
        )
        layers.append(heads)
        x = x + y
        hidden = layer_norm(x, block, "norm2", config.norm_eps) @ block["mlp.fc1.weight"].T + block["mlp.fc1.bias"]
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + hidden @ block["mlp.fc2.weight"].T + block["mlp.fc2.bias"]
    return layer_norm(x, weights, "norm", config.norm_eps)[0] @ weights["image_projection"], layers


def relevance(
    image: Tensor, text: Tensor, weights: dict[str, Tensor], config, scale: float, part: str, start: int = 0
) -> Tensor:
    """Return R[CLS, 1:] of one image for one text's embedding, as a vector over the patches.

    Args:
        image: (channels, height, width).
        text: embedding of the text, of any length.
        weights: of the image tower, with ``image_projection``.
        config: of the image tower.
        scale: what the cosine is multiplied by.
        part: combined, positive or negative.
        start: the first layer that counts, from 0.
    """
    embedding, layers = encode_image(image, weights, config)
    logit = scale * (embedding @ text) / (embedding.norm() * text.norm())
    logit.backward()
    matrix = torch.eye(len(layers[0][0][0]), dtype=image.dtype)
    for heads in layers[start:]:
        cams = []
        for leaf_one, leaf_two, one, two, lam in heads:
            if part == "positive" or two is None:
                cams.append((leaf_one.grad * one).clamp_min(0))
            elif part == "negative":
                cams.append((leaf_two.grad * two).clamp_min(0))
            else:  # A1 alone moves A1 − λ·A2 as much as it moves itself
                cams.append((leaf_one.grad * (one - lam * two)).clamp_min(0))
        matrix = matrix + torch.stack(cams).mean(0) @ matrix
    return matrix[0, 1:].detach()
