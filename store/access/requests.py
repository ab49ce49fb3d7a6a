"""Stores requests by ``Idempotency-Key``: those in progress, and the responses of completed ones.

A row is reserved before a request runs and completed after it; a repetition finds the row.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

# As long as Stripe keeps them: longer than clients retry.
KEEP = timedelta(hours=24)
# A request has 60 s for its body and 20 s for the slowest route: an older one died with its process.
ABANDONED = timedelta(minutes=5)
# Rows per API key, newest first; at its write limit (5/s) they reach back half an hour.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class EarlierRequest:
    """The earlier request with the same key; ``status`` is None while it is in progress."""

    fingerprint: bytes
    status: int | None
    media_type: str
    body: str | None


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Identity of a request: the id of its API key and its ``Idempotency-Key``."""

    key_id: str
    name: str


def reserve(
    conn: Connection[Any], key: RequestKey, fingerprint: bytes, now: datetime
) -> EarlierRequest | None:
    """Take a name, or return the earlier request that has it."""
    taken = conn.execute(
        "INSERT INTO requests AS r (key_id, name, fingerprint, created_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (key_id, name) DO UPDATE SET fingerprint = EXCLUDED.fingerprint, status = NULL, "
        "body = NULL, created_at = EXCLUDED.created_at "
        "WHERE r.created_at < CASE WHEN r.status IS NULL THEN %s ELSE %s END RETURNING 1",
        (key.key_id, key.name, fingerprint, now, now - ABANDONED, now - KEEP),
    ).fetchone()
    if taken:
        conn.execute(
            "DELETE FROM requests WHERE key_id = %s AND created_at < (SELECT created_at FROM requests "
            "WHERE key_id = %s ORDER BY created_at DESC OFFSET %s LIMIT 1)",
            (key.key_id, key.key_id, MOST - 1),
        )
        return None
    row = conn.execute(
        "SELECT fingerprint, status, media_type, body FROM requests WHERE key_id = %s AND name = %s",
        (key.key_id, key.name),
    ).fetchone()
    # Released between the two statements: reported as still in progress, and retried by the client.
    return EarlierRequest(bytes(row[0]), *row[1:]) if row else EarlierRequest(fingerprint, None, "", None)


def complete(conn: Connection[Any], key: RequestKey, status: int, media_type: str, body: str | None) -> None:
    """Store the response of a request."""
    conn.execute(
        "UPDATE requests SET status = %s, media_type = %s, body = %s WHERE key_id = %s AND name = %s",
        (status, media_type, body, key.key_id, key.name),
    )


def release(conn: Connection[Any], key: RequestKey) -> None:
    """Delete a request that changed nothing, so that it can be sent again."""
    conn.execute("DELETE FROM requests WHERE key_id = %s AND name = %s", (key.key_id, key.name))


def prune(conn: Connection[Any], now: datetime) -> int:
    """Remove requests older than ``KEEP``; return how many."""
    return conn.execute("DELETE FROM requests WHERE created_at < %s", (now - KEEP,)).rowcount
