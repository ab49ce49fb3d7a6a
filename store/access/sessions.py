"""Stores browser sessions and one-time sign-in links: the SHA-256 of a random token, and its API key."""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any, Literal

from psycopg import Connection

from store.access import keys
from store.access.keys import ApiKey
from store.text import storable

Use = Literal["session", "sign_in"]

LIFE: dict[Use, timedelta] = {
    # Chosen: a shift, so that nobody signs in twice a day and a forgotten browser is signed out by the next.
    "session": timedelta(hours=12),
    # Chosen: the time to copy a printed link into a browser.
    "sign_in": timedelta(minutes=10),
}


def create(conn: Connection[Any], key_id: str, use: Use, now: datetime) -> str:
    """Store a session or a one-time link of a key, remove expired ones, and return its token."""
    token = secrets.token_urlsafe(32)
    conn.execute("DELETE FROM sessions WHERE expires_at <= %s", (now,))
    conn.execute(
        "INSERT INTO sessions (sha256, use, key_id, created_at, expires_at) VALUES (%s, %s, %s, %s, %s)",
        (_digest(token), use, storable(key_id), now, now + LIFE[use]),
    )
    return token


def key_of(conn: Connection[Any], token: str, now: datetime) -> ApiKey | None:
    """Return the API key of a session, or None when the session or the key is not valid at ``now``."""
    row = conn.execute(
        "SELECT key_id FROM sessions WHERE sha256 = %s AND use = 'session' AND expires_at > %s",
        (_digest(token), now),
    ).fetchone()
    return None if row is None else _valid(conn, row[0], now)


def redeem(conn: Connection[Any], token: str, now: datetime) -> ApiKey | None:
    """Use up a one-time link; return its key, or None when the link is used, expired or unknown."""
    row = conn.execute(
        "DELETE FROM sessions WHERE sha256 = %s AND use = 'sign_in' RETURNING key_id, expires_at",
        (_digest(token),),
    ).fetchone()
    return None if row is None or row[1] <= now else _valid(conn, row[0], now)


def end(conn: Connection[Any], token: str) -> None:
    """Remove a session."""
    conn.execute("DELETE FROM sessions WHERE sha256 = %s", (_digest(token),))


def _digest(token: str) -> bytes:
    # 256 random bits need no slow hash.
    return hashlib.sha256(token.encode()).digest()


def _valid(conn: Connection[Any], key_id: str, now: datetime) -> ApiKey | None:
    key = keys.get(conn, key_id)
    return key if key is not None and key.valid_at(now) else None
