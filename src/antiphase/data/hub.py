"""Download data sets from the Hugging Face hub to its cache."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from antiphase.errors import UserError, first_line

OFFLINE = (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    OSError,
    RuntimeError,
)
"""Exceptions of huggingface_hub for a missing network, an unknown name, or no permission."""


@contextmanager
def offline_at_once() -> Iterator[None]:
    """Ask the hub, or only its cache if its host has no address; by itself its client retries for 20 seconds.

    Raises:
        OSError: there is no network, and the cache lacks the file.
    """
    host, asked_for = urlsplit(constants.ENDPOINT).hostname, constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = asked_for or not _has_address(host or "")
    try:
        yield
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        if asked_for:
            raise
        raise OSError(f"{host} cannot be reached, and its cache has no copy") from None
    finally:
        constants.HF_HUB_OFFLINE = asked_for


def _has_address(host: str) -> bool:
    if urllib.request.getproxies():  # which looks it up
        return True
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def local_or_hub(name: str, path: Path) -> Path:
    """Return a local folder, or download ``USER/NAME`` from the hub and return its folder.

    Args:
        name: name of the source in error messages.
        path: local folder, or ``USER/NAME``.

    Raises:
        UserError: if there is neither.
    """
    if path.is_dir() or len(path.parts) != 2 or path.is_absolute():
        return path
    try:
        with offline_at_once():
            return Path(snapshot_download(path.as_posix(), repo_type="dataset"))
    except OFFLINE as error:
        reason = first_line(error)
        raise UserError(
            f"{name}: not a local folder, and not available from the hub ({reason}): download it with network access: "
            f"'hf download --repo-type dataset {path.as_posix()} --local-dir {path.name}'"
        ) from None
