"""Robust accuracy under AutoAttack against pyautoattack's: what stands after each attack of the ensemble.

Both run the standard version on the same model, images, true labels, ε and seed, each in its own order of work; every
attack is given what those before it left standing. Hours of work: each attack of each cell is appended to ``--into`` as
soon as it is done, and a run that was cut off goes on behind its last line.

    uv run python benchmarks/agreement.py --into agreement.jsonl               # 500 images: ten hours or so on 2 cores
    uv run python benchmarks/agreement.py --into some.jsonl --images 40 --eps 8/255 --seeds 0
    uv run python benchmarks/agreement.py --into agreement.jsonl --show        # the table of what is there
"""

import argparse
import json
import logging
import time
import warnings
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import provenance
from torch import Tensor, nn

import antiphase as ap
from antiphase.attacks import Threat
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.processes import keep_freed_memory

STAGES = ("apgd-ce", "apgd-t", "fab-t", "square")
Line = dict[str, Any]


def main() -> None:
    """Run the cells that are not there yet, or show what is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--models", default="specimen:diffvit-0,specimen:vit-0")
    parser.add_argument("--eps", default="1/255,2/255,4/255,8/255")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--precision", default="bf16", help="of our search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    cells = product(options.seeds.split(","), options.eps.split(","), options.models.split(","))
    if options.show:
        return show(options.into)
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    data = ap.data.load_data("specimen-fashion-mnist", limit=options.images, seed=0)
    images, labels = data.images(range(len(data))), torch.tensor(data.labels)
    for seed, eps, name in cells:
        model = ap.load_model(name).eval().requires_grad_(False)
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).nonzero().flatten()
        for who, run in (("antiphase", ours), ("pyautoattack", theirs)):
            precision = options.precision if run is ours else "float32"
            cell = {
                "model": name,
                "eps": eps,
                "seed": int(seed),
                "images": len(images),
                "who": who,
                "precision": precision,
            }
            before = [line for line in read(options.into) if cell.items() <= line.items()]
            standing = torch.tensor(before[-1]["standing"], dtype=torch.long) if before else right
            threat = Threat(eps=float(Fraction(eps)))
            for stage in STAGES[len(before) :]:
                began = time.perf_counter()
                if len(standing):
                    standing = run(stage, model, images, labels, standing, threat, int(seed), precision)
                seconds = round(time.perf_counter() - began, 1)
                line = {**cell, "stage": stage, "standing": standing.tolist(), "seconds": seconds}
                line |= provenance({name: model}, ("pyautoattack",))
                with options.into.open("a") as file:
                    file.write("\n" + json.dumps(line) + "\n")  # not behind a line that was cut off
                print(json.dumps({**line, "standing": len(standing)}), flush=True)


def ours(
    stage: str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    standing: Tensor,
    threat: Threat,
    seed: int,
    precision: str,
) -> Tensor:
    """Return what still stands after one attack of our ensemble."""
    (one,) = (each for each in autoattack_ensemble("standard").stages if each.name == stage)
    result = one.attack(
        model,
        images[standing],
        labels[standing],
        threat,
        **one.settings,
        seed=seed,
        ids=standing,
        precision=precision,
        progress=False,
    )
    return standing[~result.success]


def theirs(
    stage: str,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    standing: Tensor,
    threat: Threat,
    seed: int,
    precision: str,
) -> Tensor:
    """Return what still stands after one attack of pyautoattack's, which seeds each of them anew itself."""
    from pyautoattack import AutoAttack

    adversary = AutoAttack(model, norm="Linf", eps=threat.eps, seed=seed, version="standard")
    adversary.attacks_to_run = [stage]
    _, prediction = adversary.run_standard_evaluation(images[standing], labels[standing])
    return standing[prediction == labels[standing]]


def read(path: Path) -> list[Line]:
    """Return the lines that are there, but for one that was cut off."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def show(path: Path) -> None:
    """Print robust accuracy after each attack of every cell that both have finished, and the largest differences."""
    lines = read(path)
    print("| model | ε | seed | images | " + " | ".join(STAGES) + " | ours − theirs | seconds ours, theirs |")
    print("|---|---|---|---|" + "---|" * (len(STAGES) + 2))
    worst: dict[str, list[float]] = {stage: [] for stage in STAGES}
    columns = ("model", "eps", "seed", "images")
    for cell in sorted({tuple(line[column] for column in columns) for line in lines}):
        same = [line for line in lines if tuple(line[column] for column in columns) == cell]
        of = {
            who: {line["stage"]: line for line in same if line["who"] == who}
            for who in ("antiphase", "pyautoattack")
        }
        if any(len(found) < len(STAGES) for found in of.values()):
            continue
        shares = {
            who: [100 * len(found[stage]["standing"]) / found[stage]["images"] for stage in STAGES]
            for who, found in of.items()
        }
        pairs = list(zip(shares["antiphase"], shares["pyautoattack"], strict=True))
        for stage, (one, two) in zip(STAGES, pairs, strict=True):
            worst[stage].append(one - two)
        seconds = ", ".join(f"{sum(line['seconds'] for line in found.values()):.0f}" for found in of.values())
        cells = " | ".join(f"{one:.1f}, {two:.1f}" for one, two in pairs)
        print(f"| {' | '.join(map(str, cell))} | {cells} | {pairs[-1][0] - pairs[-1][1]:+.1f} | {seconds} |")
    for stage, found in worst.items():
        if found:
            print(f"after {stage}: {min(found):+.1f} to {max(found):+.1f} points, mean {np.mean(found):+.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
