"""What torchrun tells its processes by the environment, and how they notice that it was killed."""

import contextlib
import os
import socket
import threading
import time
from functools import cache

from antiphase.errors import UserError, shown

_LONGEST = 9  # digits


def rank_and_count() -> tuple[int, int]:
    """Return which of how many processes this one is; if there are several, it ends when torchrun does.

    Raises:
        UserError: the environment makes no sense, or torchrun has ended already.
    """
    count = _number("WORLD_SIZE", 1, 10**_LONGEST, usual=1)
    rank, _ = (_number(name, 0, count - 1, usual=0) for name in ("RANK", "LOCAL_RANK"))
    if count > 1:
        if missing := [
            name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
        ]:
            raise UserError(
                f"WORLD_SIZE {count} without {missing[0]}: start with torchrun, or unset WORLD_SIZE"
            )
        _number("MASTER_PORT", 1, 65_535)
        _end_with_torchrun()
    return rank, count


def _number(name: str, low: int, high: int, usual: int = 0) -> int:
    text = os.environ.get(name, str(usual))
    number = int(text) if text.isdecimal() and len(text) <= _LONGEST else -1
    if str(number) != text or not low <= number <= high:
        bounds = f"an integer from {low} to {high}" if low < high else f"{low}"
        raise UserError(
            f"{name} {shown(text)} in the environment: expected {bounds}, as torchrun sets it; correct or unset it"
        )
    return number


@cache
def _end_with_torchrun() -> None:
    """End this process as soon as torchrun has ended: it would wait for the others for days."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # started by hand, perhaps by a shell that need not stay
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        with contextlib.suppress(OSError):
            os.write(
                2, b"antiphase: torchrun has ended, and this process with it; resume with the same command\n"
            )
        os._exit(1)

    threading.Thread(target=watch, name="torchrun", daemon=True).start()
    if (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    ):  # torchrun listens before it starts any process
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            socket.create_connection((host, port), timeout=60).close()
        except OSError:
            raise UserError(f"torchrun on {host}:{port} has ended; start it again") from None
