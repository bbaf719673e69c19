"""Progress bars and durations."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def stderr_console() -> Console:
    """Return the console of progress bars; in a notebook it is text, where rich would leave an empty output."""
    return Console(stderr=True, force_jupyter=False)


@contextlib.contextmanager
def status_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float, str], None]]:
    """Show a progress bar with a note behind it; yield a function that sets how much is done, and the note.

    The bar is drawn on stderr by rich, in a notebook by tqdm, and is gone in the end.
    """
    if shown and Console().is_jupyter:
        from tqdm.auto import tqdm  # huggingface-hub brings it

        with tqdm(total=total, desc=title, leave=False) as drawn:

            def show(completed: float, note: str) -> None:
                drawn.set_postfix_str(note, refresh=False)
                drawn.update(completed - drawn.n)

            yield show
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    console = stderr_console()
    # a bar leaves an empty line where it cannot be erased
    with Progress(
        *columns, console=console, disable=not (shown and console.is_terminal), transient=True
    ) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda completed, note: bar.update(task, completed=completed, note=note)


@contextlib.contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a progress bar; yield a function that advances it by a number of units."""
    done = 0.0
    with status_bar(title, total, shown) as show:

        def advance(count: float) -> None:
            nonlocal done
            done += count
            show(done, "")

        yield advance


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
