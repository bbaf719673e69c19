"""Progress bars and durations."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from antiphase.terminal import safe

_LAYOUT = "{desc} {percentage:3.0f} % |{bar}| {n:.0f}/{total:.0f} {remaining}{postfix}"


@dataclass(frozen=True)
class StatusBar:
    """A progress bar with a note behind it."""

    show: Callable[[float, str], None]  # sets how much is done, and the note
    say: Callable[[str], None]  # writes a line above the bar


@contextlib.contextmanager
def status_bar(title: str, total: int, shown: bool, done: float = 0) -> Iterator[StatusBar]:
    """Show a progress bar on stderr, on a terminal or in a notebook; in the end it is gone.

    ``done`` of the ``total`` units were done before. Lines are written whether or not the bar is shown.
    """
    from tqdm.auto import tqdm  # takes a while

    hidden = not shown or not (sys.stderr.isatty() or "ipykernel" in sys.modules)
    settings = {"initial": min(done, total), "leave": False, "disable": hidden, "bar_format": _LAYOUT}
    with tqdm(desc=safe(title), total=total, **settings) as bar:

        def show(completed: float, note: str) -> None:
            bar.set_postfix_str(safe(note), refresh=False)
            bar.update(min(completed, total) - bar.n)  # tqdm knows no total beyond its end

        yield StatusBar(show, lambda line: bar.write(safe(line), file=sys.stderr))


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
    large, small = next(pair for pair in itertools.pairwise(steps) if seconds >= pair[0][1])
    return f"{int(seconds // large[1])} {large[0]} {int(seconds % large[1] // small[1])} {small[0]}"
