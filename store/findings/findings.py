"""Findings as rows: versions from the detectors and words from people meet here, in one transaction each.

``save`` is idempotent: the same version again, or an older one, changes nothing and tells nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from alerts.config import FindingConfig
from alerts.finding import Finding, rfc3339
from alerts.lifecycle import transition
from alerts.merge import merge, version_time
from alerts.notify import EventType, Told, news
from store.events import Event, emit, event_id, wake
from store.finding_rows import UPSERT, Row, Stored, document, held, moment, parameters, served, told
from store.search import FindingFilter, Page, find, open_counts
from store.text import storable, storable_json

__all__ = [
    "Change",
    "Conflict",
    "FindingFilter",
    "NotFound",
    "Page",
    "Stored",
    "acknowledge",
    "expire_silent",
    "feedback",
    "find",
    "get",
    "history",
    "open_counts",
    "resolve",
    "save",
]

Verdict = Literal["true_positive", "false_positive", "benign", "duplicate"]
# Named by occurrence: a re-read that arrives at one under another version number tells nobody again.
# What a worker reads again when it starts (streams.sink): what is spoken of there it ends by itself.
REMEMBERED_SECONDS = 3600.0
_ONCE_PER_OCCURRENCE = frozenset({"finding.opened", "finding.reopened", "finding.resolved"})


class NotFound(LookupError):
    """No finding has this id."""


class Conflict(RuntimeError):
    """The finding has changed since the caller read it, or cannot take this step from its status."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a call changed; ``event`` is None when it was not worth telling anybody.

    ``gpu_hours``: what its finding has cost more than before; below zero, it is on another one's account now.
    """

    finding_id: str
    version: int
    status: str
    event: EventType | None
    gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True)
class Word:
    """What a person says about a finding; ``version``: the one they have seen, None for whatever is there."""

    by: str
    at: datetime
    note: str = ""
    version: int | None = None

    def json(self) -> dict[str, Any]:
        """Return who, when and what as it is stored and served."""
        words = {"by": self.by, "at": rfc3339(self.at.timestamp()), "note": self.note}
        return {name: storable_json(value) for name, value in words.items()}


def save(conn: Connection[Any], finding: Finding, config: FindingConfig) -> Change | None:
    """Store a version of a finding and put its news into the outbox; return None when nothing changed.

    A cause the store already holds keeps its id, even when a restarted worker has given it another one.
    ``config`` is that of the stage which made the finding: the same times make it the same cause here.
    """
    with conn.transaction():
        # Two workers may bring one cause at once, and before its first version there is no row to lock.
        conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (storable(finding.dedup_key),))
        row = _same_cause(conn, finding, config)
        merged = finding if row is None else merge(held(row), finding)
        if merged is None:
            return None
        # A person's step changes the status column, not the document: without it a repeat would look new.
        doc = document(merged)
        if (
            row is not None
            and row["status"] == merged.status
            and row["doc"] | {"status": merged.status} == doc
        ):
            return None
        before = None if row is None else told(row)
        stored = conn.execute(UPSERT, parameters(merged, doc)).fetchone()
        assert stored is not None
        event, at = news(before, Told.of(merged)), moment(version_time(merged))
        if event is not None or before is None or before.status != merged.status:
            _remember(conn, merged.id, event or f"finding.{merged.status}", Word("detectors", at))
        cost = _cost(merged.status, merged.group_key, merged.shadow, merged.gpu_hours_lost)
        spent = 0.0
        if row is not None:
            spent = _cost(row["status"], row["group_key"], row["shadow"], row["gpu_hours_lost"])
        return replace(_tell(conn, merged.id, event, at), gpu_hours=cost - spent)


def get(conn: Connection[Any], finding_id: str) -> Stored | None:
    """Return one finding."""
    row = _row(conn, finding_id)
    return None if row is None else served(row)


def acknowledge(conn: Connection[Any], finding_id: str, word: Word) -> Change:
    """Note that somebody takes care of an open finding; it survives later versions.

    Raises ``NotFound``, or ``Conflict`` when it is no longer the version the person saw or is not open.
    """
    with conn.transaction():
        row = _to_change(conn, finding_id, word)
        if transition(row["status"], "acknowledged") == row["status"]:
            raise Conflict(f"a finding that is {row['status']} cannot be acknowledged")
        conn.execute(
            "UPDATE findings SET status = 'acknowledged', acknowledged = %s, version = version + 1, "
            "updated_at = clock_timestamp() WHERE id = %s",
            (Jsonb(word.json()), row["id"]),
        )
        return _said(conn, row["id"], "finding.acknowledged", word)


def resolve(conn: Connection[Any], finding_id: str, word: Word) -> Change:
    """Close a finding by hand: it stays resolved until its cause has gone and come back. Raises as above."""
    with conn.transaction():
        row = _to_change(conn, finding_id, word)
        if transition(row["status"], "closed") == row["status"]:
            raise Conflict(f"a finding that is {row['status']} cannot be resolved")
        # So that the next occurrence opens it again, and the next version of this one does not.
        closed = word.json() | {"occurrence": row["occurrences"]}
        conn.execute(
            "UPDATE findings SET status = 'resolved', closed = %s, resolved_at = %s, version = version + 1, "
            "updated_at = clock_timestamp() WHERE id = %s",
            (Jsonb(closed), word.at, row["id"]),
        )
        return _said(conn, row["id"], "finding.resolved", word)


def feedback(conn: Connection[Any], finding_id: str, verdict: Verdict, word: Word) -> Change:
    """Record whether the finding was right; the last word counts. Raises as above."""
    with conn.transaction():
        row = _to_change(conn, finding_id, word)
        conn.execute(
            "UPDATE findings SET feedback = %s, version = version + 1, updated_at = clock_timestamp() "
            "WHERE id = %s",
            (Jsonb({"verdict": verdict} | word.json()), row["id"]),
        )
        return _said(conn, row["id"], "finding.feedback", word)


def expire_silent(conn: Connection[Any], now: datetime, config_of: Callable[[str], FindingConfig]) -> int:
    """End what no detector has spoken of for so long as its cluster's settings say; return how many it were.

    The stage does so by itself for what it remembers; this is for what a restarted one does not.
    """
    live = "SELECT DISTINCT cluster FROM findings WHERE status IN ('suspected', 'open', 'acknowledged')"
    clusters = [row[0] for row in conn.execute(live).fetchall()]
    return sum(_expire_silent_in(conn, cluster, now, config_of(cluster)) for cluster in clusters)


def _expire_silent_in(conn: Connection[Any], cluster: str, now: datetime, config: FindingConfig) -> int:
    silent = now - timedelta(seconds=_silent_seconds(config))
    live = (
        "SELECT id FROM findings WHERE status IN ('suspected', 'open', 'acknowledged') AND last_seen_at < %s "
        "AND cluster = %s"
    )
    ids = [row[0] for row in conn.execute(live, (silent, cluster)).fetchall()]
    for finding_id in ids:
        with conn.transaction():
            # Looked at again under its lock: a detector may have spoken of it since.
            row = _to_change(conn, finding_id, Word("slowrank", now))
            if (
                row["last_seen_at"] < silent
                and (after := transition(row["status"], "expired")) != row["status"]
            ):
                # When the stage would have ended it: how long a relapse reopens it counts from there.
                ended = row["last_seen_at"] + timedelta(seconds=config.open_expires_after_seconds)
                conn.execute(
                    "UPDATE findings SET status = %s, resolved_at = %s, version = version + 1, "
                    "updated_at = clock_timestamp() WHERE id = %s",
                    (after, ended, finding_id),
                )
                event = news(told(row), replace(told(row), status=after))
                _remember(conn, finding_id, event or "finding.expired", Word("slowrank", now))
                _tell(conn, finding_id, event, now)
    return len(ids)


def history(conn: Connection[Any], finding_id: str) -> list[dict[str, Any]]:
    """Return the steps of a finding's life, oldest first."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT version, event, at, actor, status, severity, note FROM finding_history "
            "WHERE finding_id = %s ORDER BY version, event",
            (storable(finding_id),),
        ).fetchall()


