"""Each defence at three strengths, measured on held-out training images; which strength of each to take.

The rule, written down before the first run: a one-layer DiffViT of the studies' recipe, seed 100, learns 55,000 of the
training images of Fashion-MNIST with each defence at three strengths. Of those whose accuracy on the other 5,000 is at
most one point below the natural model's, the strength with the lowest ASR under PGD at 2/255 (20 steps, 1,000 of the
5,000) is taken; the weakest if there is none. No test image is seen.

    uv run python benchmarks/defence_strengths.py             # measures what is missing; writes JSON and page
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from agreement import replace_marked
from rounds import provenance

from antiphase.attacks import Threat, pgd
from antiphase.data import ImageSet, load_data
from antiphase.models.zoo import load_model
from antiphase.studies.cells import TrainVit
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.spec import profile
from antiphase.training import accuracy, make_recipe, train_classifier

PUBLISHED, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).parents[1] / "docs/defences.md"
SEED, HELD_OUT, ATTACKED, EPS, LOSS = 100, 5000, 1000, 2 / 255, 0.01
NATURAL = "natural"
_EPS_OF_TRAINING = tuple(eps / 255 for eps in (0.5, 1, 2))
STRENGTHS = dict.fromkeys(("map-jacobian", "alignment", "lambda-rho"), (0.1, 1.0, 10.0))
STRENGTHS |= dict.fromkeys(("jasmin", "input-gradient"), (0.01, 0.1, 1.0))
STRENGTHS |= {"fast": _EPS_OF_TRAINING, "free": _EPS_OF_TRAINING, "trades": (1.0, 3.0, 6.0)}
"""Of fast and free adversarial training the ε; of TRADES its β, on images of fast adversarial training at ε = 2/255."""


def defended(name: str, strength: float) -> TrainVit:
    """Return the training of a DiffViT with a defence."""
    model = bench(profile("laptop", None)).train("diffvit", SEED, "fashion-mnist")
    fields: dict[str, Any] = {}
    if name in ("fast", "free", "trades"):
        fields["adversary"] = {
            "eps": EPS if name == "trades" else strength,
            "variant": "free" if name == "free" else "fast",
        }
    if name not in (NATURAL, "fast", "free"):
        fields["recipe"] = {**model.recipe, "defences": {name: strength}}
    return replace(model, **fields)


def chosen(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the strength of each defence by the rule above."""
    least = rows[NATURAL]["accuracy"] - LOSS
    choices: dict[str, float] = {}
    for name, strengths in STRENGTHS.items():
        by_strength = {strength: rows[f"{name}={strength:g}"] for strength in strengths}
        kept = [strength for strength, row in by_strength.items() if row["accuracy"] >= least]
        choices[name] = min(kept, key=lambda one: by_strength[one]["asr"]) if kept else min(by_strength)
    return choices


def measure(train: ImageSet, validation: ImageSet, name: str, strength: float) -> dict[str, float]:
    """Train one model, and return accuracy and ASR on held-out images and the CPU time of the training."""
    model = defended(name, strength)
    fields: dict[str, Any] = model.recipe | ({"adversarial": model.adversary} if model.adversary else {})
    recipe = make_recipe(model.model, train, model.sizes, data=model.data, seed=SEED, **fields)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train_classifier(recipe, train, None, folder, progress=False)
        seconds = time.process_time() - began
        trained = load_model(folder)
    images = validation.images(torch.arange(ATTACKED))
    broken = pgd(trained, images, None, Threat("linf", EPS), steps=20, seed=0)
    return {"accuracy": accuracy(trained, validation), "asr": float(broken.asr), "cpu_seconds": round(seconds, 1)}


def table(record: Mapping[str, Any]) -> str:
    """Return the rows as a table in Markdown, the chosen strengths in bold, with a sentence below it."""
    rows, best = record["rows"], chosen(record["rows"])
    head = ("defence", "strength", "accuracy, %", "ASR under PGD at 2/255, %", "CPU time over natural training")
    lines = [head, ("---", *["---:"] * 4)]
    for name, strengths in {NATURAL: (0.0,), **STRENGTHS}.items():
        for strength in strengths:
            row = rows[name if name == NATURAL else f"{name}={strength:g}"]
            told = f"ε = {strength * 255:g}/255" if name in ("fast", "free") else f"{strength:g}"
            told = "–" if name == NATURAL else f"**{told}**" if best[name] == strength else told
            spent = row["cpu_seconds"] / rows[NATURAL]["cpu_seconds"]
            lines.append((name, told, f"{100 * row['accuracy']:.1f}", f"{100 * row['asr']:.1f}", f"{spent:.1f}"))
    rate = rows[NATURAL]["asr"]
    error = 196 * math.sqrt(rate * (1 - rate) / ATTACKED)
    about = (
        f"One DiffViT of one layer for each line, on training images of Fashion-MNIST that it did not learn: accuracy "
        f"on {HELD_OUT:,}, ASR on {ATTACKED:,} (95 % intervals of ±{error:.1f} points for one model; other seeds are "
        f"not in them); CPU times beside other work. "
        f"In bold: the strength of the lowest ASR that costs at most one point of accuracy. Commit "
        f"{record['provenance']['commit']}, {record['provenance']['date']}, {record['provenance']['hardware']}."
    )
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", about]) + "\n"


def main() -> None:
    """Measure what is not there yet, and write the page."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    images = load_data("fashion-mnist", split="train", progress=False)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, validation = (images.take(part.sort().values) for part in (order[:-HELD_OUT], order[-HELD_OUT:]))
    record = json.loads(PUBLISHED.read_text(encoding="utf-8")) if PUBLISHED.exists() else {"rows": {}}
    for name, strengths in {NATURAL: (0.0,), **STRENGTHS}.items():
        for strength in strengths:
            key = name if name == NATURAL else f"{name}={strength:g}"
            if key not in record["rows"]:
                record["rows"][key] = measure(train, validation, name, strength)
                print(key, record["rows"][key], flush=True)
                record["provenance"] = provenance()
                PUBLISHED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    replace_marked(PAGE, "strengths", table(record))


if __name__ == "__main__":
    main()
