"""Stores findings: versions from the detectors and edits by people, each in one transaction.

``save`` is idempotent: the same or an older version changes nothing and emits no event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from alerts.cases.lifecycle import transition
from alerts.config import FindingConfig
from alerts.finding import Finding, rfc3339
from alerts.merge import merge, version_time
from alerts.notify import EventType, NotifiedState, event_of
from alerts.report.runbook import with_runbook
from store.findings.outbox import OutboxEvent, emit, event_id, wake
from store.findings.rows import (
    UPSERT,
    Row,
    StoredFinding,
    document,
    held,
    moment,
    notified_state,
    parameters,
    served,
)
from store.likely import LIKELY_FROM
from store.text import storable, storable_json

Verdict = Literal["true_positive", "false_positive", "benign", "duplicate"]
# Window that a sink worker reads again when it starts (its ``FINDING_WINDOW_SECONDS``): the worker ends
# findings with suspicions in that window, the store older ones.
REMEMBERED_SECONDS = 3600.0

# Their event ids name the occurrence instead of the version, so that a replay that numbers its versions
# differently emits no second event.
_ONCE_PER_OCCURRENCE = frozenset({"finding.opened", "finding.reopened", "finding.resolved"})


class NotFound(LookupError):
    """No finding has this id."""


class Conflict(RuntimeError):
    """The finding has changed since the caller read it, or its status does not allow the edit."""


@dataclass(frozen=True, slots=True)
class FindingChange:
    """Result of a call; ``event`` is None when no event was emitted.

    ``gpu_hours``: by how much the finding's cost grew; negative when another finding has taken over the cost.
    """

    finding_id: str
    version: int
    status: str
    event: EventType | None
    gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """What is needed to see whether a process holds an open finding, and whether its subject reports."""

    id: str
    dedup_key: str
    kind: str
    cluster: str
    node: str | None
    job_id: str | None
    detected_at: datetime


@dataclass(frozen=True, slots=True)
class Edit:
    """Who changes a finding, when and why; ``version``: the one they have seen, None for any."""

    by: str
    at: datetime
    note: str = ""
    version: int | None = None

    def json(self) -> dict[str, Any]:
        """Return author, time and note as they are stored and served."""
        fields = {"by": self.by, "at": rfc3339(self.at.timestamp()), "note": self.note}
        return {name: storable_json(value) for name, value in fields.items()}


def save(conn: Connection[Any], finding: Finding, config: FindingConfig) -> FindingChange | None:
    """Store a version of a finding and its event; return None when nothing changed.

    A cause that is already stored keeps its id, also where a restarted worker gave it another one. ``config``
    must be that of the stage that made the finding: it defines when two versions are of one cause.
    """
    with conn.transaction():
        # Two workers may save one cause at once, and before its first version there is no row to lock.
        conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (storable(finding.dedup_key),))
        row = _same_cause(conn, finding, config)
        merged = finding if row is None else merge(held(row), finding)
        if merged is None:
            return None
        merged = with_runbook(merged, config.runbooks)
        # An edit changes the status column, not the document: with the document's own status a repeat of
        # this version would look new.
        doc = document(merged)
        if (
            row is not None
            and row["status"] == merged.status
            and row["doc"] | {"status": merged.status} == doc
        ):
            return None
        before = None if row is None else notified_state(row)
        stored = _upsert(conn, parameters(merged, doc))
        event, at = event_of(before, NotifiedState.of(merged)), moment(version_time(merged))
        if event is not None or before is None or before.status != merged.status:
            _add_history(conn, merged.id, event or f"finding.{merged.status}", Edit("detectors", at))
        spent = 0.0 if row is None else _cost(row)
        return replace(_publish(conn, merged.id, event, at), gpu_hours=_cost(stored) - spent)


def get(conn: Connection[Any], finding_id: str) -> StoredFinding | None:
    """Return one finding."""
    row = _row(conn, finding_id)
    return None if row is None else served(row)


def titles(conn: Connection[Any], cluster: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the titles of findings of a cluster by their ids, without those that are not stored."""
    rows = conn.execute(
        "SELECT id, title FROM findings WHERE cluster = %s AND id = ANY(%s)", (storable(cluster), list(ids))
    )
    return dict(rows.fetchall())


