"""Models and data of a study in a few words, for the sentence that says what its claims were tested on."""

from collections.abc import Sequence
from typing import Any

from antiphase.data.shards import TITLES
from antiphase.data.sources import SOURCES
from antiphase.studies.cells import TrainClip, TrainVit
from antiphase.studies.cells.training import count_parameters

IN_SHORT = "in short"  # the setting of a study under which these words are


def titled(data: str) -> str:
    """Return the name of a data set in a sentence.

    >>> titled("fashion-mnist"), titled("openmoji"), titled("folder:pets")
    ('Fashion-MNIST', "OpenMoji's drawings", 'folder:pets')
    """
    return SOURCES[data].partition(", ")[0] if data in SOURCES else TITLES.get(data, data)


def vits_in_short(models: Sequence[TrainVit]) -> str:
    """Return the layers and the size of some ViTs, and their data."""
    layers = dict.fromkeys(end([model.depth for model in models]) for end in (min, max))
    blocks = f"{' to '.join(map(str, layers))} layers"
    return _in_short(
        f"ViTs and DiffViTs with {blocks} and", [(model.config(), model.data) for model in models]
    )


def clips_in_short(models: Sequence[TrainClip]) -> str:
    """Return the size of some CLIPs, and their data."""
    return _in_short("CLIPs and DiffCLIPs with", [(one.make_recipe("").model, one.data) for one in models])


def _in_short(kinds: str, models: Sequence[tuple[Any, str]]) -> str:
    """Return the smallest and the largest number of parameters, and the data sets with the facts that are known."""
    sizes, sets = sorted(count_parameters(config) for config, _ in models), []
    ends = (
        f"{end / 1e6:.1f} million" if end >= 1e6 else f"{end / 1e3:.0f} thousand"
        for end in (sizes[0], sizes[-1])
    )
    for name in dict.fromkeys(data for _, data in models):
        facts = SOURCES.get(name, "").partition(" (")[0].partition(", ")[2]
        sets.append(f"{titled(name)} ({facts})" if facts else titled(name))
    return f"{kinds} {' to '.join(dict.fromkeys(ends))} parameters on {' and '.join(sets)}"
