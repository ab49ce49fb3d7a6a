"""Serves the evidence of a finding, and stores it before its roll-ups are removed.

Until the window of a finding is over its evidence is read anew on every request.
"""

import logging
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.errors import QueryCanceled
from psycopg.types.json import Jsonb

from store.evidence.window import HALF_WINDOW, Drawn, taken
from store.findings.findings import NotFound
from store.text import storable, storable_json

log = logging.getLogger(__name__)

# Wait after the end of a window before it is stored. Chosen: four times what an idle source's roll-up takes
# (``streams.rollup.rollup.IDLE_SECONDS``).
SETTLED = timedelta(minutes=2)
# Findings stored in one round. Chosen: a round is hourly, and ends well before the next one.
FREEZE_BATCH = 500

# Suspicions are shown to nobody. A finding whose onset was moved since is read again.
_WAITING: LiteralString = """
SELECT f.id, f.doc, f.onset, f.detected_at, f.resolved_at
FROM findings f LEFT JOIN finding_evidence e ON e.finding_id = f.id
WHERE f.was_open AND f.status <> 'suspected' AND f.onset < %(before)s AND f.onset >= %(since)s
  AND (e.onset IS NULL OR e.onset <> f.onset)
ORDER BY f.onset LIMIT %(most)s
"""


def evidence_of(conn: Connection[Any], finding_id: str) -> dict[str, Any]:
    """Return the evidence of a finding, stored or read now. Raises ``NotFound``."""
    row = conn.execute(
        "SELECT f.id, f.doc, f.onset, f.detected_at, f.resolved_at, e.doc FROM findings f "
        "LEFT JOIN finding_evidence e ON e.finding_id = f.id AND e.onset = f.onset WHERE f.id = %s",
        (storable(finding_id),),
    ).fetchone()
    if row is None:
        raise NotFound(f"no finding has the id {finding_id}")
    drawn, stored = Drawn(*row[:5]), row[5]
    shown = taken(conn, drawn) if stored is None else stored
    # The times stand beside what is stored, as they may change with the finding.
    return {"finding_id": drawn.id, "frozen": stored is not None} | drawn.times() | shown


def freeze(conn: Connection[Any], *, now: datetime, days: float, most: int = FREEZE_BATCH) -> int:
    """Store the evidence of findings whose window is over while its telemetry is there; return how many.

    ``days``: for how long roll-ups are kept. ``conn`` must be in autocommit: each finding is a transaction.
    """
    before, since = now - HALF_WINDOW - SETTLED, now - timedelta(days=days) + HALF_WINDOW
    waiting = conn.execute(_WAITING, {"before": before, "since": since, "most": most}).fetchall()
    stored = 0
    for row in waiting:
        drawn = Drawn(*row)
        try:
            doc = taken(conn, drawn)
        except QueryCanceled:
            log.warning(
                "the telemetry of %s takes too long to read; trying again in the next round", drawn.id
            )
            continue
        conn.execute(
            "INSERT INTO finding_evidence (finding_id, onset, taken_at, doc) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (finding_id) DO UPDATE SET onset = excluded.onset, taken_at = excluded.taken_at, "
            "doc = excluded.doc",
            (drawn.id, drawn.onset, now, Jsonb(storable_json(doc))),
        )
        stored += 1
    return stored
