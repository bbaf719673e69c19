"""Random noise within ε: the baseline for an attack."""

from dataclasses import dataclass
from typing import Literal, Unpack

from antiphase.arguments import Count, validated
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.engine.oracle import Classifier, Oracle
from antiphase.attacks.engine.run import run_search
from antiphase.attacks.engine.search import Images, Labels, Rows, RunOptions
from antiphase.attacks.objectives import margin
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat, per_row, project, random_point
from antiphase.streams import normal, sample_keys, uniform

NoiseKind = Literal["uniform", "gaussian", "sign"]


@validated
def noise(
    model: Classifier,
    images: Images,
    labels: Labels,
    threat: Threat = Threat(),  # noqa: B008 (frozen)
    *,
    kind: NoiseKind = "uniform",
    draws: Count = 1,
    **run: Unpack[RunOptions],
) -> AttackResult:
    """Perturb images with random noise, and report the result like that of an attack.

    With Π the projection onto the ε-ball and the bounds, and z one number per pixel:

    - ``"uniform"``: a point drawn uniformly from the ε-ball;
    - ``"gaussian"``: Π(x + ε·z), z standard normal (for l2 nearly always of length ε before clipping);
    - ``"sign"``: Π(x + ε·z), z = ±1, a random corner of the linf ball (for l2 of length ε).

    Args:
        kind: kind of noise.
        draws: draws per sample, at least 1; stops at the first that changes the prediction.
    """
    threat.require("noise", "linf", "l2")
    threat.refuse_infinite("noise", "")
    return run_search(model, images, labels, threat, _Noise(threat, kind, draws), run)


@dataclass
class _Noise:
    """Noise; a step is a draw."""

    threat: Threat
    kind: NoiseKind
    draws: int
    targets, restarts = None, 1

    def __post_init__(self) -> None:
        self.name = f"noise-{self.kind}"

    def start(self, rows: Rows) -> None:
        """Need no other state."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        clean, eps, norm, bounds = rows["clean"], rows["eps"], self.threat.norm, self.threat.bounds
        keys, size = sample_keys(rows["key"], rows["t"]), clean[0].numel()
        if self.kind == "uniform":
            x = random_point(clean, eps, norm, bounds, keys)
        else:
            z = normal(keys, size) if self.kind == "gaussian" else 1 - 2 * (uniform(keys, size) < 0.5).float()
            x = project(clean + per_row(eps, clean) * z.to(clean).view_as(clean), clean, eps, norm, bounds)
        logits = oracle.forward(rows, x)
        loss = margin(logits, rows["label"])
        better = loss > rows["loss"]
        rows.put("best", better, x)
        rows.put("loss", better, loss)
        rows["found"] = rows["found"] | (better & (logits.argmax(1) != rows["label"]))
        rows["t"] = rows["t"] + 1
        rows["done"] = rows["t"] == self.draws


NOISE = AttackSpec(noise, "Noise", black_box=True, control=None)
