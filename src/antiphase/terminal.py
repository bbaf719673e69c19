"""Text for a terminal: what is printed, progress bars, durations and budgets in words.

Names and messages of others cannot move the cursor or reverse what is read.
"""

import contextlib
import io
import itertools
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from antiphase.errors import UserError, shown

if TYPE_CHECKING:
    from rich.console import Console

# control characters but tab and newline, line separators, marks of direction, halves of characters
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

TABLE_FORMATS = {"csv": ("CSV", "csv"), "latex": ("LaTeX", "tex"), "markdown": ("Markdown", "md")}
"""What a table is written as: its label on a page, and the ending of its file."""
_LINE_SECONDS = 30.0  # between lines in place of a progress bar
_last_line: dict[str, float] = {}
_LAYOUT = "{desc} {percentage:3.0f} % |{bar}| {n:.0f}/{total:.0f} {remaining}{postfix}"


def safe(text: str) -> str:
    r"""Escape what a terminal would obey instead of showing it; bytes of a file name that are not UTF-8, too."""

    def escaped(character: re.Match[str]) -> str:
        code = ord(character[0])
        code -= 0xDC00 if 0xDC80 <= code <= 0xDCFF else 0
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escaped, text)


def check_format(name: str) -> str:
    """Return the name of a format of tables; refuse one that there is not."""
    if name in TABLE_FORMATS:
        return name
    raise UserError(f"table {shown(name)}: expected one of {', '.join(TABLE_FORMATS)}")


def say(*words: object, err: bool = False, sep: str = " ") -> None:
    """Print words to standard output or standard error, escaped by :func:`safe`."""
    print(safe(sep.join(map(str, words))), file=sys.stderr if err else sys.stdout)


_plain_warning = warnings.formatwarning


def prepare_streams() -> None:
    """Let standard output take any character, escaped if its encoding lacks it; escape Python's warnings."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda *about, **more: safe(_plain_warning(*about, **more))


def console(err: bool = False, **settings: Any) -> "Console":
    """Return a rich console that escapes text as :func:`safe` does; on no terminal, a text stays on one line."""
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Safe(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            whole = not self.is_terminal and all(isinstance(one, Text) for one in objects)
            super().print(*objects, **{"soft_wrap": whole, **how})

        def render_str(self, text: str, **how: Any) -> Any:  # before widths are measured
            return super().render_str(safe(text), **how)

        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                yield segment if segment.control else Segment(safe(segment.text), segment.style)

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    return Safe(stderr=err, **plain, **settings)


@contextlib.contextmanager
def status_bar(
    title: str, total: int, shown: bool, done: float = 0
) -> Iterator[tuple[Callable[[float, str], None], Callable[[str], None]]]:
    """Show a progress bar on stderr, on a terminal or in a notebook; elsewhere a line every 30 s.

    Yield two functions: one sets how much is done, and a note behind the bar; one writes a line above it.
    """
    from tqdm.auto import tqdm  # takes a while

    hidden = not shown or not (sys.stderr.isatty() or "ipykernel" in sys.modules)
    settings = {"initial": min(done, total), "leave": False, "disable": hidden, "bar_format": _LAYOUT}
    began = time.monotonic()
    _last_line.setdefault("time", began)
    with tqdm(desc=safe(title), total=total, **settings) as bar:

        def show(completed: float, note: str) -> None:
            bar.set_postfix_str(safe(note), refresh=False)
            bar.update(min(completed, total) - bar.n)  # tqdm knows no total beyond its end
            if shown and hidden and completed < total and time.monotonic() > _last_line["time"] + _LINE_SECONDS:
                _last_line["time"] = time.monotonic()
                spent = time.monotonic() - began
                words = [f"{title}: {completed:,.0f} of {total:,}", note, f"after {duration(spent)}"]
                if completed - done > total / 10:  # before that the guess is far off
                    words.append(f"about {duration(spent / (completed - done) * (total - completed))} left")
                say(", ".join(filter(None, words)), err=True)

        yield show, lambda line: bar.write(safe(line), file=sys.stderr)


@contextlib.contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a progress bar; yield a function that advances it by a number of units."""
    done = 0.0
    with status_bar(title, total, shown) as (show, _):

        def advance(count: float) -> None:
            nonlocal done
            done += count
            show(done, "")

        yield advance


def duration(seconds: float) -> str:
    """Format a duration, such as ``4.2 s`` or ``2 h 13 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    steps = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    large, small = next(pair for pair in itertools.pairwise(steps) if seconds >= pair[0][1])
    return f"{int(seconds // large[1])} {large[0]} {int(seconds % large[1] // small[1])} {small[0]}"


def eps_label(eps: float) -> str:
    """Format ε as a fraction of 255 or as a number, whichever is shorter."""
    return min(f"{eps * 255:g}/255", f"{eps:g}", key=len)
