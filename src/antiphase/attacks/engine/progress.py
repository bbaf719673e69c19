"""Progress bar of an attack."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def bar(name: str, total: int, progress: bool | str) -> Iterator[Callable[[int, int], None]]:
    """Show the number of finished samples and the success rate so far, on stderr."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("ASR {task.fields[asr]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=not progress, transient=True) as shown:
        task = shown.add_task(progress if isinstance(progress, str) else name, total=total, asr="")

        def show(resolved: int, fallen: int) -> None:
            shown.update(task, completed=resolved, asr=f"{fallen / max(1, resolved):.3f}")

        yield show
