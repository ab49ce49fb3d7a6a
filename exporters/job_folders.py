"""Folders into which jobs write, one for each job: whose they are, and whether other machines write there."""

from collections.abc import Sequence
from pathlib import Path

# That of NCCL Inspector where no folder is set.
_PREFIX = "nccl-inspector-"

# File systems of one machine alone.
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "ramfs"}


def job_of(path: Path) -> str:
    """Return the job of a file: the name of its folder, without the prefix that Inspector gives it."""
    return path.parent.name.removeprefix(_PREFIX)


def latest(paths: Sequence[Path], count: int) -> list[Path]:
    """Return the paths by name, of more than ``count`` those that were written last."""
    if len(paths) > count:
        paths = sorted(paths, key=_written)[-count:]
    return sorted(paths)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_local(folder: Path) -> bool:
    """Return whether ``folder`` lies on a file system of this machine alone."""
    return file_system(folder) in _LOCAL


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder``, empty where that is not known."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    whole, found = f"{folder.resolve()}/", ("", "")
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        # Spaces in it are written as octal numbers: such a mount is not recognised.
        point = f"{before.split()[4].rstrip('/')}/"
        if whole.startswith(point) and len(point) >= len(found[0]):
            found = point, after.split()[0]
    return found[1]
