"""Time of a contrastive training step: DiffCLIP over CLIP, and CLIP over open_clip's own model and loss.

Towers' forward and backward passes, the loss and AdamW, at ViT-B/16 and 224 pixels with random weights. The models
take turns, step by step, within one process; a ratio is the median over the rounds, its interval a bootstrap over
them. ``--tokens 77`` fills the texts; ours leave out the places behind the longest text of a batch, open_clip computes
all 77 always.

    uv run python benchmarks/clip_training.py                      # batch 8, bf16, captions of 12 tokens
    uv run python benchmarks/clip_training.py --tokens 77 --rounds 8
"""

import argparse
import json
import warnings
from collections.abc import Callable

import numpy as np
import open_clip
import torch
from accelerate import Accelerator
from rounds import provenance, ratio, take_turns
from torch import Tensor, nn

from antiphase.models import clip, diffclip
from antiphase.processes import keep_freed_memory
from antiphase.training.contrastive import Share, accumulate

Step = Callable[[], None]


def main() -> None:
    """Time all models in turn and print one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12, help="in each text, start and end included")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    bf16 = options.precision == "bf16"
    share = random_share(options.batch, options.tokens)
    steps = {
        "clip": our_step(clip("b16"), share, bf16),
        "diffclip": our_step(diffclip("b16"), share, bf16),
        "diffclip-vision": our_step(diffclip("b16", towers="vision"), share, bf16),
        "open_clip": their_step(share, bf16),
    }
    seconds = take_turns(steps, options.rounds)
    ratios = {
        f"{one} / {two}": ratio(seconds[one], seconds[two])
        for one, two in (("diffclip", "clip"), ("diffclip-vision", "clip"), ("clip", "open_clip"))
    }
    medians = {name: round(float(np.median(times)), 3) for name, times in seconds.items()}
    made_with = provenance(packages=("open_clip",))
    print(json.dumps(vars(options) | {"seconds": medians, "ratios": ratios} | made_with))


def random_share(batch: int, count: int) -> Share:
    """Return a batch of noise with texts of ``count`` tokens."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.zeros(batch, 77, dtype=torch.long)
    tokens[:, :count] = torch.randint(1, 49_000, (batch, count), generator=draw)
    tokens[:, 0], tokens[:, count - 1] = 49_406, 49_407
    images = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8, generator=draw)
    return Share(images, tokens, torch.ones(batch, dtype=torch.bool), None, batch)


def our_step(model: nn.Module, share: Share, bf16: bool) -> Step:
    """Return a step of ours."""
    optimizer, accelerator = adam(model), Accelerator(cpu=True)

    def step() -> None:
        optimizer.zero_grad()
        accumulate(model, share, accelerator, kind="clip", precision="bf16" if bf16 else "float32", part=None)  # pyright: ignore[reportArgumentType]
        optimizer.step()

    return step


def their_step(share: Share, bf16: bool) -> Step:
    """Return a step of open_clip's ViT-B-16 with its loss, under autocast as its own training code has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = open_clip.create_model("ViT-B-16", pretrained=None)
    loss, optimizer = open_clip.ClipLoss(), adam(model)
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN).view(3, 1, 1)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD).view(3, 1, 1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs: tuple[Tensor, ...] = model((share.images.float() / 255 - mean) / std, share.tokens)
            total = loss(*outputs[:3])
        total.backward()
        optimizer.step()

    return step


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all share."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.98), fused=True)


if __name__ == "__main__":
    main()
