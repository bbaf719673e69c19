"""Text for a terminal: names and messages of others cannot move the cursor or reverse what is read."""

import io
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# control characters but tab and newline, line separators, marks of direction, halves of characters
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    r"""Escape what a terminal would obey instead of showing it; bytes of a file name that are not UTF-8, too.

    >>> print(safe("a\x1b[2Jb\u202ec\udce9"))
    a\x1b[2Jb\u202ec\xe9
    """

    def escaped(character: re.Match[str]) -> str:
        code = ord(character[0])
        code -= 0xDC00 if 0xDC80 <= code <= 0xDCFF else 0
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escaped, text)


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
    """Return a rich console, to standard error if ``err``, that escapes text as :func:`safe` does."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        def render_str(self, text: str, **how: Any) -> Any:  # before widths are measured
            return super().render_str(safe(text), **how)

        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                yield segment if segment.control else Segment(safe(segment.text), segment.style)

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    return Safe(stderr=err, **plain, **settings)
