"""The audit log: who did what, appended only, each entry hashed together with the one before it."""

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
# What the first entry is chained to.
_FIRST = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One deed; ``detail`` holds before and after, the address it came from and the request's id."""

    at: datetime
    actor: str
    action: str
    target: str
    detail: dict[str, Any] = field(default_factory=dict)
    seq: int = 0


def record(conn: Connection[Any], entry: Entry) -> int:
    """Append an entry and return its number; in the caller's transaction where there is one."""
    with conn.transaction():
        # Two writers at once would both follow the same entry.
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
    """Return entries, newest first, from below number ``before``."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT seq, at, actor, action, target, detail FROM audit "
            "WHERE %(before)s::bigint IS NULL OR seq < %(before)s ORDER BY seq DESC LIMIT %(limit)s",
            {"before": before, "limit": limit},
        ).fetchall()
    return [Entry(**row) for row in rows]


def first_broken(conn: Connection[Any]) -> int | None:
    """Return the number of the first entry changed, or that follows a removed one; None if all hold."""
    previous, expected = _FIRST, 1
    # A cursor of the server, which hands out the log in pieces: whole it may not fit into memory.
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
    # As they will be read back: the hash must be the same then.
    texts = (storable(entry.actor), storable(entry.action), storable(entry.target))
    return (seq, entry.at, *texts, storable_json(entry.detail))


def _hash(previous: bytes, fields: tuple[Any, ...]) -> bytes:
    seq, at, *rest = fields
    # jsonb keeps no order of keys, and the server gives times in the zone of the session.
    stable = json.dumps([seq, at.astimezone(UTC).isoformat(), *rest], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(previous + stable.encode()).digest()
