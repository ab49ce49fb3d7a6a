"""Stores what jobs have declared: at most one row for each code, job and ten seconds."""

from collections.abc import Iterable
from typing import LiteralString

from psycopg import Connection

from store.findings.rows import moment
from store.telemetry.buckets import BUCKET_SECONDS, JobEvent
from store.text import storable

_ADD: LiteralString = """
INSERT INTO job_events (bucket, cluster, job_id, code, message) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""

# Characters of a message (chosen: a line on a page).
_MESSAGE = 200


def write_job_events(conn: Connection[object], events: Iterable[JobEvent]) -> None:
    """Store events in one transaction; of several with one code within ten seconds the first is kept."""
    rows = {
        (moment(event.at // BUCKET_SECONDS * BUCKET_SECONDS), event.cluster, event.job_id, event.code): event
        for event in sorted(events, key=lambda event: event.at, reverse=True)
    }
    if not rows:
        return
    with conn.transaction(), conn.cursor() as cursor:
        # Sorted: two writers that lock the same rows in different orders would deadlock.
        cursor.executemany(
            _ADD,
            [
                (bucket, storable(cluster), storable(job), code, storable(event.message[:_MESSAGE]))
                for (bucket, cluster, job, code), event in sorted(rows.items(), key=lambda row: row[0])
            ],
        )
