"""Requests by their ``Idempotency-Key``: which are being carried out, and what came of the others.

A row is taken before a request is carried out and completed after it; whoever finds it taken has the answer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

# As Stripe and Adyen keep them: longer than any client goes on trying.
KEEP = timedelta(hours=24)
# A request has 60 s for its body and 20 s for the slowest route: one that is older has died with its process.
ABANDONED = timedelta(minutes=5)
# Of one API key, the newest; at the most it may write (5/s) they reach back half an hour.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier request of the same name; ``status`` is None while it is carried out."""

    fingerprint: bytes
    status: int | None
    media_type: str
    body: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that may be carried out: the API key it came with, and its ``Idempotency-Key``."""

    key_id: str
    name: str


def take(conn: Connection[Any], claim: Claim, fingerprint: bytes, now: datetime) -> Earlier | None:
    """Take a name, or return the earlier request that has it."""
    taken = conn.execute(
        "INSERT INTO requests AS r (key_id, name, fingerprint, created_at) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (key_id, name) DO UPDATE SET fingerprint = EXCLUDED.fingerprint, status = NULL, "
        "body = NULL, created_at = EXCLUDED.created_at "
        "WHERE r.created_at < CASE WHEN r.status IS NULL THEN %s ELSE %s END RETURNING 1",
        (claim.key_id, claim.name, fingerprint, now, now - ABANDONED, now - KEEP),
    ).fetchone()
    if taken:
        conn.execute(
            "DELETE FROM requests WHERE key_id = %s AND created_at < (SELECT created_at FROM requests "
            "WHERE key_id = %s ORDER BY created_at DESC OFFSET %s LIMIT 1)",
            (claim.key_id, claim.key_id, MOST - 1),
        )
        return None
    row = conn.execute(
        "SELECT fingerprint, status, media_type, body FROM requests WHERE key_id = %s AND name = %s",
        (claim.key_id, claim.name),
    ).fetchone()
    # Given back between the two statements: for the asker that is as if it were still carried out.
    return Earlier(bytes(row[0]), *row[1:]) if row else Earlier(fingerprint, None, "", None)


def complete(conn: Connection[Any], claim: Claim, status: int, media_type: str, body: str | None) -> None:
    """Keep what came of a request."""
    conn.execute(
        "UPDATE requests SET status = %s, media_type = %s, body = %s WHERE key_id = %s AND name = %s",
        (status, media_type, body, claim.key_id, claim.name),
    )


def give_back(conn: Connection[Any], claim: Claim) -> None:
    """Forget a request that changed nothing, so that it may be sent again."""
    conn.execute("DELETE FROM requests WHERE key_id = %s AND name = %s", (claim.key_id, claim.name))


def prune(conn: Connection[Any], now: datetime) -> int:
    """Remove requests that are no longer kept; return how many."""
    return conn.execute("DELETE FROM requests WHERE created_at < %s", (now - KEEP,)).rowcount