def _cost(status: str, group_key: str | None, shadow: bool, lost: float | None) -> float:
    """Return what is on the account of a finding: nothing while it is a suspicion or another one's part."""
    return 0.0 if status == "suspected" or group_key is not None or shadow else lost or 0.0


def _silent_seconds(config: FindingConfig) -> float:
    """Return after what time without a word the store ends what the stage has not ended."""
    return max(config.open_expires_after_seconds, REMEMBERED_SECONDS)


def _same_cause(conn: Connection[Any], finding: Finding, config: FindingConfig) -> Row | None:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            # Its own row, or one that is alive or has ended so lately that this is its relapse.
            "SELECT * FROM findings WHERE dedup_key = %(key)s AND (id = %(id)s "
            "OR (status IN ('suspected', 'open', 'acknowledged') AND last_seen_at >= %(live)s) "
            "OR (status IN ('resolved', 'expired') AND coalesce(resolved_at, last_seen_at) >= %(ended)s)) "
            "ORDER BY (id = %(id)s) DESC, onset DESC LIMIT 1",
            {
                "key": storable(finding.dedup_key),
                "id": storable(finding.id),
                "live": moment(finding.onset - _silent_seconds(config)),
                "ended": moment(finding.onset - config.reopen_within_seconds),
            },
        ).fetchone()


def _row(conn: Connection[Any], finding_id: str, lock: LiteralString = "") -> Row | None:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT * FROM findings WHERE id = %s" + lock, (storable(finding_id),)
        ).fetchone()


def _to_change(conn: Connection[Any], finding_id: str, word: Word) -> Row:
    row = _row(conn, finding_id, " FOR UPDATE")
    if row is None:
        raise NotFound(f"no finding has the id {finding_id}")
    if word.version not in (None, row["version"]):
        raise Conflict(f"the finding is at version {row['version']}, not {word.version}; read it again")
    return row


def _said(conn: Connection[Any], finding_id: str, event: EventType, word: Word) -> Change:
    _remember(conn, finding_id, event, word)
    return _tell(conn, finding_id, event, word.at)


def _remember(conn: Connection[Any], finding_id: str, event: str, word: Word) -> None:
    conn.execute(
        "INSERT INTO finding_history (finding_id, version, event, at, actor, status, severity, note) "
        "SELECT id, version, %s, %s, %s, status, severity, %s FROM findings WHERE id = %s "
        "ON CONFLICT DO NOTHING",
        (event, word.at, storable(word.by), storable(word.note), finding_id),
    )


def _tell(conn: Connection[Any], finding_id: str, event: EventType | None, at: datetime) -> Change:
    row = _row(conn, finding_id)
    assert row is not None
    stored = served(row)
    if row["shadow"]:
        # Kept for whoever judges the detector; nobody is called, also when a person says something about it.
        event = None
    if event is not None:
        step = row["occurrences"] if event in _ONCE_PER_OCCURRENCE else f"v{stored.version}"
        name = event_id(f"{finding_id}/{event}/{step}", row["onset"])
        told_ = Event(id=name, seq=0, type=event, finding_id=finding_id, at=at, body=stored.doc)
        emit(conn, told_, version=stored.version)
    wake(conn, {"id": finding_id, "version": stored.version, "event": event})
    return Change(finding_id, stored.version, stored.status, event)
