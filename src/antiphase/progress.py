"""Progress bars and durations."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from antiphase.terminal import console, safe

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class StatusBar:
    """A progress bar with a note behind it.

    Attributes:
        show: sets how much is done, and the note.
        say: writes a line above the bar.
    """

    show: Callable[[float, str], None]
    say: Callable[[str], None]


def stderr_console() -> "Console":
    """Return the console of progress bars; in a notebook it is no terminal, so that rich draws nothing there."""
    in_notebook = console().is_jupyter
    return console(err=True, force_jupyter=False, force_terminal=False if in_notebook else None)


@contextlib.contextmanager
def status_bar(title: str, total: int, shown: bool, done: float = 0) -> Iterator[StatusBar]:
    """Show a progress bar on stderr, drawn by rich, or in a notebook by tqdm; in the end it is gone.

    Args:
        title: in front of the bar.
        total: number of units.
        shown: whether there is a bar; lines are written in any case.
        done: units that were done before.
    """
    if shown and console().is_jupyter:
        from tqdm.auto import tqdm

        with tqdm(total=total, desc=safe(title), initial=done, leave=False) as drawn:

            def show(completed: float, note: str) -> None:
                drawn.set_postfix_str(note, refresh=False)
                drawn.update(completed - drawn.n)

            yield StatusBar(show, lambda line: drawn.write(safe(line), file=sys.stderr))
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    place = stderr_console()
    # a bar leaves an empty line where it cannot be erased
    with Progress(*columns, console=place, disable=not (shown and place.is_terminal), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done, note="")  # type: ignore[arg-type]
        yield StatusBar(
            lambda completed, note: bar.update(task, completed=completed, note=note), bar.console.print
        )


@contextlib.contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a progress bar; yield a function that advances it by a number of units."""
    done = 0.0
    with status_bar(title, total, shown) as bar:

        def advance(count: float) -> None:
            nonlocal done
            done += count
            bar.show(done, "")

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
