"""Which strength of each defence the study `defence` trains with, chosen on held-out training images.

The rule, written down before the first run: a one-layer DiffViT of the studies' recipe, seed 100, learns 55,000 of the
training images of Fashion-MNIST with each defence at three strengths. Of those whose accuracy on the other 5,000 is at
most one point below the natural model's, the strength with the lowest ASR under PGD at 2/255 (20 steps, 1,000 of the
5,000) is taken; the weakest if there is none. No test image is seen. `--out` keeps finished rows and goes on from them.

    uv run python benchmarks/defence_strengths.py --out benchmarks/defence_strengths.json
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rounds import provenance

from antiphase.attacks import Threat, pgd
from antiphase.data import ImageSet, load_data
from antiphase.models.zoo import load_model
from antiphase.studies.own.defence import DEFENCES, STRENGTHS, defended
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.spec import profile
from antiphase.training import accuracy, make_recipe, train_classifier

SEED, HELD_OUT, ATTACKED, EPS, LOSS = 100, 5000, 1000, 2 / 255, 0.01


def chosen(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the strength of each defence by the rule above."""
    least = rows["natural"]["accuracy"] - LOSS
    found: dict[str, float] = {}
    for name in DEFENCES:
        some = {strength: rows[f"{name}={strength:g}"] for strength in STRENGTHS[name]}
        kept = [strength for strength, row in some.items() if row["accuracy"] >= least]
        found[name] = min(kept, key=lambda one: some[one]["asr"]) if kept else min(some)
    return found


def measure(train: ImageSet, held: ImageSet, name: str, strength: float) -> dict[str, float]:
    """Train one model, and return accuracy and ASR on held-out images and the CPU time of the training."""
    model = defended(bench(profile("laptop", None)), "DiffViT", name, SEED, "fashion-mnist", strength)
    fields: dict[str, Any] = model.recipe | ({"adversarial": model.adversary} if model.adversary else {})
    recipe = make_recipe(model.model, train, model.sizes, data=model.data, seed=SEED, **fields)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train_classifier(recipe, train, None, folder, progress=False)
        seconds = time.process_time() - began
        trained = load_model(folder)
    images = held.images(torch.arange(ATTACKED))
    broken = pgd(trained, images, None, Threat("linf", EPS), steps=20, seed=0)
    return {"accuracy": accuracy(trained, held), "asr": float(broken.asr), "cpu_seconds": round(seconds, 1)}


def main() -> None:
    """Measure what is not there yet, and print the strengths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_data("fashion-mnist", split="train", progress=False)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, held = (images.take(part.sort().values) for part in (order[:-HELD_OUT], order[-HELD_OUT:]))
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    for name, strengths in {"natural": (0.0,), **STRENGTHS}.items():
        for strength in strengths:
            key = name if name == "natural" else f"{name}={strength:g}"
            if key not in rows:
                rows[key] = measure(train, held, name, strength)
                print(key, rows[key], flush=True)
                whole = {"rows": rows, "provenance": provenance()}
                options.out.write_text(json.dumps(whole, indent=1) + "\n")
    print(chosen(rows))


if __name__ == "__main__":
    main()
