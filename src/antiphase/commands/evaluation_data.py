"""What ``antiphase evaluate`` is asked for: tasks and data sets by their words. Imports are local, for --help."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError
from antiphase.runs.evaluation_sources import left_out, load_source

if TYPE_CHECKING:
    from antiphase.runs.evaluate import Tasks

__all__ = ["asked", "left_out", "load_source"]

PAPER = "paper"  # stands for the data sets of the DiffCLIP paper


def asked(tasks: Sequence[str], data: Sequence[str]) -> "tuple[Tasks | None, list[str]]":
    """Return the tasks with the data sets that each is for, None where none was named, and all the data sets.

    ``probe:openmoji`` is for that set, ``probe`` for all. ``paper`` among the data stands for the paper's sets of each
    task. Where no data are named they are those of the tasks, else openmoji; MMVP's own where it is the only task.

    Raises:
        UserError: an unknown task, or one for a set that is not among the data.

    >>> asked(["retrieval", "probe:digits"], ["openmoji", "digits"])
    ({'retrieval': None, 'probe': ['digits']}, ['openmoji', 'digits'])
    """
    from antiphase.data.published import IMAGENET_SETS, PROBE_SETS, RETRIEVAL_SETS
    from antiphase.evaluation.metrics import TASKS

    found: dict[Any, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(TASKS)}")
        known = found.get(task, [])
        found[task] = None if known is None or not only else [*known, only]
    if PAPER in data:
        of_paper = {
            "probe": PROBE_SETS, "few-shot": PROBE_SETS, "retrieval": RETRIEVAL_SETS, "zero-shot": IMAGENET_SETS,
            "mmvp": ("mmvp",),
        }  # fmt: skip
        others = [name for name in data if name != PAPER]
        wanted = found or dict.fromkeys(of_paper)
        found = {task: names or [*of_paper[task], *others] for task, names in wanted.items()}
        data = [name for names in found.values() for name in names or ()]
    named = [name for names in found.values() for name in names or ()]
    if not data:
        data = named or (["mmvp"] if list(found) == ["mmvp"] else ["openmoji"])
    odd = next((name for name in named if name not in data), None)
    if odd is not None:
        raise UserError(
            f"task for {odd}: it is not among the data, {', '.join(data)}; name it with --data too"
        )
    return found or None, list(dict.fromkeys(data))
