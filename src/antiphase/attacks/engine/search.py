"""What an attack is to the engine: rows of state, a search that advances them, and the options of every attack."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, Self, TypedDict

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from antiphase.arguments import Count, Seed, Size
from antiphase.attacks.engine.oracle import Oracle
from antiphase.attacks.threat import Flags, Numbers, Threat, per_row
from antiphase.precision import SearchPrecision

Images = Float[Tensor, "samples *shape"]
Labels = Integer[Tensor, " samples"] | None
Finished = Callable[[Tensor, dict[str, Tensor]], None]


class Rows(dict[str, Tensor]):
    """The state of a batch under attack: named tensors with one row per search."""

    def __len__(self) -> int:
        return next(iter(self.values())).shape[0] if super().__len__() else 0

    def take(self, index: Tensor | slice) -> Self:
        """Return the rows that a boolean mask, a list of positions or a slice selects."""
        return type(self)({name: tensor[index] for name, tensor in self.items()})

    @classmethod
    def stack(cls, parts: Sequence[Self]) -> Self:
        """Concatenate parts, which have the same names unless they are empty."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else cls()
        return cls({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def put(self, mask: Tensor, **values: Tensor) -> None:
        """Replace the rows of tensors selected by ``mask`` with those of ``values``."""
        for name, new in values.items():
            self[name] = torch.where(per_row(mask, self[name]), new, self[name])

    def fill(self, value: float, *names: str) -> None:
        """Add tensors of one number per row."""
        for name in names:
            self[name] = torch.full_like(self["eps"], value)

    def keep_best(self, x: Tensor, loss: Numbers, adversarial: Flags) -> None:
        """Make ``x`` the best image where it is the first adversarial one, or no worse and of higher loss."""
        better = (adversarial & ~self["found"]) | ((loss > self["loss"]) & (adversarial >= self["found"]))
        self.put(better, best=x, loss=loss)
        self["found"] = self["found"] | adversarial

    def keep_nearest(self, x: Tensor, adversarial: Flags, threat: Threat) -> tuple[Numbers, Flags]:
        """Make ``x`` the best image where it is the nearest adversarial one; return its distance and where it is."""
        distance = threat.distance(x, self["clean"])
        nearer = adversarial & (-distance > self["loss"])
        self.put(nearer, best=x, loss=-distance)
        self["found"] = self["found"] | (nearer & (distance <= self["eps"] + threat.slack(x)))
        return distance, nearer


class Search(Protocol):
    """The search of an attack, for many rows at a time; rows must be independent of each other.

    The engine provides rows with ``clean`` (the image), ``label`` (the attacked class), ``eps``, ``item`` (number of
    the search of this sample: all targets of the first restart, then of the second, …, then the repeats in float32),
    ``restart``, ``target`` (a class, in the order of the clean logits), ``key`` (the random stream of seed, sample,
    attack and item), ``forwards`` and ``backwards`` (passes so far), and with the state that every search has: ``t``
    (steps so far, 0), ``best`` (the clean image), its ``loss`` (−∞), ``found`` and ``done`` (False).
    """

    name: Any  # part of the key of its random streams
    targets: Any  # number of target classes, "malt" for those that MALT chooses; None or 0 if untargeted
    restarts: Any  # per sample (and target class)

    def start(self, rows: Rows) -> None:
        """Add the rest of the state; ``start_loss`` if a loss that never rises above it is a bad sign."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Advance every row by one step.

        Set ``found`` if ``best`` is adversarial and ``done`` if the search has ended. A search in low precision may set
        ``exact`` to continue in float32.
        """


class RunOptions(TypedDict, total=False):
    """Set how an attack is executed.

    Attributes:
        seed: random seed, from 0 to 2⁶³ − 1.
        ids: one unique int64 per sample, the key of its random stream; positions by default.
        context: one row per sample that the model takes as its second argument, such as the question asked about each
            image; None: it takes images alone.
        goal: attack towards this class, or one for each sample: success is the prediction of the goal. Losses and
            boundaries are then those of two logits, the largest of the other classes and the goal's. Labels must be
            None; not for ensembles and sweeps.
        batch_size: searches run at once; does not affect results. The model sees a multiple of 16 images,
            or 1, 2, 4 or 8 where it was seen to give bitwise the same for them.
        early_stop: stop a sample at its first confirmed adversarial example. Otherwise all steps are taken and the best
            example is kept.
        precision: precision of the search, ``"float32"``, ``"bf16"`` (autocast) or ``"auto"``, the faster of the two
            as measured once for each architecture and machine. Successes are confirmed in float32 in all of them, and
            bf16 searches that fail within rounding error are repeated in float32. Carlini-Wagner and Square search in
            float32 in any case; FAB with ``"auto"``, and with ``"bf16"`` in its last steps.
        compile: run the search on the ``torch.compile``-d model; successes are confirmed on the original.
        passes: for randomised models, forward passes whose mean logits are attacked; ``eot`` of an attack sets it (A.
            Athalye, N. Carlini, D. Wagner, *Obfuscated Gradients Give a False Sense of Security*, ICML 2018, Section
            4.2).
        progress: show a progress bar on stderr, with this text if one is given.
        on_finished: called with the positions of newly finished samples and the result arrays so far.
    """

    seed: Seed
    ids: Int64[Tensor, " samples"] | None
    context: Tensor | None
    goal: int | Int64[Tensor, " samples"] | None
    batch_size: Size | None
    early_stop: bool
    precision: SearchPrecision
    compile: bool
    passes: Count
    progress: bool | str
    on_finished: Finished | None


_DEFAULTS = RunOptions(seed=0, ids=None, context=None, goal=None, batch_size=None, early_stop=True, precision="float32")
_DEFAULTS |= RunOptions(compile=False, passes=1, progress=False, on_finished=None)


def expected(run: RunOptions, eot: int) -> RunOptions:
    """Return the options of an attack on the mean logits of ``eot`` passes."""
    return {**run, "passes": eot} if eot > 1 else run


def read_options(options: Mapping[str, Any], attack: str) -> Any:
    """Return an object with all options of an attack as attributes; refuse what is none."""
    if odd := [name for name in options if name not in _DEFAULTS]:
        fix = f"expected a parameter of the attack or one of {', '.join(_DEFAULTS)}"
        raise TypeError(f"attack {attack}: unexpected keyword argument {odd[0]!r}; {fix}")
    return SimpleNamespace(**{**_DEFAULTS, **options})
