"""Data sets of the Hugging Face hub, fetched to its cache."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from antiphase.errors import UserError

OFFLINE = (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    OSError,
    RuntimeError,
)
"""What the hub's library raises where there is no network, no such name, or no leave."""


def local_or_hub(name: str, path: Path) -> Path:
    """Return a folder that is there, or one that the hub has under ``USER/NAME``.

    Args:
        name: what messages call the source.
        path: as it was given.

    Raises:
        UserError: neither.
    """
    if path.is_dir() or len(path.parts) != 2 or path.is_absolute():
        return path
    try:
        return Path(snapshot_download(path.as_posix(), repo_type="dataset"))
    except OFFLINE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: neither a folder here nor to be had from the hub ({reason}): fetch it where there is a network "
            f"with 'hf download --repo-type dataset {path.as_posix()} --local-dir {path.name}'"
        ) from None
