"""The spool on disk: one sqlite file in WAL mode, every put synchronous, bounded in pages.

An hour without a broker takes 5 MB at one record a second; a power failure loses no record that was put. One
process holds the file at a time.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporters.spool import Dropped, Message, StoreFailed, grouped

# SQLite's default.
_PAGE_BYTES = 4096
# Damaged files kept at most, each as large as the spool may be, so that a failing disk does not fill up with
# them. Chosen.
_KEPT = 4
_FULL_REASON = "the spool on disk was full"
# AUTOINCREMENT: without it an emptied table counts from 1 again, and a reader with a higher id would skip
# the new records.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS spool (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  topic TEXT NOT NULL, key BLOB NOT NULL, payload BLOB NOT NULL, boot_id TEXT NOT NULL, seq INTEGER NOT NULL)
"""


class DiskStore:
    """Messages in ``folder``/spool.sqlite, at most ``max_bytes``. Raises ``StoreFailed`` when it cannot open.

    Not safe for two threads at once; ``Spool`` holds the lock.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._path = folder / "spool.sqlite"
        self._max_pages = max(64, max_bytes // _PAGE_BYTES)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = self._open_or_set_aside()
            (self._records,) = self._connection.execute("SELECT count(*) FROM spool").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise StoreFailed(f"cannot open the spool {self._path}: {error}") from error

    def put(self, messages: Sequence[Message]) -> list[Dropped]:
        dropped: list[Dropped] = []
        while True:
            try:
                with self._transaction():
                    self._connection.executemany(
                        "INSERT INTO spool (topic, key, payload, boot_id, seq) VALUES (?, ?, ?, ?, ?)",
                        [(m.topic, m.key, m.payload, m.boot_id, m.seq) for m in messages],
                    )
                self._records += len(messages)
                return dropped
            except sqlite3.Error as error:
                # Either the own limit is reached, and the oldest records are dropped, or the file system is
                # full, and dropping them fails too.
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise StoreFailed(f"cannot write the spool {self._path}: {error}") from error
            freed = self._drop_oldest(2 * len(messages))
            if not freed:
                raise StoreFailed(f"no space for the spool {self._path}")
            dropped += freed

    def read(self, after: int, limit: int) -> list[tuple[int, Message]]:
        query = "SELECT id, topic, key, payload, boot_id, seq FROM spool WHERE id > ? ORDER BY id LIMIT ?"
        with self._failing("read"):
            rows = self._connection.execute(query, (after, limit)).fetchall()
        return [(row[0], Message(*row[1:])) for row in rows]

    def delete(self, ids: Sequence[int]) -> None:
        with self._failing("clear"), self._transaction():
            gone = self._connection.executemany("DELETE FROM spool WHERE id = ?", [(i,) for i in ids])
            self._records -= gone.rowcount
        # Only when empty: otherwise pages in use would have to be moved to free the others.
        if self._records == 0:
            with self._failing("shrink"):
                # With execute() this pragma frees one page only: it frees one each time it is stepped.
                self._connection.executescript("PRAGMA incremental_vacuum")

    def size(self) -> tuple[int, int]:
        with self._failing("measure"):
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        return (pages - free) * _PAGE_BYTES, self._records

    def free(self) -> int:
        """Return the bytes that its own limit and the file system leave; unused pages of its own count."""
        held, _ = self.size()
        with self._failing("measure"):
            (unused,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            disk = os.statvfs(self._path.parent)
        on_disk = int(unused) * _PAGE_BYTES + disk.f_bavail * disk.f_frsize
        return max(0, min(self._max_pages * _PAGE_BYTES - held, on_disk))

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _open_or_set_aside(self) -> sqlite3.Connection:
        try:
            return self._open()
        # Locked, not permitted, no space: the file itself is intact.
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # Damaged beyond reading: keep it for inspection and start an empty file.
            self._set_aside()
            return self._open()

    def _set_aside(self) -> None:
        """Rename the file to ``spool.damaged``, or ``spool.damaged.N`` where earlier ones are kept."""
        first = self._path.with_suffix(".damaged")
        numbered = (first.with_name(f"{first.name}.{n}") for n in range(1, _KEPT))
        aside = next((path for path in (first, *numbered) if not path.exists()), None)
        if aside is None:
            raise OSError(errno.EEXIST, f"{_KEPT} damaged spools are kept already; move {first}* away")
        # With its write-ahead log, which may hold records that are not in the file yet, and which sqlite
        # would otherwise replay into the new file.
        for suffix in ("-wal", "-shm", ""):
            file = self._path.with_name(self._path.name + suffix)
            if file.exists():
                file.rename(aside.with_name(aside.name + suffix))

    def _open(self) -> sqlite3.Connection:
        # Transactions are begun explicitly below; both threads call with the lock of Spool held.
        connection = sqlite3.connect(self._path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            # The order matters: the first table fixes page size and vacuum mode, WAL fixes the page size.
            # Exclusive before WAL also keeps the index of the log in memory and excludes a second process.
            for pragma in (
                f"page_size={_PAGE_BYTES}",
                "auto_vacuum=INCREMENTAL",
                "locking_mode=EXCLUSIVE",
                "journal_mode=WAL",
                "synchronous=FULL",
                # The log is not bounded by max_page_count and keeps its greatest length; 4 MB is sqlite's
                # default of 1,000 pages between checkpoints.
                "journal_size_limit=4194304",
                f"max_page_count={self._max_pages}",
            ):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            connection.execute(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _drop_oldest(self, at_least: int) -> list[Dropped]:
        # A hundredth at a time: otherwise a full spool would delete, and wait for the disk, in every tick.
        count = max(at_least, self._records // 100)
        oldest = self.read(0, count)
        if oldest:
            self.delete([i for i, _ in oldest])
        return grouped([message for _, message in oldest], _FULL_REASON)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _failing(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StoreFailed(f"cannot {verb} the spool {self._path}: {error}") from error
