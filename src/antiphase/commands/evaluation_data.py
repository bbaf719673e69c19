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
    from antiphase.evaluation.tasks import all_tasks, find_task
    from antiphase.registry import TASKS

    found: dict[Any, list[str] | None] = {}
    for word in tasks:
        task, _, only = word.partition(":")
        if task not in TASKS:
            raise UserError(f"task {task!r}: expected some of {', '.join(TASKS)}")
        known = found.get(task, [])
        found[task] = None if known is None or not only else [*known, only]
    if PAPER in data:
        learned_first = sorted(all_tasks(), key=lambda task: not task.learns)  # as stored rows are ordered
        of_paper = {task.name: task.paper_data for task in learned_first if task.paper_data}
        others = [name for name in data if name != PAPER]
        wanted = found or dict.fromkeys(of_paper)
        found = {task: names or [*find_task(task).paper_data, *others] for task, names in wanted.items()}
        data = [name for names in found.values() for name in names or ()]
    named = [name for names in found.values() for name in names or ()]
    if not data:
        defaults = {find_task(task).default_data for task in found}
        data = named or (list(defaults) if len(defaults) == 1 else ["openmoji"])
    odd = next((name for name in named if name not in data), None)
    if odd is not None:
        raise UserError(
            f"task for {odd}: it is not among the data, {', '.join(data)}; name it with --data too"
        )
    return found or None, list(dict.fromkeys(data))
