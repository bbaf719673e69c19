"""Pairs and a model so small that a step takes milliseconds."""

import io
import json
import tarfile

import torch
from PIL import Image

from antiphase.data.images import ArrayPairs
from antiphase.models.clip import build_clip, configure_clip, tokenize
from antiphase.training.contrastive import Share
from antiphase.training.recipe import make_clip_recipe

WORDS = ["red", "green", "blue", "round", "flat", "small", "big", "old", "new", "dog", "cat", "mug", "lamp", "tree"]
COUNT = 11
TINY = {
    "vision": {"image_size": 16, "patch_size": 8, "dim": 24, "depth": 1, "num_heads": 2},
    "text": {"dim": 16, "depth": 1, "num_heads": 2, "context_length": 12},
    "embed_dim": 12,
}


def tiny_pairs(count=23, side=None):
    """Return pairs of noise and words, with two classes."""
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(0, len(WORDS), (count, 3), generator=draw).tolist()
    return ArrayPairs(
        name="tiny",
        split="train",
        ids=torch.arange(count),
        captions=tuple((" ".join(WORDS[i] for i in row), WORDS[row[0]]) for row in words),
        labels=torch.arange(count) % 2,
        class_names=("even", "odd"),
        array=torch.randint(0, 256, (count, 3, side or 19, side or 17), dtype=torch.uint8, generator=draw),
    )


def tiny_recipe(variant="diffclip", pairs=None, **fields):
    """Return the recipe of a run of a second or so."""
    pairs = pairs or tiny_pairs()
    named = {"epochs": 2, "batch_size": 8, "precision": "float32"} | fields
    return make_clip_recipe(variant, "openmoji", pairs.name, pairs.fingerprint(), TINY, **named)


def write_shard(path, samples, start=0):
    """Write a tar as img2dataset does: for each caption a JPEG of noise; None leaves the caption out."""
    draw = torch.Generator().manual_seed(start)
    with tarfile.open(path, "w") as tar:
        for index, caption in enumerate(samples, start):
            pixels = torch.randint(0, 256, (19, 17, 3), dtype=torch.uint8, generator=draw).numpy()
            image = io.BytesIO()
            Image.fromarray(pixels).save(image, "JPEG")
            members = {"jpg": image.getvalue(), "json": json.dumps({"key": f"{index:09d}"}).encode()}
            members |= {} if caption is None else {"txt": caption.encode()}
            for suffix, content in members.items():
                about = tarfile.TarInfo(f"{index:09d}.{suffix}")
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))


def model_of(kind):
    """Return the model that a loss is tried on."""
    bias = {"logit_scale": 2.3, "logit_bias": -10.0} if kind == "siglip" else {}
    return build_clip(configure_clip("small", towers="both", **TINY, **bias), seed=1)


def share_of(valid=None):
    """Return eleven pairs as one process feeds them to the model."""
    pairs = tiny_pairs(COUNT)
    images = pairs.array[:, :, :16, :16].contiguous()
    tokens = tokenize([several[0] for several in pairs.captions], 12)
    valid = torch.ones(COUNT, dtype=torch.bool) if valid is None else valid
    return Share(images, tokens, valid, None, COUNT)


def gradients(model):
    """Return a copy of the gradients that there are."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
