"""Models and data of a study in a few words, for the sentence that says what its claims were tested on."""

from collections.abc import Iterable, Sequence

from antiphase.data.shards import TITLES
from antiphase.data.sources import SOURCES
from antiphase.studies.cells import TrainClip, TrainVit
from antiphase.studies.cells.training import OTHER_START, count_parameters

IN_SHORT = "in short"  # the setting of a study under which these words are


def titled(data: str) -> str:
    """Return the name of a data set in a sentence, with its models' initial weights if they are not uniform."""
    name, start, _ = data.partition(OTHER_START)
    return (SOURCES[name].partition(", ")[0] if name in SOURCES else TITLES.get(name, name)) + start


def vits_in_short(models: Sequence[TrainVit]) -> str:
    """Return the layers and the size of some ViTs, and their data."""
    layers = sorted({model.depth for model in models})
    sizes = [count_parameters(model.config()) for model in models]  # pyright: ignore[reportArgumentType]
    blocks = f"{layers[0]} to {layers[-1]} layers" if len(layers) > 1 else f"{layers[0]} layer{'s' * (layers[0] > 1)}"
    return f"ViTs and DiffViTs with {blocks} and {_range(sizes)} parameters on {_sets(model.data for model in models)}"


def clips_in_short(models: Sequence[TrainClip]) -> str:
    """Return the size of some CLIPs, and their data."""
    sizes = [count_parameters(model.make_recipe("").model) for model in models]  # pyright: ignore[reportArgumentType]
    return f"CLIPs and DiffCLIPs with {_range(sizes)} parameters on {_sets(model.data for model in models)}"


def _range(sizes: Sequence[int]) -> str:
    ends = (min(sizes), max(sizes))
    words = [f"{end / 1e6:.1f} million" if end >= 1e6 else f"{end / 1e3:.0f} thousand" for end in ends]
    return " to ".join(dict.fromkeys(words))


def _sets(names: Iterable[str]) -> str:
    """Return data sets with their facts, where they are known."""
    titles = []
    for name in dict.fromkeys(names):
        facts = SOURCES.get(name, "").partition(" (")[0].partition(", ")[2]
        titles.append(f"{titled(name)} ({facts})" if facts else titled(name))
    return " and ".join(titles)
