"""Converts findings to rows of ``findings``, and rows to what is served or what a merge needs."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from alerts.finding import Finding, rfc3339
from alerts.merge import Held, version_time
from alerts.notify import NotifiedState
from store.text import storable, storable_json

Row = dict[str, Any]

_PEOPLE = ("acknowledged", "closed", "feedback")

# acknowledged and closed refer to one occurrence: the next one is not acknowledged yet.
UPSERT: LiteralString = """
INSERT INTO findings (
  id, dedup_key, group_key, cluster, kind, severity, status, title, subject_type, node, gpu_index, gpu_uuid,
  serial, rank, job_id, detector, onset, detected_at, last_seen_at, resolved_at, as_of, confidence, score,
  slowdown_ratio, job_slowdown_ratio, gpu_hours_lost, gpu_hours_lost_per_hour, occurrences, shadow, doc)
VALUES (
  %(id)s, %(dedup_key)s, %(group_key)s, %(cluster)s, %(kind)s, %(severity)s, %(status)s, %(title)s,
  %(subject_type)s, %(node)s, %(gpu_index)s, %(gpu_uuid)s, %(serial)s, %(rank)s, %(job_id)s, %(detector)s,
  %(onset)s, %(detected_at)s, %(last_seen_at)s, %(resolved_at)s, %(as_of)s, %(confidence)s, %(score)s,
  %(slowdown_ratio)s, %(job_slowdown_ratio)s, %(gpu_hours_lost)s, %(gpu_hours_lost_per_hour)s,
  %(occurrences)s, %(shadow)s, %(doc)s)
ON CONFLICT (id) DO UPDATE SET
  group_key = excluded.group_key, kind = excluded.kind, severity = excluded.severity,
  status = excluded.status, title = excluded.title, node = excluded.node, gpu_index = excluded.gpu_index,
  gpu_uuid = excluded.gpu_uuid, serial = excluded.serial, rank = excluded.rank, job_id = excluded.job_id,
  detector = excluded.detector, onset = excluded.onset, detected_at = excluded.detected_at,
  last_seen_at = excluded.last_seen_at, resolved_at = excluded.resolved_at, as_of = excluded.as_of,
  confidence = excluded.confidence, score = excluded.score, slowdown_ratio = excluded.slowdown_ratio,
  job_slowdown_ratio = excluded.job_slowdown_ratio, gpu_hours_lost = excluded.gpu_hours_lost,
  gpu_hours_lost_per_hour = excluded.gpu_hours_lost_per_hour, occurrences = excluded.occurrences,
  doc = excluded.doc, version = findings.version + 1, updated_at = clock_timestamp(),
  acknowledged = CASE WHEN excluded.occurrences = findings.occurrences THEN findings.acknowledged END,
  closed = CASE WHEN excluded.occurrences = findings.occurrences THEN findings.closed END
RETURNING status, group_key, shadow, was_open, gpu_hours_lost, severity, confidence
"""


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding as served: ``doc`` is the ``finding.v1`` object with the edits by people."""

    id: str
    cluster: str
    version: int
    status: str
    updated_at: datetime
    doc: dict[str, Any]


def moment(ts: float) -> datetime:
    """Return Unix seconds as an aware UTC datetime."""
    return datetime.fromtimestamp(ts, UTC)


def parameters(finding: Finding, doc: dict[str, Any]) -> Row:
    """Return the parameters of ``UPSERT``; ``doc`` is the finding's JSON, storable."""
    s = finding.subject
    values: Row = {
        "id": finding.id,
        "dedup_key": finding.dedup_key,
        "group_key": finding.group_key,
        "cluster": s.cluster,
        "kind": finding.kind,
        "severity": finding.severity,
        "status": finding.status,
        "title": finding.title,
        "subject_type": s.type,
        "detector": finding.detector,
        "as_of": moment(version_time(finding)),
        "resolved_at": None if finding.resolved_at is None else moment(finding.resolved_at),
        "gpu_hours_lost": finding.gpu_hours_lost or 0.0,
        "gpu_hours_lost_per_hour": finding.gpu_hours_lost_per_hour or 0.0,
        "doc": Jsonb(doc),
    }
    values |= {
        name: getattr(s, name) for name in ("node", "gpu_index", "gpu_uuid", "serial", "rank", "job_id")
    }
    values |= {name: moment(getattr(finding, name)) for name in ("onset", "detected_at", "last_seen_at")}
    numbers = ("confidence", "score", "slowdown_ratio", "job_slowdown_ratio", "occurrences", "shadow")
    values |= {name: getattr(finding, name) for name in numbers}
    return {name: storable(v) if isinstance(v, str) else v for name, v in values.items()}


def document(finding: Finding) -> dict[str, Any]:
    """Return the ``finding.v1`` object as jsonb can hold it."""
    doc: dict[str, Any] = storable_json(finding.to_json())
    return doc


def served(row: Row) -> StoredFinding:
    """Return a row of ``findings`` as it is served."""
    # Columns take precedence: people and the store change them, only detectors change the document.
    doc = row["doc"] | {"status": row["status"], "severity": row["severity"]}
    doc["updated_at"] = rfc3339(row["updated_at"].timestamp())
    if row["resolved_at"] is not None:
        doc["resolved_at"] = rfc3339(row["resolved_at"].timestamp())
    doc |= {name: row[name] for name in _PEOPLE if row[name] is not None}
    return StoredFinding(row["id"], row["cluster"], row["version"], row["status"], row["updated_at"], doc)


def notified_state(row: Row) -> NotifiedState:
    """Return the fields of a row whose change emits an event."""
    doc = row["doc"]
    return NotifiedState(
        status=row["status"],
        severity=row["severity"],
        kind=row["kind"],
        hypothesis=(doc.get("cause") or {}).get("hypothesis", ""),
        action=doc["action"]["code"],
        occurrences=row["occurrences"],
    )


def held(row: Row) -> Held:
    """Return the fields of a row that a merge with a new version needs."""
    doc, closed = row["doc"], row["closed"]
    lo, hi = (datetime.fromisoformat(t).timestamp() for t in doc["onset_interval"])
    return Held(
        id=row["id"],
        notified=notified_state(row),
        as_of=row["as_of"].timestamp(),
        onset=(row["onset"].timestamp(), lo, hi),
        detected_at=row["detected_at"].timestamp(),
        flaps=doc.get("flaps", 0),
        gpu_hours_lost=row["gpu_hours_lost"],
        opened=row["was_open"],
        resolved_at=None if row["resolved_at"] is None else row["resolved_at"].timestamp(),
        closed_at=None if closed is None else datetime.fromisoformat(closed["at"]).timestamp(),
        closed_occurrence=None if closed is None else closed["occurrence"],
    )
