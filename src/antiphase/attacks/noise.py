"""Random noise within ε: the baseline for an attack."""

from dataclasses import dataclass
from typing import Unpack

from antiphase import arguments, streams
from antiphase.attacks import catalogue, objectives
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat, random_point


@arguments.validated
def noise(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    draws: arguments.Count = 1,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Draw points uniformly from the ε-ball, clipped to the bounds, and report the result like that of an attack.

    Args:
        draws: draws per sample, at least 1; stops at the first that changes the prediction.
    """
    threat.require("noise", "linf", "l2")
    return run_search(model, images, labels, threat, _Noise(threat, draws), run)


@dataclass
class _Noise:
    threat: Threat
    draws: int
    name, targets, restarts = "noise-uniform", None, 1

    def start(self, rows: Rows) -> None:
        """Need no other state."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        keys = streams.sample_keys(rows["key"], rows["t"])
        x = random_point(rows["clean"], rows["eps"], self.threat.norm, self.threat.bounds, keys)
        logits = oracle.forward(rows, x)
        rows.keep_best(x, objectives.margin(logits, rows["label"]), logits.argmax(1) != rows["label"])
        rows["t"] = rows["t"] + 1
        rows["done"] = rows["t"] == self.draws


NOISE = catalogue.AttackSpec(noise, "Noise", black_box=True, control=None)
