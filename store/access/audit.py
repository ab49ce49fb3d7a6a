"""The audit log: append-only entries of who did what, each hashed together with the previous one."""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from store.locks import lock_key
from store.text import storable, storable_json

_LOCK = lock_key("audit")
# Previous hash of the first entry.
_FIRST = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One action; ``detail`` holds its values, the client's address and the request id."""

    at: datetime
    actor: str
    action: str
    target: str
    detail: dict[str, Any] = field(default_factory=dict)
    seq: int = 0


def record(conn: Connection[Any], entry: Entry) -> int:
    """Append an entry and return its number, in the caller's transaction if there is one."""
    with conn.transaction():
        # Concurrent writers would chain to the same entry.
        conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        last = conn.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
        seq, previous = (1, _FIRST) if last is None else (last[0] + 1, bytes(last[1]))
        fields = _fields(entry, seq)
        conn.execute(
            "INSERT INTO audit (seq, at, actor, action, target, detail, previous, hash) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (*fields[:5], Jsonb(fields[5]), previous, _hash(previous, fields)),
        )
    return seq


def listed(conn: Connection[Any], *, before: int | None = None, limit: int = 100) -> list[Entry]:
    """Return entries with numbers below ``before``, newest first."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT seq, at, actor, action, target, detail FROM audit "
            "WHERE %(before)s::bigint IS NULL OR seq < %(before)s ORDER BY seq DESC LIMIT %(limit)s",
            {"before": before, "limit": limit},
        ).fetchall()
    return [Entry(**row) for row in rows]


def first_broken(conn: Connection[Any]) -> int | None:
    """Return the number of the first entry that was changed or follows a removed one; None if intact."""
    previous, expected = _FIRST, 1
    # A server-side cursor: the whole log may not fit into memory.
    with conn.transaction(), conn.cursor(name="audit_chain") as cursor:
        cursor.execute(
            "SELECT seq, at, actor, action, target, detail, previous, hash FROM audit ORDER BY seq"
        )
        for seq, *columns, linked, digest in cursor:
            fields = (seq, *columns)
            if seq != expected or bytes(linked) != previous or bytes(digest) != _hash(previous, fields):
                return int(seq)
            previous, expected = bytes(digest), expected + 1
    return None


def _fields(entry: Entry, seq: int) -> tuple[Any, ...]:
    # As they will be read back, so that the hash is the same then.
    texts = (storable(entry.actor), storable(entry.action), storable(entry.target))
    return (seq, entry.at, *texts, storable_json(entry.detail))


def _hash(previous: bytes, fields: tuple[Any, ...]) -> bytes:
    seq, at, *rest = fields
    # jsonb does not keep the order of keys, and times come back in the session's time zone.
    stable = json.dumps([seq, at.astimezone(UTC).isoformat(), *rest], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(previous + stable.encode()).digest()
