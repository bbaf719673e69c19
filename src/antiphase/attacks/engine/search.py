"""The interface of an attack to the engine: a state per row, and a step that advances all rows."""

from typing import Protocol

from antiphase.attacks.engine.oracle import Oracle
from antiphase.attacks.engine.rows import Rows


class Search(Protocol):
    """The search of an attack, for many rows at a time.

    The engine provides rows with ``clean`` (the image), ``label`` (the attacked class), ``eps``, ``item`` (number of
    the search of this sample: all targets of the first restart, then of the second, …, then the repeats in float32),
    ``restart``, ``target`` (a class, in the order of the clean logits), ``key`` (the random stream of seed, sample,
    attack and item), ``forwards`` and ``backwards`` (passes so far).

    Attributes:
        name: name of the attack; part of the key of its random streams.
        targets: number of target classes, at most the number of other classes; 0 if untargeted.
        restarts: random restarts per sample (and target class).
        decides_in_float32: whether a search in low precision decides in float32 what it keeps, so that near failures
            are not repeated.
    """

    name: str
    targets: int
    restarts: int
    decides_in_float32: bool

    def start(self, rows: Rows) -> None:
        """Add the state of the search: at least ``best`` (an image), its ``loss``, ``found`` and ``done``."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Advance every row by one step.

        Set ``found`` if ``best`` is adversarial and ``done`` if the search has ended. A search in low precision may set
        ``exact`` to continue in float32. Rows must be independent of each other.
        """
