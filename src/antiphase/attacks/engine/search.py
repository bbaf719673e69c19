"""What an attack is to the engine: a state for each row, and a step that moves all rows at once."""

from typing import Protocol

from antiphase.attacks.engine.oracle import Oracle
from antiphase.attacks.engine.rows import Rows


class Search(Protocol):
    """One attack's search for an adversarial example, many rows at a time.

    The engine hands over rows with ``clean`` (the image), ``label`` (the attacked class), ``eps`` (the
    budget), ``item`` (which try of the sample: every target of the first restart, then the second, and behind all
    of them those that are tried once more in float32),
    ``restart``, ``target`` (the class that ranked next after the label on the clean image, then the one
    after it, …), ``key`` (the random stream of seed, sample, attack and item), ``forwards`` and
    ``backwards`` (passes so far).

    Attributes:
        name: of the attack; part of the key of its random streams.
        targets: how many other classes are tried one by one; 0 for an untargeted attack. A model with
            fewer classes has fewer targets.
        restarts: how many tries a sample has (with each target).
        decides_in_float32: whether a search in low precision leaves it to float32 what it keeps, so that what
            failed by a hair is not tried again.
    """

    name: str
    targets: int
    restarts: int
    decides_in_float32: bool

    def start(self, rows: Rows) -> None:
        """Add the search's own state: at least ``best`` (image), ``loss`` (of it), ``found`` and ``done``."""

    def step(self, rows: Rows, oracle: Oracle) -> None:
        """Ask the model once and move every row.

        Sets ``found`` where ``best`` is adversarial, and ``done`` where the budget is spent. A search in low
        precision may set ``exact`` where it wants to go on in float32. Rows must not look at each other.
        """
