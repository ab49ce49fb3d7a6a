"""Stores silences.

A delivery held back by a silence has the silence's end as ``next_attempt_at``: it is reconsidered then, or as
soon as the silence is changed (``leases.lease_due``).
"""

from dataclasses import asdict
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from alerts.recurrence import Recurrence
from alerts.silence import Matcher, Silence
from store.locks import lock_key
from store.text import storable, storable_json

# Silences that there may be, pending or active. Chosen: enough for each node of a large site under repair;
# every event is matched with all of them.
MAX_CURRENT = 5000

_LOCK = lock_key("silences")

_SELECT: LiteralString = (
    "SELECT id, matchers, starts_at, ends_at, created_by, comment, recurrence FROM silences "
)


def save(conn: Connection[Any], silence: Silence, now: datetime) -> bool:
    """Store a silence; the same id replaces it, and deliveries it held back are reconsidered.

    Return False, and store nothing, where ``MAX_CURRENT`` others have not ended at ``now``.
    """
    with conn.transaction():
        _change(conn)
        stored = conn.execute(
            "INSERT INTO silences (id, matchers, starts_at, ends_at, created_by, comment, recurrence) "
            "SELECT %s, %s, %s, %s, %s, %s, %s "
            "WHERE (SELECT count(*) FROM silences WHERE ends_at > %s AND id <> %s) < %s "
            "ON CONFLICT (id) DO UPDATE SET "
            "matchers = excluded.matchers, starts_at = excluded.starts_at, ends_at = excluded.ends_at, "
            "comment = excluded.comment, recurrence = excluded.recurrence",
            (
                silence.id,
                Jsonb(storable_json([asdict(m) for m in silence.matchers])),
                silence.starts_at,
                silence.ends_at,
                storable(silence.created_by),
                storable(silence.comment),
                None if silence.recurrence is None else Jsonb(asdict(silence.recurrence)),
                now,
                silence.id,
                MAX_CURRENT,
            ),
        )
        if stored.rowcount == 0:
            return False
        _look_again(conn, silence.id, None)
        return True


def get(conn: Connection[Any], silence_id: str) -> Silence | None:
    """Return one silence."""
    found = _select(conn, "WHERE id = %s", (storable(silence_id),))
    return found[0] if found else None


def current(conn: Connection[Any], now: datetime) -> list[Silence]:
    """Return pending and active silences, earliest end first."""
    return _select(conn, "WHERE ends_at > %s ORDER BY ends_at, id", (now,))


def listed(conn: Connection[Any], *, limit: int = 1000) -> list[Silence]:
    """Return silences of any state, latest end first."""
    return _select(conn, "ORDER BY ends_at DESC, id LIMIT %s", (limit,))


def expire(conn: Connection[Any], silence_id: str, now: datetime) -> bool:
    """End a silence now; return whether there was one to end. Its row is kept."""
    with conn.transaction():
        _change(conn)
        cursor = conn.execute(
            # A silence that has not started ends at its start: the table allows no earlier end.
            "UPDATE silences SET ends_at = greatest(starts_at, %s) WHERE id = %s AND ends_at > %s",
            (now, storable(silence_id), now),
        )
        if cursor.rowcount == 1:
            _look_again(conn, silence_id, now)
        return cursor.rowcount == 1


def hold(conn: Connection[Any]) -> None:
    """Lock silences against changes until the transaction ends.

    Whoever changes a silence afterwards sees the deliveries of this transaction. Call it before locking any
    delivery: changing a silence locks the silences first and deliveries second.
    """
    conn.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))


def _change(conn: Connection[Any]) -> None:
    conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def _look_again(conn: Connection[Any], silence_id: str, now: datetime | None) -> None:
    conn.execute(
        "UPDATE deliveries SET next_attempt_at = coalesce(%s, clock_timestamp()) "
        "WHERE state = 'muted' AND muted_by = %s",
        (now, storable(silence_id)),
    )


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[Silence]:
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_SELECT + where, parameters).fetchall()
    return [
        Silence(
            **(row | {"matchers": matchers(row["matchers"]), "recurrence": _recurrence(row["recurrence"])})
        )
        for row in rows
    ]


def matchers(stored: list[dict[str, Any]]) -> tuple[Matcher, ...]:
    """Return the matchers of a JSON column."""
    return tuple(Matcher(**matcher) for matcher in stored)


def _recurrence(stored: dict[str, Any] | None) -> Recurrence | None:
    return None if stored is None else Recurrence(**(stored | {"weekdays": tuple(stored["weekdays"])}))