def acknowledge(conn: Connection[Any], finding_id: str, edit: Edit) -> FindingChange:
    """Acknowledge an open finding; later versions keep the acknowledgement.

    Raises ``NotFound``, or ``Conflict`` when its version is not the one in ``edit`` or it is not open.
    """
    with conn.transaction():
        row = _to_change(conn, finding_id, edit)
        if transition(row["status"], "acknowledged") == row["status"]:
            raise Conflict(f"a finding that is {row['status']} cannot be acknowledged")
        conn.execute(
            "UPDATE findings SET status = 'acknowledged', acknowledged = %s, version = version + 1, "
            "updated_at = clock_timestamp() WHERE id = %s",
            (Jsonb(edit.json()), row["id"]),
        )
        return _record_and_publish(conn, row["id"], "finding.acknowledged", edit)


def resolve(conn: Connection[Any], finding_id: str, edit: Edit) -> FindingChange:
    """Close a finding: it stays resolved until its cause ends and recurs. Raises as ``acknowledge``."""
    with conn.transaction():
        row = _to_change(conn, finding_id, edit)
        if transition(row["status"], "closed") == row["status"]:
            raise Conflict(f"a finding that is {row['status']} cannot be resolved")
        # The next occurrence opens it again; another version of this occurrence does not.
        closed = edit.json() | {"occurrence": row["occurrences"]}
        conn.execute(
            "UPDATE findings SET status = 'resolved', closed = %s, resolved_at = %s, version = version + 1, "
            "updated_at = clock_timestamp() WHERE id = %s",
            (Jsonb(closed), edit.at, row["id"]),
        )
        return _record_and_publish(conn, row["id"], "finding.resolved", edit)


def feedback(conn: Connection[Any], finding_id: str, verdict: Verdict, edit: Edit) -> FindingChange:
    """Record whether the finding was right; the last verdict counts. Raises as ``acknowledge``."""
    with conn.transaction():
        row = _to_change(conn, finding_id, edit)
        conn.execute(
            "UPDATE findings SET feedback = %s, version = version + 1, updated_at = clock_timestamp() "
            "WHERE id = %s",
            (Jsonb({"verdict": verdict} | edit.json()), row["id"]),
        )
        return _record_and_publish(conn, row["id"], "finding.feedback", edit)


def expire_silent(conn: Connection[Any], now: datetime, config_of: Callable[[str], FindingConfig]) -> int:
    """Expire findings without a new version for longer than their cluster's settings allow; return how many.

    The stage expires what it holds in memory; this is for findings that a restarted stage no longer has.
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
            # Read again under its lock: a detector may have updated it since.
            row = _to_change(conn, finding_id, Edit("slowrank", now))
            if row["last_seen_at"] < silent:
                # When the stage would have ended it: the window in which a relapse reopens it starts there.
                ended = row["last_seen_at"] + timedelta(seconds=config.open_expires_after_seconds)
                _end(conn, row, "expired", ended, now)
    return len(ids)


def live(conn: Connection[Any]) -> list[LiveFinding]:
    """Return the open findings of detectors."""
    rows = conn.execute(
        "SELECT id, dedup_key, kind, cluster, node, job_id, detected_at FROM findings "
        "WHERE status IN ('open', 'acknowledged') AND NOT shadow ORDER BY id"
    ).fetchall()
    return [LiveFinding(*row) for row in rows]


def end_unheld(conn: Connection[Any], finding_id: str, now: datetime) -> None:
    """Resolve a finding whose fault has ended since the last process that held it."""
    with conn.transaction():
        row = _to_change(conn, finding_id, Edit("slowrank", now))
        _end(conn, row, "recovered", now, now)


def _end(
    conn: Connection[Any], row: Row, how: Literal["expired", "recovered"], ended: datetime, now: datetime
) -> None:
    """End a locked finding, unless it has ended, and emit the event."""
    after = transition(row["status"], how)
    if after == row["status"]:
        return
    conn.execute(
        "UPDATE findings SET status = %s, resolved_at = %s, version = version + 1, "
        "updated_at = clock_timestamp() WHERE id = %s",
        (after, ended, row["id"]),
    )
    event = event_of(notified_state(row), replace(notified_state(row), status=after))
    _add_history(conn, row["id"], event or f"finding.{after}", Edit("slowrank", now))
    _publish(conn, row["id"], event, now)


def history(conn: Connection[Any], finding_id: str) -> list[dict[str, Any]]:
    """Return the history of a finding, oldest entry first."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT version, event, at, actor, status, severity, note FROM finding_history "
            "WHERE finding_id = %s ORDER BY version, event",
            (storable(finding_id),),
        ).fetchall()


