"""What each defence costs: a training step with it over the natural step of the same model, paired within one run.

The models are those of the studies on a laptop: 128 wide, one layer, patches of 4, batches of 128. A ratio is the
median over the rounds, with its 95 % bootstrap interval; ``--memory`` prints the peak of resident memory in MB instead,
each defence in a process of its own. TRADES and MART are compared with a step of PGD training.

    uv run python benchmarks/defences.py
    uv run python benchmarks/defences.py --precision float32 --threads 1 --rounds 20
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from rounds import provenance, ratio, take_turns
from torch import Tensor

from antiphase.attention import outputs_only
from antiphase.models import diffvit, vit
from antiphase.precision import autocast
from antiphase.registry import DEFENCES, find
from antiphase.training.adversarial import Adversary, perturb
from antiphase.training.defences import Step, defended_loss
from antiphase.training.defences.weights import adversarial_weights, keep_average

SIZES = {"dim": 128, "depth": 1, "num_heads": 4, "patch_size": 4}
MODELS = {"diffvit": diffvit, "vit": vit}
STEPS = 4  # of a round: penalties on maps are computed at every second
NATURAL, PGD = "natural", "pgd"


def step_of(kind: str, name: str, precision: str) -> Callable[[], None]:
    """Return a function that trains a model with a defence for one round."""
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(128, 1, 28, 28, generator=draws)
    labels = torch.randint(10, (128,), generator=draws)
    model = MODELS[kind](28, **SIZES).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    adversary, keys = Adversary(eps=2 / 255), torch.arange(128)
    if name == "ema":
        keep_average(optimizer, 0.999)
    terms = {name: 1.0} if name not in (NATURAL, PGD, "ema", "awp") else {}
    attacked = name == PGD or (name in DEFENCES and find(DEFENCES, name, "defence").needs == "adversary")

    def logits(x: Tensor) -> Tensor:
        with autocast(torch.device("cpu"), precision), outputs_only():  # pyright: ignore[reportArgumentType]
            return model(x).float()

    def loss(number: int) -> None:
        x = perturb(logits, images, labels, adversary, adversary.eps, keys) if attacked else images
        defended_loss(Step(model, x, images, labels, logits, number=number), terms).backward()

    def run() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            loss(number)
            if name == "awp":
                with adversarial_weights(model, 0.005):
                    loss(number)
            optimizer.step()

    return run


def main() -> None:
    """Print a JSON line for each model and defence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", default="bf16", choices=("float32", "bf16"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of times")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # the child of --memory
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only:
        step_of(*options.only, options.precision)()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    for kind in MODELS:
        two_maps = [name for name in DEFENCES if find(DEFENCES, name, "defence").needs == "two maps"]
        names = [NATURAL, PGD, *(name for name in DEFENCES if kind == "diffvit" or name not in two_maps)]
        if options.memory:
            for name in names:
                command = [sys.executable, __file__, "--precision", options.precision, "--only", kind, name]
                peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                print(json.dumps({"model": kind, "defence": name, "peak_mb": int(peak)}))
            continue
        seconds = take_turns({name: step_of(kind, name, options.precision) for name in names}, options.rounds)
        for name in names[1:]:
            attacked = name in DEFENCES and find(DEFENCES, name, "defence").needs == "adversary"
            over = PGD if attacked else NATURAL
            print(json.dumps({"model": kind, "defence": name, "over": over, **ratio(seconds[name], seconds[over])}))
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
