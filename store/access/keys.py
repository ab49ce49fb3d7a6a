"""Stores API keys: the SHA-256 of a random secret, scopes, clusters and expiry."""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.text import storable

# Without letters that look alike (I, O, l) and without _, which separates the parts of a token.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghijkmnopqrstuvwxyz"
# Chosen: one write per key and minute instead of one per request.
_TOUCH_EVERY = timedelta(minutes=1)
_SELECT: LiteralString = (
    "SELECT id, name, sha256, scopes, clusters, created_by, created_at, expires_at, last_used_at, revoked_at "
    "FROM api_keys "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as stored; no ``clusters`` means all clusters."""

    id: str
    name: str
    sha256: bytes
    scopes: tuple[str, ...]
    clusters: tuple[str, ...] = ()
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def valid_at(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def generate() -> tuple[str, str, bytes]:
    """Return a new key's id, its token (``srk_<id>_<secret>``, shown once) and the secret's digest."""
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = secrets.token_hex(32)
    return key_id, f"srk_{key_id}_{secret}", digest(secret)


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret; 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def create(conn: Connection[Any], key: ApiKey) -> None:
    """Store a new key."""
    conn.execute(
        "INSERT INTO api_keys (id, name, sha256, scopes, clusters, created_by, created_at, expires_at) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
        (
            storable(key.id),
            storable(key.name),
            key.sha256,
            [storable(scope) for scope in key.scopes],
            [storable(cluster) for cluster in key.clusters],
            storable(key.created_by),
            key.created_at,
            key.expires_at,
        ),
    )


def verify(conn: Connection[Any], token: str, now: datetime) -> ApiKey | None:
    """Return the key of a token if its secret matches and it is valid now; compares in constant time."""
    prefix, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    key = get(conn, key_id) if prefix == "srk" else None
    # Compared without a key as well, so that the time does not reveal whether the id exists.
    genuine = hmac.compare_digest(digest(secret), key.sha256 if key else bytes(32))
    return key if key is not None and genuine and key.valid_at(now) else None


def get(conn: Connection[Any], key_id: str) -> ApiKey | None:
    """Return one key, valid or not."""
    found = _select(conn, "WHERE id = %s", (storable(key_id),))
    return found[0] if found else None


def names(conn: Connection[Any], ids: Collection[str]) -> dict[str, str]:
    """Return the names of keys by id, valid or not; ids that are of no key are left out."""
    wanted = [storable(key_id) for key_id in ids]
    rows = conn.execute("SELECT id, name FROM api_keys WHERE id = ANY(%s)", (wanted,)).fetchall()
    return dict(rows)


def listed(conn: Connection[Any]) -> list[ApiKey]:
    """Return all keys, oldest first."""
    return _select(conn, "ORDER BY created_at, id", ())


def revoke(conn: Connection[Any], key_id: str, now: datetime) -> bool:
    """Revoke a key; return whether there was one to revoke."""
    cursor = conn.execute(
        "UPDATE api_keys SET revoked_at = %s WHERE id = %s AND revoked_at IS NULL", (now, storable(key_id))
    )
    return cursor.rowcount == 1


def touch(conn: Connection[Any], key_id: str, now: datetime) -> None:
    """Record when the key was last used, to the minute."""
    conn.execute(
        "UPDATE api_keys SET last_used_at = %s WHERE id = %s AND (last_used_at IS NULL OR last_used_at < %s)",
        (now, storable(key_id), now - _TOUCH_EVERY),
    )


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[ApiKey]:
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_SELECT + where, parameters).fetchall()
    lists = ("scopes", "clusters")
    return [ApiKey(**(row | {name: tuple(row[name]) for name in lists})) for row in rows]