def _cost(row: Row) -> float:
    """Return the GPU hours counted for a finding: none for a suspicion, a member of a group, a shadow, or
    information that is rather wrong than right. The sums in SQL count the same."""
    counts = row["was_open"] and row["status"] != "suspected" and row["group_key"] is None
    likely = row["severity"] != "info" or row["confidence"] >= LIKELY_FROM
    return float(row["gpu_hours_lost"]) if counts and likely and not row["shadow"] else 0.0


def _silent_seconds(config: FindingConfig) -> float:
    """Return after how many seconds without a version the store expires a finding."""
    return max(config.open_expires_after_seconds, REMEMBERED_SECONDS)


def _same_cause(conn: Connection[Any], finding: Finding, config: FindingConfig) -> Row | None:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            # The row of this id, a live one, or one that ended so recently that this is its relapse.
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


def _upsert(conn: Connection[Any], values: Row) -> Row:
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(UPSERT, values).fetchone()
    assert row is not None
    return row


def _row(conn: Connection[Any], finding_id: str, lock: LiteralString = "") -> Row | None:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            "SELECT * FROM findings WHERE id = %s" + lock, (storable(finding_id),)
        ).fetchone()


def _to_change(conn: Connection[Any], finding_id: str, edit: Edit) -> Row:
    row = _row(conn, finding_id, " FOR UPDATE")
    if row is None:
        raise NotFound(f"no finding has the id {finding_id}")
    if edit.version not in (None, row["version"]):
        raise Conflict(f"the finding is at version {row['version']}, not {edit.version}; read it again")
    return row


def _record_and_publish(
    conn: Connection[Any], finding_id: str, event: EventType, edit: Edit
) -> FindingChange:
    _add_history(conn, finding_id, event, edit)
    return _publish(conn, finding_id, event, edit.at)


def _add_history(conn: Connection[Any], finding_id: str, event: str, edit: Edit) -> None:
    conn.execute(
        "INSERT INTO finding_history (finding_id, version, event, at, actor, status, severity, note) "
        "SELECT id, version, %s, %s, %s, status, severity, %s FROM findings WHERE id = %s "
        "ON CONFLICT DO NOTHING",
        (event, edit.at, storable(edit.by), storable(edit.note), finding_id),
    )


def _publish(conn: Connection[Any], finding_id: str, event: EventType | None, at: datetime) -> FindingChange:
    row = _row(conn, finding_id)
    assert row is not None
    stored = served(row)
    if row["shadow"]:
        # Findings of detectors in shadow mode are stored for evaluation and never notified, edited or not.
        event = None
    if event is not None:
        step = row["occurrences"] if event in _ONCE_PER_OCCURRENCE else f"v{stored.version}"
        name = event_id(f"{finding_id}/{event}/{step}", row["onset"])
        event_ = OutboxEvent(id=name, seq=0, type=event, finding_id=finding_id, at=at, body=stored.doc)
        emit(conn, event_, version=stored.version)
    wake(conn, {"id": finding_id, "version": stored.version, "event": event})
    return FindingChange(finding_id, stored.version, stored.status, event)
