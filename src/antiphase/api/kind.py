"""What the results of different commands do not share: one ``Kind`` for each, registered in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.registry import Table

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from antiphase.api.result import Result
    from antiphase.report.style.sheets import Sheet

KINDS: Table = {
    "audit": "antiphase.api.attacked:KIND",
    "attack": "antiphase.api.attacked:KIND",
    "quickstart": "antiphase.api.attacked:KIND",
    "sense": "antiphase.api.sensed:KIND",
    "certify": "antiphase.api.certified:KIND",
    "evaluate": "antiphase.api.evaluated:KIND",
    "look": "antiphase.api.looked:KIND",
    "train": "antiphase.api.trained:KIND",
    "train-clip": "antiphase.api.trained:KIND",
    "train-vlm": "antiphase.api.trained:KIND",
    "study run": "antiphase.api.studied:KIND",
}
"""The ``Kind`` of each command's results, by the name in the marker of its directory."""


@dataclass(frozen=True)
class Kind:
    """How the results of one command are read, shown and compared.

    Attributes:
        frame: name of the main table, a file of the run without its suffix.
        needs: files without which a directory holds no finished run.
        line: the result in a few words.
        sheets: tables of a directory with the files of the run.
        figure: the picture, from the same.
        differences: how a result differs from another of the same kind, with intervals.
        report: writes what the command draws into the directory.
        of: what is measured, where the command's name does not say it.
        instead: the kind of a run with this ``summary.json``, where a command makes runs of two kinds; None: this one.
    """

    frame: str
    needs: tuple[str, ...]
    line: Callable[["Result"], str]
    sheets: Callable[[Path], "list[Sheet]"]
    figure: Callable[[Path], "Figure"]
    differences: Callable[["Result", "Result"], "pl.DataFrame"]
    report: Callable[[Path], object]
    of: str = ""
    instead: "Callable[[Mapping[str, Any]], Kind | None]" = lambda summary: None


def listed(models: "list[Mapping[str, Any]]") -> str:
    """Name the models of a summary.

    >>> listed([{"name": name} for name in "abcd"])
    'a, b and 2 more'
    """
    names = [model["name"] for model in models]
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return ", ".join(names[:2] if more else names) + more
