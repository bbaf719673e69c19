"""Progress bars and durations."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr; yield a function that advances it by a number of units."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(4.24), duration(95), duration(7984), duration(400_000)
    ('4.2 s', '1 min 35 s', '2 h 13 min', '4 d 15 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    steps = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    large, small = next((steps[at], steps[at + 1]) for at in range(len(steps) - 1) if seconds >= steps[at][1])
    return f"{int(seconds // large[1])} {large[0]} {int(seconds % large[1] // small[1])} {small[0]}"
