"""Cost of the alignment estimators, as ratios to passes of the same model that are timed in turn with them.

DiffViT-B/16 at 224×224 with random weights. Each measurement has a process of its own, so that their peaks of
memory are told apart; it takes the peak first, and then times its rounds in turn with the model's own passes: the
ratio is that of the fastest rounds. A backward pass is one with respect to the images.

    uv run python benchmarks/sensitivity.py                   # everything, about 15 minutes on 2 cores
    uv run python benchmarks/sensitivity.py --what passes,tokens --depth 2
    uv run python benchmarks/sensitivity.py --model specimen:diffvit-0 --data specimen-fashion-mnist --threads 1

``spread`` gives the standard error of cosθ at the pixels, root mean square over layers and heads, and what a
standard error of .01 costs by either estimator, where ``directions`` and ``cotangents`` were measured with it.
"""

import argparse
import json
import math
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from rounds import provenance
from scipy import stats
from torch import Tensor, nn

import antiphase as ap
from antiphase.models import diffvit
from antiphase.processes import keep_freed_memory
from antiphase.sensitivity import Gram, align
from antiphase.sensitivity.alignment import (
    Subtracted,
    _layer_gram,
    _normal,
    direction_grams,
    random_directions,
    token_grams,
)
from antiphase.sensitivity.layers import Layer, gradients, leaf
from antiphase.sensitivity.maps import attention_layers
from antiphase.streams import key, sample_keys

Options = argparse.Namespace
Line = dict[str, Any]
STANDARD_ERROR = 0.01


def main() -> None:
    """Run the chosen measurements and print one JSON line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", default=",".join(MEASUREMENTS), help="separated by commas")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--probes", type=int, default=8, help="K of the cotangents at the tokens")
    parser.add_argument("--directions", type=int, default=2, help="timed together at the pixels")
    parser.add_argument(
        "--spread-probes", type=int, default=4, help="cotangents for the standard error; 8 directions to each"
    )
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--model", help="another model than DiffViT-B/16, such as specimen:diffvit-0")
    parser.add_argument("--data", help="images of a data set, not random ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    lines: dict[str, Line] = {}
    made_with = provenance({options.model: ap.load_model(options.model)} if options.model else None)
    for name in options.what.split(","):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            lines[name] = alone.submit(MEASUREMENTS[name], options, lines).result()
        print(json.dumps({"what": name} | lines[name] | made_with, ensure_ascii=False), flush=True)


def passes(options: Options, lines: dict[str, Line]) -> Line:
    """Time the model's own passes."""
    model, images = subject(options)
    seconds = in_turn(options, model, images, {})
    both = seconds["forward"] + seconds["backward"]
    return {
        "model": options.model or f"DiffViT-B/16, depth {options.depth}",
        "batch": options.batch,
        "threads": options.threads,
        "forward s": round(seconds["forward"], 3),
        "forward + backward s": round(both, 3),
        "backward s": round(seconds["backward"], 3),
        "peak GB": peak(),
    }


def tokens(options: Options, lines: dict[str, Line]) -> Line:
    """Time K cotangents at the tokens of every layer and head: 2K products Jᵀv a layer, against 2K backward passes."""
    model, images = subject(options)
    probes = keys(options.batch, options.probes)
    work = {"tokens": lambda: exhaust(token_grams(model, images, probes, exact=False))}
    work["tokens"]()
    memory = peak()
    seconds = in_turn(options, model, images, work)
    passes = seconds["tokens"] / seconds["backward"]
    return {
        "probes": options.probes,
        "seconds": round(seconds["tokens"], 2),
        "backward passes": round(passes, 2),
        f"ratio to {2 * options.probes} backward passes": round(passes / (2 * options.probes), 3),
        "asked": "at most 1.3",
        "forward passes": round(seconds["tokens"] / seconds["forward"], 2),
        "peak GB": memory,
        "asked GB": "below 6",
    }


def exact(options: Options, lines: dict[str, Line]) -> Line:
    """Time the closed form at the tokens of every layer and head."""
    model, images = subject(options)
    probes = keys(options.batch, 2)
    work = {"exact": lambda: exhaust(token_grams(model, images, probes, exact=True))}
    work["exact"]()
    memory = peak()
    seconds = in_turn(options, model, images, work)
    return {
        "seconds": round(seconds["exact"], 2),
        "forward passes": round(seconds["exact"] / seconds["forward"], 2),
        "peak GB": memory,
    }


def directions(options: Options, lines: dict[str, Line]) -> Line:
    """Time one direction of the pixels for every layer and head."""
    model, images = subject(options)
    drawn = keys(options.batch, options.directions)
    work = {"directions": lambda: exhaust(direction_grams(model, images, random_directions(images, drawn)))}
    work["directions"]()
    memory = peak()
    seconds = in_turn(options, model, images, work)
    per_direction = seconds["directions"] / options.directions
    return {
        "seconds a direction": round(per_direction, 2),
        "forward passes a direction": round(per_direction / seconds["forward"], 2),
        "peak GB": memory,
        "asked GB": "below 6",
    }


