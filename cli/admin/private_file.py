"""Files that only their owner can read."""

import os
import tempfile
from itertools import count
from pathlib import Path


def write_private(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Write a file atomically and durably, readable by its owner only; ``owner`` is a user and group id.

    After a kill or a power cut the file has either its old or its new content.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp creates it with mode 0600: until a mode is set after creation others could open the file.
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
    """Make renames in ``folder`` durable: a power cut undoes them until the folder is synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
