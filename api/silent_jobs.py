"""Which findings are about jobs that make no steps any more: what they say of the job's pace is past."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from alerts.cases.lifecycle import LIVE
from api.http.times import rfc3339
from store.dashboard.jobs import last_steps
from store.telemetry.buckets import BUCKET_SECONDS

# A job with a step since then counts as running (as long as a node counts as reporting).
RUNNING = timedelta(minutes=2)


def no_steps(conn: Connection[Any], docs: Sequence[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Return for each finding what is served besides it, where it is live and its job does not run.

    That is ``no_steps_since``, and a present cost of 0 where no evidence is of later: steps that are not made
    cost nothing by being slow, while a stop is reported on.
    """
    keys = [_job_of(doc) for doc in docs]
    at = last_steps(conn, {key for key in keys if key is not None})
    # The time of a job is that of its last roll-up, which may have a step up to its end.
    ends = {key: last + timedelta(seconds=BUCKET_SECONDS) for key, last in at.items() if last < now - RUNNING}
    return [_fields(doc, ends[key]) if key in ends else {} for doc, key in zip(docs, keys, strict=True)]


def _fields(doc: Mapping[str, Any], end: datetime) -> dict[str, Any]:
    over = datetime.fromisoformat(doc["last_seen_at"]) <= end
    present = {name: 0.0 for name in ("gpu_hours_lost_per_hour", "cost_per_hour") if over and name in doc}
    return {"no_steps_since": rfc3339(end)} | present


def _job_of(doc: Mapping[str, Any]) -> tuple[str, str] | None:
    subject = doc["subject"]
    if doc["status"] not in LIVE or not subject.get("job_id"):
        return None
    return subject["cluster"], subject["job_id"]
