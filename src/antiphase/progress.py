"""How far long work has come, for people who watch."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr; what is yielded moves it on by so many."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
