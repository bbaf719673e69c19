"""Download data sets from the Hugging Face hub to its cache."""

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
"""Exceptions of huggingface_hub for a missing network, an unknown name, or no permission."""


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
        return Path(snapshot_download(path.as_posix(), repo_type="dataset"))
    except OFFLINE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: not a local folder, and not available from the hub ({reason}): download it with network access: "
            f"'hf download --repo-type dataset {path.as_posix()} --local-dir {path.name}'"
        ) from None
