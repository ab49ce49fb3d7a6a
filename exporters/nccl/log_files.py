"""Growing log files of a folder: the lines that each has gained."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# The last by name. Chosen: a file for each process of a node, of several jobs that left theirs behind.
MAX_FILES = 256

# Read of one file at a time. Chosen: a second with 1,000 collectives of 24 channels, 6 kB a line.
MAX_BYTES = 8 * 2**20
# Read of what a file holds when it is first seen: of a running job the last steps are enough.
TAIL_BYTES = 2**20


@dataclass(slots=True)
class _File:
    inode: int
    offset: int
    rest: bytes = b""


@dataclass(slots=True)
class LogFiles:
    """The files ``*.log`` in ``folder`` and in its folders, which are one for each job.

    ``errors`` are those of the files that the last reading could not read, for they are another user's.
    """

    folder: Path
    errors: list[OSError] = field(default_factory=list)
    _files: dict[Path, _File] = field(default_factory=dict)
    _started: bool = False

    def read(self) -> Iterator[tuple[Path, list[bytes]]]:
        """Yield the complete new lines of each file that has any. Raises ``OSError`` for the folder."""
        self.errors.clear()
        paths = sorted([*self.folder.glob("*.log"), *self.folder.glob("*/*.log")])[-MAX_FILES:]
        for gone in self._files.keys() - set(paths):
            del self._files[gone]
        for path in paths:
            try:
                lines = self._lines(path)
            except FileNotFoundError:
                continue  # gone since it was listed
            except OSError as error:
                self.errors.append(error)
                continue
            if lines:
                yield path, lines
        self._started = True

    def paths(self) -> set[Path]:
        """Return the files of the last reading."""
        return set(self._files)

    def _lines(self, path: Path) -> list[bytes]:
        state = path.stat()
        file = self._files.get(path)
        if file is None or file.inode != state.st_ino or file.offset > state.st_size:
            # One that appears later is read from its beginning.
            tail = 0 if self._started else max(0, state.st_size - TAIL_BYTES)
            file = self._files[path] = _File(state.st_ino, tail)
        if file.offset == state.st_size:
            return []
        with path.open("rb") as opened:
            opened.seek(file.offset)
            data = opened.read(MAX_BYTES)
        file.offset += len(data)
        *lines, file.rest = (file.rest + data).split(b"\n")
        # A line without an end is no line of such a file.
        file.rest = file.rest if len(file.rest) < MAX_BYTES else b""
        return [line for line in lines if line.strip()]
