"""What a CLIP learns from emoji by a recipe, measured on training concepts that are held out from it.

Recipes of the small CLIPs are chosen by these numbers alone: 15 % of the training concepts are left out and drawn by an
artist whom the model has seen (openmoji) and one whom it has not (noto-emoji). Zero-shot is over the nine groups by the
names of the other concepts, the mean over the groups; R@5 over one drawing of each name.

    uv run python benchmarks/emoji_recipe.py --out runs/recipe --recipe '{"epochs": 12}' --artists openmoji,twemoji
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import provenance

from antiphase.data.emoji import GROUPS, concept_of, emoji_pairs
from antiphase.data.images import ArrayPairs
from antiphase.evaluation.retrieval import ranks
from antiphase.models.clip import CLIP
from antiphase.models.zeroshot import zero_shot_classifier
from antiphase.processes import keep_freed_memory
from antiphase.streams import key
from antiphase.training.contrastive import train_clip
from antiphase.training.recipe import make_clip_recipe

SEEN, UNSEEN = "openmoji", "noto-emoji"


def main() -> None:
    """Train one model and print its numbers as a JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="clip")
    parser.add_argument("--artists", default="openmoji,twemoji,fluent-emoji,emojione")
    parser.add_argument("--preset", default="openmoji")
    parser.add_argument("--sizes", type=json.loads, default={})
    parser.add_argument("--recipe", type=json.loads, default={})
    parser.add_argument("--every", type=int, default=0, help="epochs between evaluations")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    pairs = emoji_pairs("emoji", "train", artists=options.artists.split(","))
    pairs = pairs.take([row for row, (name, *_) in enumerate(pairs.captions) if not left_out(name)])
    fields = {"seed": 0} | options.recipe
    recipe = make_clip_recipe(options.model, options.preset, "emoji", pairs.fingerprint(), options.sizes, **fields)
    began, epoch = time.process_time(), 0

    def numbers(model: CLIP) -> dict[str, Any]:
        nonlocal epoch
        epoch += 1
        if epoch != recipe.epochs and (not options.every or epoch % options.every):
            return {}
        shown = {"epoch": epoch, "core_minutes": round((time.process_time() - began) / 60, 2)}
        for artist in (SEEN, UNSEEN):
            drawn = emoji_pairs(artist, "train")
            out = [row for row, (name, *_) in enumerate(drawn.captions) if left_out(name)]
            shown |= {f"{artist}, held out": measured(model, drawn.take(out), pairs)}
        known = [row for row in range(len(drawn)) if row not in set(out)]
        shown |= {f"{UNSEEN}, known": measured(model, drawn.take(known), pairs)}
        print(json.dumps(shown), flush=True)
        return {}

    train_clip(recipe, pairs, options.out, evaluate=numbers, progress=False)
    print(json.dumps({"pairs": len(pairs), "recipe": vars(options)} | provenance(), default=str))


def left_out(name: str) -> bool:
    """Return whether a training concept is held out."""
    return key("recipe", concept_of(name)) % 100 < 15


@torch.inference_mode()
def measured(model: CLIP, shown: ArrayPairs, learned: ArrayPairs) -> dict[str, Any]:
    """Return zero-shot accuracy over the groups, top-1 and by group, and R@1 and R@5, in percent."""
    prompts: list[dict[str, str]] = [{} for _ in GROUPS]
    assert learned.labels is not None
    assert shown.labels is not None
    for (name, *_), label in zip(learned.captions, learned.labels.tolist(), strict=True):
        prompts[label].setdefault(concept_of(name), name)
    classifier = zero_shot_classifier(model, list(GROUPS), prompts=[list(names.values()) for names in prompts])
    images = shown.array.float() / 255
    parts = [images[rows] for rows in torch.arange(len(images)).split(256)]
    hits = torch.cat([classifier(part).argmax(1) for part in parts]) == shown.labels
    share = shown.labels.bincount(minlength=len(GROUPS)) / len(hits)
    by_group = [float(hits[shown.labels == group].double().mean()) for group in shown.labels.unique()]
    single = [row for row, (name, *_) in enumerate(shown.captions) if "skin tone" not in name]
    vectors = torch.cat([model.encode_image(images[rows]) for rows in torch.tensor(single).split(256)])
    texts = model.encode_text([shown.captions[row][0] for row in single])
    vectors, texts = (torch.nn.functional.normalize(part.float(), dim=-1) for part in (vectors, texts))
    owners = torch.arange(len(single))
    by_way = {"image": ranks(texts, vectors, owners, owners), "text": ranks(vectors, texts, owners, owners)}
    recall = {f"{way} R@{k}": float((rank < k).double().mean()) for way, rank in by_way.items() for k in (1, 5)}
    accuracy = {"by group": np.mean(by_group), "top-1": hits.double().mean(), "largest": share.max()}
    return {name: round(100 * float(value), 1) for name, value in (accuracy | recall).items()} | {
        "images": len(hits),
        "names": len(single),
        "chance R@5": round(500 / len(single), 1),
    }


if __name__ == "__main__":
    main()
