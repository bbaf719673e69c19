"""A dual encoder written out slowly from the formulas: one image, one text, one head at a time.

Works on weights in the layout of DiffCLIP's released checkpoints, with the facts of that layout: interleaved
branches, λ from four vectors, an RMSNorm over each head's values and a factor 1 − λ_init.
"""

import math

import torch

HEAD = 64


def embed_image(state, image, *, mean, std, lambda_init, eps):
    """Return the embedding of one image in [0, 1], of shape (3, height, width)."""
    x = torch.stack([(image[c] - mean[c]) / std[c] for c in range(3)])
    kernel, bias = state["visual.patch_embed.proj.weight"], state["visual.patch_embed.proj.bias"]
    side = kernel.shape[-1]
    tokens = [state["visual.cls_token"][0, 0]]
    for top in range(0, x.shape[1], side):
        for left in range(0, x.shape[2], side):
            patch = x[:, top : top + side, left : left + side]
            tokens.append(torch.stack([(filter_ * patch).sum() for filter_ in kernel]) + bias)
    x = torch.stack(tokens) + state["visual.pos_embed"][0]
    layer = 0
    while f"visual.blocks.{layer}.norm1.weight" in state:
        name = f"visual.blocks.{layer}."
        y = norm(x, state, name + "norm1.", eps)
        x = x + attention(y, state, name + "attn.", lambda_init, causal=False)
        y = norm(x, state, name + "norm2.", eps)
        hidden = linear(y, state, name + "mlp.fc1.")
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + linear(hidden, state, name + "mlp.fc2.")
        layer += 1
    return norm(x[:1], state, "visual.norm.", eps)[0] @ state["image_projection"]


def embed_text(state, tokens, *, lambda_init):
    """Return the embedding of one text, a list of token ids that holds the end of the text."""
    x = torch.stack([state["token_embedding.weight"][token] for token in tokens])
    x = x + state["positional_embedding"][: len(tokens)]
    layer = 0
    while f"transformer.resblocks.{layer}.ln_1.weight" in state:
        name = f"transformer.resblocks.{layer}."
        y = norm(x, state, name + "ln_1.", 1e-5)
        x = x + attention(y, state, name + "attn.", lambda_init, causal=True)
        y = norm(x, state, name + "ln_2.", 1e-5)
        hidden = linear(y, state, name + "mlp.c_fc.")
        hidden = hidden / (1 + torch.exp(-1.702 * hidden))
        x = x + linear(hidden, state, name + "mlp.c_proj.")
        layer += 1
    end = max(range(len(tokens)), key=lambda position: tokens[position])
    return norm(x[end : end + 1], state, "ln_final.", 1e-5)[0] @ state["text_projection"]


def attention(x, state, name, lambda_init, *, causal):
    """Return the layer's output, standard or differential as its keys say."""
    if name + "lambda_q1" in state:
        return differential(x, state, name, lambda_init, causal=causal)
    fused = "qkv." if name + "qkv.weight" in state else "in_proj_"
    q, k, v = (
        x @ w.T + b
        for w, b in zip(state[f"{name}{fused}weight"].chunk(3), state[f"{name}{fused}bias"].chunk(3), strict=True)
    )
    heads = []
    for start in range(0, x.shape[1], HEAD):
        part = slice(start, start + HEAD)
        heads.append(softmax_map(q[:, part], k[:, part], causal) @ v[:, part])
    return linear(torch.cat(heads, 1), state, name + ("proj." if fused == "qkv." else "out_proj."))


def differential(x, state, name, lambda_init, *, causal):
    """Return concat over heads of (1 − λ_init)·RMSNorm((A1 − λ·A2)·V), projected."""
    q, k, v = (linear(x, state, f"{name}{which}_proj.") for which in "qkv")
    first = torch.exp((state[name + "lambda_q1"] * state[name + "lambda_k1"]).sum())
    second = torch.exp((state[name + "lambda_q2"] * state[name + "lambda_k2"]).sum())
    lam = first - second + lambda_init
    heads = []
    for head in range(x.shape[1] // (2 * HEAD)):
        one = slice(2 * head * HEAD, (2 * head + 1) * HEAD)
        two = slice((2 * head + 1) * HEAD, (2 * head + 2) * HEAD)
        both = slice(2 * head * HEAD, (2 * head + 2) * HEAD)
        combined = softmax_map(q[:, one], k[:, one], causal) - lam * softmax_map(q[:, two], k[:, two], causal)
        out = combined @ v[:, both]
        out = out / (out.square().mean(1, keepdim=True) + 1e-5).sqrt() * state[name + "diff_norm.weight"]
        heads.append((1 - lambda_init) * out)
    return linear(torch.cat(heads, 1), state, name + "out_proj.")


def softmax_map(q, k, causal):
    """Return one head's map, row by row."""
    rows = []
    for row in range(len(q)):
        seen = row + 1 if causal else len(k)
        weights = torch.exp(torch.stack([q[row] @ k[other] for other in range(seen)]) / math.sqrt(q.shape[1]))
        rows.append(torch.cat([weights / weights.sum(), q.new_zeros(len(k) - seen)]))
    return torch.stack(rows)


def linear(x, state, name):
    """Return x Wᵀ + b."""
    return x @ state[name + "weight"].T + state[name + "bias"]


def norm(x, state, name, eps):
    """Return the layer norm of each row."""
    centred = x - x.mean(1, keepdim=True)
    return (
        centred / (centred.square().mean(1, keepdim=True) + eps).sqrt() * state[name + "weight"] + state[name + "bias"]
    )
