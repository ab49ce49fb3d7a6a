"""Growing log files of a folder: the lines that each has gained."""

import errno
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from exporters.job_folders import is_local, latest

# Those written last. Chosen: a file for each process of a node, of several jobs that left theirs behind.
MAX_FILES = 256

# Read of one file at a time. Chosen: a second with 1,000 collectives of 24 channels, 6 kB a line.
MAX_BYTES = 8 * 2**20
# Read of what a file holds when it is first seen: of a running job the last steps are enough, and of its
# beginning the communicators, which are used first as it starts.
TAIL_BYTES = 2**20
HEAD_BYTES = 2**18

# Names of Inspector's files: ``<host>-pid<number>.log``.
_NAME = re.compile(r"(?P<host>.+)-pid[0-9]+\.log")


@dataclass(frozen=True, slots=True)
class NewLines:
    """What a file has gained; ``beginning`` are lines that lie far before ``lines``, of a file seen first."""

    path: Path
    lines: list[bytes]
    beginning: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _File:
    inode: int
    offset: int
    rest: bytes = b""


@dataclass(slots=True)
class LogFiles:
    """The files ``*.log`` in ``folder`` and in its folders, which are one for each job.

    Nodes may share it. So files that are named by another host than ``hosts``, the names of this one, are
    left out where its own are beside them, and wherever the file system may be one of several machines. On
    one of this machine alone the name may be that of a container.

    ``errors`` are those of the files that the last reading could not read, for they are another user's;
    ``others`` is how many it left out for they are another host's.
    """

    folder: Path
    hosts: Collection[str] = ()
    errors: list[OSError] = field(default_factory=list)
    others: int = 0
    _files: dict[Path, _File] = field(default_factory=dict)
    _started: bool = False
    _is_local: bool | None = None

    def read(self) -> Iterator[NewLines]:
        """Yield the complete new lines of each file that has any. Raises ``OSError`` for the folder."""
        self.errors.clear()
        paths = latest(self._own([*self.folder.glob("*.log"), *self.folder.glob("*/*.log")]), MAX_FILES)
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
        for path in paths:
            try:
                found = self._new(path)
            except FileNotFoundError:
                continue  # gone since it was listed
            except OSError as error:
                self.errors.append(error)
                continue
            if found.lines:
                yield found
        self._started = True

    def paths(self) -> set[Path]:
        """Return the files of the last reading."""
        return set(self._files)

    def _own(self, paths: list[Path]) -> list[Path]:
        """Return the files that processes of this host write."""
        own = {path for path in paths if _host_of(path) in {_short(host) for host in self.hosts}}
        beside = {path.parent for path in own}
        kept = [p for p in paths if p in own or (p.parent not in beside and self._local())]
        self.others = len(paths) - len(kept)
        return kept

    def _local(self) -> bool:
        if self._is_local is None:
            self._is_local = is_local(self.folder)
        return self._is_local

    def _new(self, path: Path) -> NewLines:
        state = path.stat()
        file, beginning = self._files.get(path), list[bytes]()
        if file is None or file.inode != state.st_ino or file.offset > state.st_size:
            # One that appears later is read from its beginning.
            tail = 0 if self._started else max(0, state.st_size - TAIL_BYTES)
            file = self._files[path] = _File(state.st_ino, tail)
            if tail:
                with path.open("rb") as opened:
                    beginning = opened.read(min(tail, HEAD_BYTES)).split(b"\n")[:-1]
        if file.offset == state.st_size:
            return NewLines(path, [])
        with path.open("rb") as opened:
            file.offset = _data_from(opened, file.offset)
            opened.seek(file.offset)
            data = opened.read(MAX_BYTES)
        file.offset += len(data)
        *lines, file.rest = (file.rest + data).split(b"\n")
        # A line without an end is no line of such a file.
        file.rest = file.rest if len(file.rest) < MAX_BYTES else b""
        # Where a log was truncated under its writer, it goes on after zeros.
        stripped = [line.lstrip(b"\0") for line in lines]
        return NewLines(path, [line for line in stripped if line.strip()], beginning)


def is_written_by(path: Path, pid: int) -> bool:
    """Return whether process ``pid`` has a file open, False where that cannot be seen.

    Of a process in a container the number may be another's here, which has not.
    """
    try:
        file = path.stat()
        return any(os.path.samestat(each.stat(), file) for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _host_of(path: Path) -> str | None:
    named = _NAME.fullmatch(path.name)
    return _short(named["host"]) if named else None


def _short(host: str) -> str:
    return host.partition(".")[0]


def _data_from(opened: BinaryIO, offset: int) -> int:
    """Return where data begins from ``offset`` on: a file truncated under its writer has a hole."""
    try:
        return os.lseek(opened.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: a hole to the end; others: a file system that knows no holes.
        return opened.seek(0, os.SEEK_END) if error.errno == errno.ENXIO else offset
