"""Time a start: ``python benchmarks/startup.py [--rounds 5]`` prints the median seconds of new processes as JSON."""

import argparse
import json
import statistics
import subprocess
import sys
import time

from rounds import provenance

CASES = {
    "python": ["-c", "pass"],
    "antiphase --help": ["-m", "antiphase", "--help"],
    "antiphase audit --help": ["-m", "antiphase", "audit", "--help"],
    "import torch": ["-c", "import torch"],
    "import antiphase": ["-c", "import antiphase"],
    "antiphase.load_model": ["-c", "import antiphase; antiphase.load_model"],
}


def seconds(words: list[str]) -> float:
    """Return how long a new interpreter takes with these arguments."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="new processes of each kind, taken in turn")
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):  # the first round compiles and fills the disk's cache
        for name, words in CASES.items():
            taken[name].append(seconds(words))
    medians = {name: round(statistics.median(times[1:]), 2) for name, times in taken.items()}
    print(json.dumps({"rounds": rounds, "seconds": medians} | provenance()))
