"""Applies ``migrations/NNNN_name.sql`` once each, in order, by one process at a time.

The files and the table ``schema_migrations`` are dbmate's: each goes on where the other stopped. A file
whose first line is ``-- no-transaction`` runs outside a transaction.
"""

import hashlib
import math
from dataclasses import dataclass
from importlib.resources import files

import psycopg

from store.locks import lock_key

_LOCK = lock_key("migrations")


class MigrationError(RuntimeError):
    """An applied migration differs from the file; the text names it and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file; ``name`` is its own without ``.sql``."""

    name: str
    sql: bytes

    @property
    def version(self) -> str:
        """Number at the start of the name."""
        return self.name.partition("_")[0]

    @property
    def sha256(self) -> str:
        """Checksum of the file."""
        # Of the whole file with comments: an applied file must not change at all.
        return hashlib.sha256(self.sql).hexdigest()

    @property
    def transactional(self) -> bool:
        """Whether it runs inside a transaction."""
        return not self.sql.startswith(b"-- no-transaction")


def bundled() -> list[Migration]:
    """Return the migrations shipped with slowrank, in order."""
    found = files("migrations").iterdir()
    named = sorted(
        (f for f in found if f.name[:4].isdigit() and f.name.endswith(".sql")), key=lambda f: f.name
    )
    return [Migration(f.name.removesuffix(".sql"), f.read_bytes()) for f in named]


def migrate(dsn: str, migrations: list[Migration] | None = None) -> list[str]:
    """Apply what is missing and return the names of the applied ones; a second call returns none.

    Raises ``MigrationError`` when an applied file was changed since, and ``psycopg.Error`` from the server.
    """
    wanted = bundled() if migrations is None else migrations
    with psycopg.connect(dsn, autocommit=True, application_name="slowrank migrate") as conn:
        # A session lock: it spans several transactions and ends with the connection.
        conn.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        conn.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations (version varchar PRIMARY KEY, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )
        # dbmate's table has no checksums: migrations it applied are not compared.
        conn.execute("ALTER TABLE schema_migrations ADD COLUMN IF NOT EXISTS sha256 text")
        rows = conn.execute("SELECT version, sha256 FROM schema_migrations").fetchall()
        applied: dict[str, str | None] = dict(rows)
        _refuse_changes(wanted, applied)
        missing = [m for m in wanted if m.version not in applied]
        for migration in missing:
            _apply(conn, migration)
        return [m.name for m in missing]


def missing(dsn: str, *, connect_timeout: float) -> list[str]:
    """Return the names of the migrations that a database lacks, with read rights only.

    Raises ``psycopg.Error`` from the server.
    """
    with psycopg.connect(dsn, autocommit=True, connect_timeout=math.ceil(connect_timeout)) as conn:
        if conn.execute("SELECT to_regclass('schema_migrations') IS NULL").fetchone() == (True,):
            return [m.name for m in bundled()]
        applied = {version for (version,) in conn.execute("SELECT version FROM schema_migrations")}
    return [m.name for m in bundled() if m.version not in applied]


def _refuse_changes(wanted: list[Migration], applied: dict[str, str | None]) -> None:
    changed = [m.name for m in wanted if applied.get(m.version) not in (None, m.sha256)]
    if changed:
        raise MigrationError(
            f"already applied and changed since: {', '.join(changed)}. Restore the file and put the change "
            "into a new migration; an applied one is never run again."
        )


def _apply(conn: psycopg.Connection, migration: Migration) -> None:
    record = "INSERT INTO schema_migrations (version, sha256) VALUES (%s, %s)"
    if migration.transactional:
        with conn.transaction():
            conn.execute(migration.sql)
            conn.execute(record, (migration.version, migration.sha256))
    else:
        # A crash in between leaves it applied but unrecorded: such a file must be safe to run twice.
        conn.execute(migration.sql)
        conn.execute(record, (migration.version, migration.sha256))
