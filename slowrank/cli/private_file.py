"""Files that only their owner can read."""

import os
from pathlib import Path


def write_private(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Write a file anew, never readable by others in between, for ``owner`` (user and group id) if told."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A file that was there may be open to others, and a mode set after creation leaves a moment to open it.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if owner is not None:
            os.fchown(descriptor, *owner)
        file.write(text)
