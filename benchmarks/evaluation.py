"""Few-shot episodes against a loop over scikit-learn's NearestCentroid, and what ranking many pairs holds in memory.

``fewshot``: the loop takes each episode in turn: it gathers its rows, centres and normalises them in numpy, fits a
NearestCentroid to the support and asks it for the queries. Both get the same features, classes as clouds of noise, and
the same episodes, and take turns within one process; the ratios are those of the fastest rounds and of the medians.

``retrieval``: time and peak resident memory of the whole process, the vectors included, for the ranks of both
directions among random unit vectors, one caption an image. It fails where the peak passes 4 GB.

    uv run python benchmarks/evaluation.py fewshot                    # 5,000 episodes of 5,000 + 5,000 rows
    uv run python benchmarks/evaluation.py fewshot --classes 10 --threads 2 --dtype float64
    uv run python benchmarks/evaluation.py retrieval                  # 100,000 × 100,000, minutes on 2 cores
    uv run python benchmarks/evaluation.py retrieval --count 20000
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
import torch
import torch.nn.functional as F
from rounds import provenance
from sklearn.neighbors import NearestCentroid
from threadpoolctl import threadpool_limits
from torch import Tensor

from antiphase.evaluation.few_shot import Episodes, draw_episodes, few_shot_accuracies
from antiphase.evaluation.retrieval import ranks
from antiphase.processes import keep_freed_memory

LIMIT = 4.0  # GB, of the process that ranks


def main() -> None:
    """Run one comparison and print one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    chosen = parser.add_subparsers(dest="what", required=True)
    few = chosen.add_parser("fewshot")
    few.add_argument("--rows", type=int, default=5000, help="of each split")
    few.add_argument("--classes", type=int, default=50)
    few.add_argument("--dim", type=int, default=768)
    few.add_argument("--episodes", type=int, default=5000)
    few.add_argument("--rounds", type=int, default=3)
    few.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    few.add_argument("--threads", type=int, default=1)
    ranking = chosen.add_parser("retrieval")
    ranking.add_argument("--count", type=int, default=100_000, help="of images, and of captions")
    ranking.add_argument("--dim", type=int, default=512)
    ranking.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        result = few_shot(options) if options.what == "fewshot" else retrieval(options)
    print(json.dumps(vars(options) | result | provenance()))
    if result.get("peak GB", 0.0) > LIMIT:
        raise SystemExit(f"peak of {result['peak GB']} GB: expected {LIMIT:g} or less")


def few_shot(options: argparse.Namespace) -> dict[str, Any]:
    """Time our accuracies and the loop's in turn, and compare them episode by episode."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(options.rows) % options.classes
    centres = 0.15 * torch.randn(options.classes, options.dim, generator=draw)
    train, test = (
        (centres[labels] + torch.randn(options.rows, options.dim, generator=draw)).to(getattr(torch, options.dtype))
        for _ in range(2)
    )
    began = time.perf_counter()
    episodes = draw_episodes(labels, labels, episodes=options.episodes)
    drawn = time.perf_counter() - began
    contestants: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: few_shot_accuracies(train, test, episodes).numpy(),
        "loop": lambda: loop(train, test, episodes),
    }
    few_shot_accuracies(train, test, draw_episodes(labels, labels, episodes=50))  # warm-up
    seconds: dict[str, list[float]] = {who: [] for who in contestants}
    accuracies: dict[str, np.ndarray] = {}
    for _ in range(options.rounds):
        for who, work in contestants.items():
            began = time.perf_counter()
            accuracies[who] = work()
            seconds[who].append(time.perf_counter() - began)
    return {
        "seconds": {who: [round(value, 3) for value in values] for who, values in seconds.items()},
        "seconds to draw": round(drawn, 3),
        "accuracy": {who: round(float(values.mean()), 6) for who, values in accuracies.items()},
        "episodes that differ": int((np.abs(accuracies["ours"] - accuracies["loop"]) > 1e-6).sum()),
        "times faster": {
            name: round(float(statistic(seconds["loop"]) / statistic(seconds["ours"])), 1)
            for name, statistic in (("min", np.min), ("median", np.median))
        },
        "scikit-learn": sklearn.__version__,
    }


def loop(train: Tensor, test: Tensor, episodes: Episodes) -> np.ndarray:
    """Return the accuracy of each episode, one after the other."""
    train_features, test_features = train.numpy(), test.numpy()
    ways, shots = episodes.support.shape[1:]
    taught = np.repeat(np.arange(ways), shots)
    truth = np.repeat(np.arange(ways), episodes.queries.shape[2])
    accuracies = []
    for support, queries in zip(episodes.support.numpy(), episodes.queries.numpy(), strict=True):
        s, q = train_features[support.ravel()], test_features[queries.ravel()]
        mean = s.mean(0)
        s, q = s - mean, q - mean
        s /= np.linalg.norm(s, axis=1, keepdims=True)
        q /= np.linalg.norm(q, axis=1, keepdims=True)
        accuracies.append((NearestCentroid().fit(s, taught).predict(q) == truth).mean())
    return np.array(accuracies)


def retrieval(options: argparse.Namespace) -> dict[str, Any]:
    """Rank images for captions and captions for images."""
    draw = torch.Generator().manual_seed(0)
    images, captions = (F.normalize(torch.randn(options.count, options.dim, generator=draw), dim=1) for _ in range(2))
    owners = torch.arange(options.count)
    before, seconds, median = peak(), {}, {}
    for name, one, other in (("images of captions", captions, images), ("captions of images", images, captions)):
        began = time.perf_counter()
        median[name] = int(ranks(one, other, owners, owners).median())
        seconds[name] = round(time.perf_counter() - began, 1)
    return {"seconds": seconds, "median rank": median, "GB before": before, "peak GB": peak()}


def peak() -> float:
    """Return the most memory that this process has held so far, in GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3)  # Linux counts in KiB


if __name__ == "__main__":
    main()
