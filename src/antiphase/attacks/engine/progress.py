"""Progress bar of an attack."""

import contextlib
from collections.abc import Callable, Iterator

from antiphase.progress import status_bar


@contextlib.contextmanager
def bar(name: str, total: int, progress: bool | str) -> Iterator[Callable[[int, int], None]]:
    """Show the number of finished samples and the success rate so far, on stderr."""
    title = progress if isinstance(progress, str) else name
    with status_bar(title, total, bool(progress)) as drawn:
        yield lambda resolved, broken: drawn.show(resolved, f"ASR {broken / max(1, resolved):.3f}")