def cotangent_grams(model: nn.Module, images: Tensor, keys: Tensor) -> Iterator[tuple[Layer, Gram]]:
    """Yield each layer with ⟨J1ᵀv, J1ᵀv⟩, ⟨J2ᵀv, J2ᵀv⟩ and ⟨J1ᵀv, J2ᵀv⟩ at the pixels for random v.

    Their shape is (batch, heads, probes). Each layer, head, branch and probe costs a pass back through earlier layers.
    """
    images = leaf(images)

    def pulled(branch: Subtracted, layer: Layer, v: Tensor) -> Tensor:
        heads = branch.vjp(v).unbind(1)
        return torch.stack([torch.autograd.grad(layer.tokens, images, one, retain_graph=True)[0] for one in heads], 1)

    for layer in attention_layers(model, images, graph=True):
        with gradients(enabled=False):
            probes = _normal(layer.positive.attention, keys)
            gram = Gram.stack([_layer_gram(layer, partial(pulled, layer=layer, v=v)) for v in probes])
        yield layer, gram


def cotangents(options: Options, lines: dict[str, Line]) -> Line:
    """Time one cotangent at the pixels, whole: 2 backward passes below each layer for each of its heads."""
    model, images = subject(options)
    drawn = keys(options.batch, 1)
    work = {"cotangents": lambda: exhaust(cotangent_grams(model, images, drawn))}
    first = timed(work["cotangents"])
    memory = peak()
    long = first > 20.0
    seconds = {"cotangents": first} | in_turn(options, model, images, {} if long else work)
    whole = seconds["cotangents"]
    return {
        "seconds a probe": round(whole, 2),
        "forward passes a probe": round(whole / seconds["forward"], 1),
        "backward passes a probe": round(whole / seconds["backward"], 1),
        "how": f"every layer and head, {'once' if long else f'{options.rounds} rounds'}",
        "peak GB": memory,
        "asked GB": "below 6",
    }


def spread(options: Options, lines: dict[str, Line]) -> Line:
    """Estimate the standard error of cosθ at the pixels of one image, and what one of .01 costs.

    It falls as 1/√K; a sample's does not depend on its batch.
    """
    model, images = subject(options)
    images, count = images[:1], options.spread_probes
    drawn = keys(1, 8 * count, seed=1)
    estimators: dict[str, tuple[int, Callable[[], Iterable[tuple[Any, Gram]]]]] = {
        "directions": (8 * count, lambda: direction_grams(model, images, random_directions(images, drawn))),
        "cotangents": (count, lambda: cotangent_grams(model, images, drawn[:, :count])),
    }
    line: Line = {}
    for name, (probes, estimate) in estimators.items():
        errors = torch.cat([standard_errors(gram) for _, gram in estimate()])
        error = float(errors.square().mean().sqrt())
        needed = probes * (error / STANDARD_ERROR) ** 2  # below 2 there is no interval to tell it by
        line[name] = {
            "probes": probes,
            "standard error": round(error, 5),
            "largest": round(float(errors.max()), 5),
            f"probes for {STANDARD_ERROR}": round(needed, 2),
        }
        unit_cost = next((value for label, value in lines.get(name, {}).items() if "forward passes a" in label), None)
        if unit_cost is not None:
            line[name][f"forward passes for {STANDARD_ERROR}"] = round(needed * unit_cost, 2)
    costs = {name: entry[cost] for name, entry in line.items() for cost in entry if cost.startswith("forward passes")}
    return line | ({"cheaper": min(costs, key=lambda name: costs[name])} if len(costs) == 2 else {})


def standard_errors(gram: Gram) -> Tensor:
    """Return that of cosθ for each head, from the interval over the probes that the package reports."""
    alignment = align(gram, probes=True)
    return (alignment.high - alignment.low).flatten() / float(2 * stats.t.ppf(0.975, alignment.probes - 1))


def subject(options: Options) -> tuple[nn.Module, Tensor]:
    """Return the model and its images."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    model: Any = ap.load_model(options.model) if options.model else diffvit(224, depth=options.depth)
    model.eval().requires_grad_(False)
    if options.data:
        return model, ap.data.load_data(options.data, limit=options.batch, seed=0).images(range(options.batch))
    shape = (options.batch, *model.image_shape)
    return model, torch.rand(shape, generator=torch.Generator().manual_seed(0))


def keys(batch: int, probes: int, seed: int = 0) -> Tensor:
    """Return a random stream for each sample and probe."""
    return sample_keys(key(seed, "benchmark"), torch.arange(batch * probes)).view(batch, probes)


def in_turn(
    options: Options, model: nn.Module, images: Tensor, works: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """Return the fastest of some rounds of each work, and of the model's forward and backward pass beside it."""
    seconds: dict[str, float] = {}
    x = images.clone().requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            model(images)

    for _ in range(options.rounds):
        measured = {name: timed(work) for name, work in works.items()}
        measured["forward"] = min(timed(forward), timed(forward))
        logits = model(x).sum()
        measured["backward"] = timed(lambda y=logits: torch.autograd.grad(y, x))
        seconds = {name: min(value, seconds.get(name, math.inf)) for name, value in measured.items()}
    return seconds


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def exhaust(results: Iterable[object]) -> None:
    """Take every result and keep none."""
    for _ in results:
        pass


def peak() -> float:
    """Return the greatest resident memory of this process so far, in GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


MEASUREMENTS: dict[str, Callable[[Options, dict[str, Line]], Line]] = {
    "passes": passes,
    "tokens": tokens,
    "exact": exact,
    "directions": directions,
    "cotangents": cotangents,
    "spread": spread,
}

if __name__ == "__main__":
    main()
