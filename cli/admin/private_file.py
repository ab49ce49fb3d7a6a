"""Files that only their owner can read."""

import os
import tempfile
from itertools import count
from pathlib import Path


def write_private(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Put a file in place whole and durable, never readable by others; ``owner`` is a user and group id.

    A process that is killed meanwhile, and a power cut, leave the earlier file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp makes it with mode 0600: one set after creation would leave a moment to open the file.
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            if owner is not None:
                os.fchown(descriptor, *owner)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def set_aside(path: Path) -> Path:
    """Rename a file to the first free of ``NAME.1``, ``NAME.2``, … beside it; return that name."""
    numbered = (path.with_name(f"{path.name}.{n}") for n in count(1))
    aside = next(other for other in numbered if not other.exists())
    return path.rename(aside)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a rename is lost in a power cut until its folder is synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
