"""A migrated database of a run's own, on a server that is there or on the embedded PostgreSQL."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cli.embedded import postgres
from store.migrate import migrate


@contextmanager
def own_database() -> Iterator[str]:
    """Yield the DSN of a new database on the server of ``SLOWRANK_TEST_DSN``, else on an embedded one."""
    with _server() as admin:
        name = f"bench_{secrets.token_hex(6)}"
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            dsn = make_conninfo(admin, dbname=name)
            migrate(dsn)
            yield dsn
        finally:
            with psycopg.connect(admin, autocommit=True) as conn:
                conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def _server() -> Iterator[str]:
    if dsn := os.environ.get("SLOWRANK_TEST_DSN"):
        yield dsn
        return
    with tempfile.TemporaryDirectory(prefix="slowrank-bench-") as folder:
        # As root the server runs as nobody, who must be able to enter.
        Path(folder).chmod(0o755)
        with postgres.database(Path(folder) / "data", throwaway=True) as dsn:
            yield dsn
