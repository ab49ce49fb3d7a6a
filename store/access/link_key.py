"""The key that signs links to findings: one per installation, made by its migration."""

from typing import Any

from psycopg import Connection


def link_key(conn: Connection[Any]) -> bytes:
    """Return the key, at least 32 random bytes. Raises ``ValueError`` when there is none."""
    row = conn.execute("SELECT secret FROM link_key").fetchone()
    if row is None:
        raise ValueError("table link_key is empty, so links cannot be signed; insert 32 random bytes there")
    return bytes(row[0])
